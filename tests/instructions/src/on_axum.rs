//! A service on axum as it stands behind a server, with a layer around it: ours, or one that does
//! nothing.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::response::Response;
use axum::routing::get;
use http_body::Body as _;
use rl_core::RateLimiter;
use rl_tower::RateLimitLayer;
use tower_layer::Layer;
use tower_service::Service;

/// A layer that does nothing.
#[derive(Clone)]
struct NoOpLayer;

impl<S> Layer<S> for NoOpLayer {
    type Service = NoOp<S>;

    fn layer(&self, inner: S) -> NoOp<S> {
        NoOp(inner)
    }
}

#[derive(Clone)]
struct NoOp<S>(S);

impl<S: Service<R>, R> Service<R> for NoOp<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.0.call(request)
    }
}

/// Sends a request so often, the first of them uncounted, through `limiter` if there is one.
pub(crate) fn send(limiter: Option<RateLimiter>, times: u64) {
    let router = Router::new().route("/", get(async || "Hello"));
    let mut service: Router = match limiter {
        Some(limiter) => router.layer(RateLimitLayer::new(limiter)),
        None => router.layer(NoOpLayer),
    };
    answered(&mut service, request());
    for request in std::iter::repeat_with(request).take(times as usize) {
        crate::counted(|| answered(&mut service, request));
    }
}

fn request() -> Request {
    let mut request = Request::new(Body::empty());
    let peer = SocketAddr::from(([192, 0, 2, 7], 50_000));
    request.extensions_mut().insert(ConnectInfo(peer));
    request
}

fn answered(
    service: &mut impl Service<Request, Response = Response, Error = Infallible>,
    request: Request,
) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_ready());
    let answer = pin!(service.call(request)).poll(&mut context);
    let Poll::Ready(Ok(answer)) = answer else { panic!("there is nothing to wait for") };
    let mut body = pin!(answer.into_body());
    while let Poll::Ready(Some(frame)) = body.as_mut().poll_frame(&mut context) {
        assert!(frame.is_ok(), "a text is there");
    }
}
