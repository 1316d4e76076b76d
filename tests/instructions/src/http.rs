//! Repeats requests to a service that responds immediately, behind a rate limit layer.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use http::{Request, Response};
use rl_core::RateLimiter;
use rl_tower::RateLimitLayer;
use tower_layer::Layer;
use tower_service::Service;

#[derive(Clone, Copy)]
struct Handler;

impl Service<Request<String>> for Handler {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        ready(Ok(Response::new(String::new())))
    }
}

/// Sends `times` requests, after one request that is not counted.
pub(crate) fn send(limiter: RateLimiter, times: u64) {
    let layer = RateLimitLayer::new(limiter);
    let mut service = layer.layer(Handler);
    respond(&mut service, request());
    for request in std::iter::repeat_with(request).take(times as usize) {
        crate::counted(|| respond(&mut service, request));
    }
}

fn request() -> Request<String> {
    let peer = SocketAddr::from(([192, 0, 2, 7], 50_000));
    Request::builder().extension(peer).body(String::new()).expect("a request")
}

fn respond(service: &mut impl Service<Request<String>>, request: Request<String>) {
    let answer = pin!(service.call(request));
    let answer = answer.poll(&mut Context::from_waker(Waker::noop()));
    assert!(black_box(answer).is_ready(), "the response is ready at once");
}
