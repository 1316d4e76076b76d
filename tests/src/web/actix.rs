//! The application on actix-web.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use actix_web::body::MessageBody;
use actix_web::dev::{ServerHandle, ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::middleware::{Condition, Next, from_fn};
use actix_web::{App, Error, HttpMessage, HttpServer, web};
use rl_actix::RateLimit;
use rl_core::key::KeyExtractor;
use rl_core::{Decision, Gate, Subject};

use super::{Site, Target, describe, listener};

/// The adapter for actix-web.
#[derive(Debug)]
pub struct Actix;

impl Target for Actix {
    fn serve<K: KeyExtractor>(gates: Vec<Gate<K>>) -> Site {
        assert!((1..=3).contains(&gates.len()), "one to three gates");
        let handled = Arc::<AtomicUsize>::default();
        let theirs = Arc::clone(&handled);
        let app = move || {
            // Which middlewares there are is in the type of the app: the missing ones are switched
            // off.
            let gate = |place: usize| {
                let gate = gates.get(place);
                let limit = RateLimit::new(gate.unwrap_or(&gates[0]).clone());
                Condition::new(gate.is_some(), limit)
            };
            App::new()
                .configure(|app| application(app, &theirs))
                .wrap(gate(2))
                .wrap(gate(1))
                .wrap(gate(0))
                .wrap(from_fn(around))
        };
        serve_counting(app, handled)
    }
}

/// Serves the app that `factory` makes for each of two workers.
#[must_use]
pub fn serve<F, T, B>(factory: F) -> Site
where
    F: Fn() -> App<T> + Send + Clone + 'static,
    T: ServiceFactory<
            ServiceRequest,
            Config = (),
            Response = ServiceResponse<B>,
            Error = Error,
            InitError = (),
        > + 'static,
    B: MessageBody + 'static,
{
    serve_counting(factory, Arc::default())
}

/// The application without a limiter; `handled` counts the requests that reach a handler.
pub fn application(app: &mut web::ServiceConfig, handled: &Arc<AtomicUsize>) {
    app.app_data(web::Data::from(Arc::clone(handled)))
        .route("/", web::to(show))
        .route("/users/{id}", web::to(show))
        .route("/health", web::to(show))
        .route("/echo", web::post().to(echo));
}

fn serve_counting<F, T, B>(factory: F, handled: Arc<AtomicUsize>) -> Site
where
    F: Fn() -> App<T> + Send + Clone + 'static,
    T: ServiceFactory<
            ServiceRequest,
            Config = (),
            Response = ServiceResponse<B>,
            Error = Error,
            InitError = (),
        > + 'static,
    B: MessageBody + 'static,
{
    let listener = listener();
    let server = HttpServer::new(factory)
        .workers(2)
        .disable_signals()
        .listen(listener.try_clone().expect("a second handle"))
        .expect("a listener")
        .run();
    let stop = StopOnDrop(server.handle());
    tokio::spawn(server);
    Site::new(&listener, handled, Box::new(stop))
}

#[derive(Debug)]
struct StopOnDrop(ServerHandle);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // The command is sent at once; nobody waits for its end.
        drop(self.0.stop(false));
    }
}

async fn show(handled: web::Data<AtomicUsize>, decision: Option<web::ReqData<Decision>>) -> String {
    handled.fetch_add(1, Ordering::SeqCst);
    describe(decision.as_deref())
}

async fn echo(handled: web::Data<AtomicUsize>, body: web::Bytes) -> web::Bytes {
    handled.fetch_add(1, Ordering::SeqCst);
    body
}

/// What stands around the limiters.
async fn around(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    let consumer = request.headers().get("x-consumer").and_then(|value| value.to_str().ok());
    if let Some(subject) = consumer.map(Subject::consumer) {
        request.extensions_mut().insert(subject);
    }
    let mut response = next.call(request).await?;
    let seen = response.response().extensions().get().map(|decision| describe(Some(decision)));
    if let Some(seen) = seen {
        let seen = HeaderValue::try_from(seen).expect("words and numbers");
        response.headers_mut().insert(HeaderName::from_static("x-outer-sees"), seen);
    }
    Ok(response)
}
