//! The application on axum.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{any, post};
use axum::{Extension, Router};
use rl_core::key::KeyExtractor;
use rl_core::{Decision, Gate, Subject};
use rl_tower::RateLimitLayer;

use super::{Site, Target, describe, listener};

/// The adapter for tower, under axum.
#[derive(Debug)]
pub struct Axum;

impl Target for Axum {
    fn serve<K: KeyExtractor>(gates: Vec<Gate<K>>) -> Site {
        let handled = Arc::<AtomicUsize>::default();
        let mut app = application(&handled);
        for gate in gates.into_iter().rev() {
            app = app.layer(RateLimitLayer::new(gate));
        }
        serve_counting(app.layer(from_fn(around)), handled)
    }
}

/// Serves `app`, which learns the addresses of its clients.
#[must_use]
pub fn serve(app: Router) -> Site {
    serve_counting(app, Arc::default())
}

/// The application without a limiter; `handled` counts the requests that reach a handler.
pub fn application(handled: &Arc<AtomicUsize>) -> Router {
    Router::new()
        .route("/", any(show))
        .route("/users/{id}", any(show))
        .route("/health", any(show))
        .route("/echo", post(echo))
        .with_state(Arc::clone(handled))
}

fn serve_counting(app: Router, handled: Arc<AtomicUsize>) -> Site {
    let listener = listener();
    let theirs = listener.try_clone().expect("a second handle");
    theirs.set_nonblocking(true).expect("a socket that does not block");
    let theirs = tokio::net::TcpListener::from_std(theirs).expect("a listener");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(async move { axum::serve(theirs, app).await });
    Site::new(&listener, handled, Box::new(AbortOnDrop(server.abort_handle())))
}

#[derive(Debug)]
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn show(
    State(handled): State<Arc<AtomicUsize>>,
    decision: Option<Extension<Decision>>,
) -> String {
    handled.fetch_add(1, Ordering::SeqCst);
    describe(decision.as_ref().map(|decision| &decision.0))
}

async fn echo(State(handled): State<Arc<AtomicUsize>>, body: Bytes) -> Bytes {
    handled.fetch_add(1, Ordering::SeqCst);
    body
}

/// What stands around the limiters.
async fn around(mut request: Request, next: Next) -> Response {
    let consumer = request.headers().get("x-consumer").and_then(|value| value.to_str().ok());
    if let Some(subject) = consumer.map(Subject::consumer) {
        request.extensions_mut().insert(subject);
    }
    let mut response = next.run(request).await;
    if let Some(decision) = response.extensions().get::<Decision>() {
        let seen = HeaderValue::try_from(describe(Some(decision))).expect("words and numbers");
        response.headers_mut().insert("x-outer-sees", seen);
    }
    response
}
