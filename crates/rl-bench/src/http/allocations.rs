//! Counts the allocations that our layer adds to a request.

use std::convert::Infallible;
use std::error::Error;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::http::{Request, Response};
use rl_core::RateLimiter;
use rl_core::key::Constant;
use rl_tower::RateLimitLayer;
use stats_alloc::Region;
use tower::{Layer, Service, service_fn};

use super::fixtures::policy;
use crate::goals::{Goal, Unit};

const REQUESTS: u32 = 1_000;
/// A limit with four digits, as in most headers.
const MAX: u32 = 9_999;

/// Measures the allocations for a response with the headers of six periods. The request has
/// extensions, as in axum.
pub(super) fn measure() -> Result<Vec<Goal>, Box<dyn Error>> {
    // The response has a header, as most responses do.
    let plain = service_fn(|_: Request<Body>| async {
        let response = Response::builder().header("content-type", "text/plain");
        Ok::<_, Infallible>(response.body(Body::empty()).expect("a response"))
    });
    let lines = (2.0, 1.0, Unit::AtMost(""));
    let limiter = RateLimiter::builder().policy(policy(MAX)?).build()?;
    let layer = RateLimitLayer::new(limiter).key(Constant);
    let more = count(layer.layer(plain)) - count(plain);
    Ok(vec![Goal::counted("M6", "allocations for a response with headers", lines, more)])
}

/// Sends requests to the service. Returns the number of allocations for each request.
fn count<S, B>(mut service: S) -> f64
where
    S: Service<Request<Body>, Response = Response<B>>,
{
    let mut context = Context::from_waker(Waker::noop());
    let mut ask = || {
        let is_ready = service.poll_ready(&mut context).is_ready();
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(MAX);
        let answered = pin!(service.call(request)).poll(&mut context);
        assert!(is_ready && matches!(answered, Poll::Ready(Ok(_))), "nothing here waits");
    };
    // The first request creates the subject's entry. This allocation is not counted.
    ask();
    let region = Region::new(crate::ALLOCATOR);
    (0..REQUESTS).for_each(|_| ask());
    let change = region.change();
    (change.allocations + change.reallocations) as f64 / f64::from(REQUESTS)
}
