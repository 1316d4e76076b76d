//! Faults of rate limiters in the past, each with a test that would find it.
//!
//! `README.md` in this folder lists them. The prefixes `t01` to `t31` are their numbers. A doc
//! comment in the past tense describes the fault that its test would find.

mod answers;
mod bodies;
mod clock_steps;
mod denials_without_store;
mod fake_redis;
mod grpc;
mod grpc_methods;
mod header_accuracy;
mod leases;
mod limit_identity;
mod limiter_handles;
mod log_lines;
mod missing_address;
mod nesting;
mod one_server;
mod open_bank;
mod overload;
mod path_spellings;
mod readable_layout;
mod readiness;
mod recording_service;
mod redis_connections;
mod refunds;
mod reservations;
mod rule_files;
pub(crate) mod running_programs;
mod scripted_store;
mod settlements;
mod two_runtimes;
mod wrong_credentials;

use std::time::Duration;

use futures::FutureExt;
use http::Request;
use recording_service::RecordingService;
use rl_core::RateLimiter;
use rl_core::key::Constant;
use rl_tower::RateLimitLayer;
use scripted_store::ScriptedStore;
use tower::{Service, ServiceExt};

/// The time limit for a condition that a test waits for.
const GIVE_UP: Duration = rl_tests::web::GIVE_UP;

/// Returns a layer that counts all requests under one subject.
fn layer(limiter: &RateLimiter) -> RateLimitLayer {
    RateLimitLayer::new(limiter.clone()).key(Constant)
}

/// Waits until the service is ready, and then calls it. tower requires this order.
async fn call<S, B>(service: &mut S, request: Request<B>) -> S::Future
where
    S: Service<Request<B>>,
{
    let ready = service.ready().await;
    ready.unwrap_or_else(|_| panic!("the service has failed")).call(request)
}

/// Returns whether the service is ready now.
fn is_ready<S: Service<Request<String>>>(service: &mut S) -> bool {
    service.ready().now_or_never().is_some()
}
