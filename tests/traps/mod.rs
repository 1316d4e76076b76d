//! Bugs that other rate limiters had, each with the test that would have found it. `t01` to `t17` and
//! `t31` are our numbers for them.

mod addresses;
mod bodies;
mod connections;
mod handles;
mod honesty;
mod nesting;
mod probe;
mod readiness;
mod rpc;
mod told_store;

use std::time::Duration;

use futures::FutureExt;
use http::Request;
use probe::Probe;
use rl_core::key::Constant;
use rl_core::{Gate, RateLimiter};
use rl_tower::RateLimitLayer;
use told_store::ToldStore;
use tower::{Service, ServiceExt};

/// What has not come about by then never will.
const GIVE_UP: Duration = Duration::from_secs(20);

/// A layer that counts everyone together.
fn layer(limiter: &RateLimiter) -> RateLimitLayer<Constant> {
    RateLimitLayer::new(Gate::new(limiter.clone()).key(Constant))
}

/// Calls the service as its contract demands: once it is ready.
async fn call<S, B>(service: &mut S, request: Request<B>) -> S::Future
where
    S: Service<Request<B>>,
{
    let ready = service.ready().await;
    ready.unwrap_or_else(|_| panic!("the service has failed")).call(request)
}

/// Whether the service is ready now.
fn is_ready<S: Service<Request<()>>>(service: &mut S) -> bool {
    service.ready().now_or_never().is_some()
}
