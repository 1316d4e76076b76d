//! A service on axum, called directly, without a server. The layer around it is ours, one that adds
//! three header lines, or none.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use axum::routing::get;
use http_body::Body as _;
use rl_tower::RateLimitLayer;
use tower::util::MapResponseLayer;
use tower_service::Service;

use crate::Around;

/// Sends `times` requests, after one request that is not counted.
pub(crate) fn send(around: Around, times: u64) {
    let router = Router::new().route("/", get(async || "Hello"));
    let mut service: Router = match around {
        Around::Nothing => router,
        Around::Lines => router.layer(MapResponseLayer::new(|mut response: Response| {
            for name in &LINES {
                response.headers_mut().insert(name.clone(), HeaderValue::from_static("1000"));
            }
            response
        })),
        Around::Limiter(limiter) => router.layer(RateLimitLayer::new(limiter)),
    };
    // As axum does before it serves a router. Otherwise each request would create its route anew.
    service = service.with_state(());
    respond(&mut service, request());
    for request in std::iter::repeat_with(request).take(times as usize) {
        crate::counted(|| respond(&mut service, request));
    }
}

static LINES: [HeaderName; 3] = [
    HeaderName::from_static("x-rate-limit-limit"),
    HeaderName::from_static("x-rate-limit-remaining"),
    HeaderName::from_static("x-rate-limit-reset"),
];

fn request() -> Request {
    let mut request = Request::new(Body::empty());
    let peer = SocketAddr::from(([192, 0, 2, 7], 50_000));
    request.extensions_mut().insert(ConnectInfo(peer));
    request
}

fn respond(
    service: &mut impl Service<Request, Response = Response, Error = Infallible>,
    request: Request,
) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_ready());
    let answer = pin!(service.call(request)).poll(&mut context);
    let Poll::Ready(Ok(answer)) = answer else { panic!("the response is ready at once") };
    let mut body = pin!(answer.into_body());
    while let Poll::Ready(Some(frame)) = body.as_mut().poll_frame(&mut context) {
        assert!(frame.is_ok(), "the body is a text");
    }
}
