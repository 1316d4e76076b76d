//! The application on actix-web.

use std::sync::Arc;

use actix_web::body::MessageBody;
use actix_web::dev::{ServerHandle, ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::middleware::{Condition, Next, from_fn};
use actix_web::{App, Error, HttpMessage, HttpResponse, HttpServer, web};
use futures::TryStreamExt;
use rl_actix::RateLimit;
use rl_core::adapter::HttpLimiter;
use rl_core::key::RequestInfo;
use rl_core::{Decision, Permit, Subject};

use super::{Site, Stage, Target, describe, listener};

/// The adapter for actix-web.
#[derive(Debug)]
pub struct Actix;

impl Target for Actix {
    fn serve(limiters: Vec<HttpLimiter>) -> Site {
        assert!((1..=3).contains(&limiters.len()), "expected one to three limiters");
        let stage = Arc::<Stage>::default();
        let theirs = Arc::clone(&stage);
        let app = move || {
            // The type of an app depends on the number of its middlewares, so every app has three.
            // Those without a limiter are disabled.
            let limit = |index: usize| {
                let limiter = limiters.get(index);
                let limit = RateLimit::from(limiter.unwrap_or(&limiters[0]).clone());
                Condition::new(limiter.is_some(), limit)
            };
            App::new()
                .configure(|app| application(app, &theirs))
                .route("/rate_limit", RateLimit::from(limiters[0].clone()).usage_route())
                .wrap(limit(2))
                .wrap(limit(1))
                .wrap(limit(0))
                .wrap(from_fn(around))
        };
        serve_on(app, stage)
    }

    fn extension<T: Send + Sync + 'static>(request: &dyn RequestInfo) -> Option<&T> {
        rl_actix::RequestExt::extension(request)
    }
}

/// Starts a server with two workers. `factory` creates an app for each worker.
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
    serve_on(factory, Arc::default())
}

/// Configures the application without a limiter. Its handlers share `stage` with a test.
pub fn application(app: &mut web::ServiceConfig, stage: &Arc<Stage>) {
    app.app_data(web::Data::from(Arc::clone(stage)))
        .route("/", web::to(show))
        .route("/users/{id}", web::to(show))
        .route("/health", web::to(show))
        .route("/echo", web::post().to(echo))
        .route("/costs/{units}", web::to(costs))
        .route("/fails", web::to(fails))
        .route("/panics", web::to(panics))
        .route("/waits", web::to(waits))
        .route("/streams", web::to(streams));
}

fn serve_on<F, T, B>(factory: F, stage: Arc<Stage>) -> Site
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
    Site::new(&listener, stage, Box::new(stop))
}

#[derive(Debug)]
struct StopOnDrop(ServerHandle);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // The call itself requests the stop. Its future would only wait until the server has
        // stopped.
        drop(self.0.stop(false));
    }
}

async fn show(stage: web::Data<Stage>, decision: Option<web::ReqData<Decision>>) -> String {
    stage.enter();
    describe(decision.as_deref())
}

async fn echo(stage: web::Data<Stage>, body: web::Bytes) -> web::Bytes {
    stage.enter();
    body
}

async fn costs(
    stage: web::Data<Stage>,
    units: web::Path<u64>,
    permit: web::ReqData<Permit>,
) -> HttpResponse {
    stage.enter();
    permit.add_cost(*units);
    HttpResponse::Ok().finish()
}

async fn fails(stage: web::Data<Stage>) -> HttpResponse {
    stage.enter();
    HttpResponse::InternalServerError().finish()
}

async fn panics(stage: web::Data<Stage>) -> HttpResponse {
    stage.enter();
    panic!("the request asked for a panic");
}

async fn waits(stage: web::Data<Stage>) -> HttpResponse {
    stage.enter();
    stage.cue().await;
    HttpResponse::Ok().finish()
}

async fn streams(stage: web::Data<Stage>, permit: Option<web::ReqData<Permit>>) -> HttpResponse {
    stage.enter();
    if let Some(permit) = permit {
        permit.add_cost(4);
    }
    let words = stage.into_inner().words();
    HttpResponse::Ok().streaming(words.map_ok(|word| web::Bytes::from_static(word.as_bytes())))
}

/// Authenticates the consumer before the limiters decide, and reports their decision in
/// `x-outer-sees`.
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
