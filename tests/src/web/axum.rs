//! The application on axum.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{any, get_service, post};
use axum::{Extension, Router};
use rl_core::adapter::HttpLimiter;
use rl_core::key::RequestInfo;
use rl_core::{Decision, Permit, Subject};
use rl_tower::RateLimitLayer;

use super::{Site, Stage, Target, describe, listener};

/// The adapter for tower, under axum.
#[derive(Debug)]
pub struct Axum;

impl Target for Axum {
    fn serve(limiters: Vec<HttpLimiter>) -> Site {
        let stage = Arc::<Stage>::default();
        let usage = RateLimitLayer::from(limiters[0].clone()).usage_service();
        let mut app = application(&stage).route("/rate_limit", get_service(usage));
        for limiter in limiters.into_iter().rev() {
            app = app.layer(RateLimitLayer::from(limiter));
        }
        serve_on(app.layer(from_fn(around)), stage)
    }

    fn extension<T: Send + Sync + 'static>(request: &dyn RequestInfo) -> Option<&T> {
        rl_tower::RequestExt::extension(request)
    }
}

/// Serves `app`, and provides the addresses of its clients.
#[must_use]
pub fn serve(app: Router) -> Site {
    serve_on(app, Arc::default())
}

/// Returns the application without a limiter. Its handlers share `stage` with a test.
pub fn application(stage: &Arc<Stage>) -> Router {
    Router::new()
        .route("/", any(show))
        .route("/users/{id}", any(show))
        .route("/health", any(show))
        .route("/echo", post(echo))
        .route("/costs/{units}", any(costs))
        .route("/fails", any(fails))
        .route("/panics", any(panics))
        .route("/waits", any(waits))
        .route("/streams", any(streams))
        .with_state(Arc::clone(stage))
}

fn serve_on(app: Router, stage: Arc<Stage>) -> Site {
    let listener = listener();
    let theirs = listener.try_clone().expect("a second handle");
    theirs.set_nonblocking(true).expect("a socket that does not block");
    let theirs = tokio::net::TcpListener::from_std(theirs).expect("a listener");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(async move { axum::serve(theirs, app).await });
    Site::new(&listener, stage, Box::new(AbortOnDrop(server.abort_handle())))
}

#[derive(Debug)]
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn show(State(stage): State<Arc<Stage>>, decision: Option<Extension<Decision>>) -> String {
    stage.enter();
    describe(decision.as_ref().map(|decision| &decision.0))
}

async fn echo(State(stage): State<Arc<Stage>>, body: Bytes) -> Bytes {
    stage.enter();
    body
}

async fn costs(
    State(stage): State<Arc<Stage>>,
    Path(units): Path<u64>,
    Extension(permit): Extension<Permit>,
) {
    stage.enter();
    permit.add_cost(units);
}

async fn fails(State(stage): State<Arc<Stage>>) -> StatusCode {
    stage.enter();
    StatusCode::INTERNAL_SERVER_ERROR
}

async fn panics(State(stage): State<Arc<Stage>>) {
    stage.enter();
    panic!("the request asked for a panic");
}

async fn waits(State(stage): State<Arc<Stage>>) {
    stage.enter();
    stage.cue().await;
}

async fn streams(State(stage): State<Arc<Stage>>, permit: Option<Extension<Permit>>) -> Body {
    stage.enter();
    if let Some(Extension(permit)) = permit {
        permit.add_cost(4);
    }
    Body::from_stream(stage.words())
}

/// Authenticates the consumer before the limiters decide, and reports their decision in
/// `x-outer-sees`.
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
