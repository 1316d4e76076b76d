//! The settled cost of a request.

use reqwest::StatusCode;
use rl_core::adapter::HttpLimiter;
use rl_core::{Cost, RateLimiter, Subject};
use rl_tests::web::{Fetch, Target, eventually, limiter, new_year};

pub(super) fn ten() -> RateLimiter {
    limiter(&new_year(), &["10/minute"])
}

pub(super) async fn used(limiter: &RateLimiter) -> u64 {
    let usage = limiter.usage(&Subject::ip([127, 0, 0, 1])).await.unwrap();
    usage.limits().next().unwrap().used()
}

/// Waits until the limiter has charged `units`. The client may receive the response before the
/// server has settled the request.
pub(super) async fn settles_at(limiter: &RateLimiter, units: u64) {
    eventually(|| async { used(limiter).await == units }).await;
}

pub(super) async fn a_handler_sets_the_cost_of_a_request<T: Target>() {
    let limiter = ten();
    let site = T::serve(vec![HttpLimiter::new(limiter.clone()).metered()]);
    assert_eq!(site.get("/costs/4").fetch().await.standing(), "200 10-9-60");
    settles_at(&limiter, 5).await;
    // The reported cost is charged beyond the limit, because the work has already been done. Later
    // requests are denied until the window ends.
    assert_eq!(site.get("/costs/90").fetch().await.standing(), "200 10-4-60");
    settles_at(&limiter, 96).await;
    assert_eq!(site.get("/").fetch().await.standing(), "429 10-0-60, retry 60");
}

pub(super) async fn failed_requests_are_refunded_if_set<T: Target>() {
    let limiter = ten();
    let http = HttpLimiter::new(limiter.clone()).refund_if(|response| response.status() >= 500);
    let site = T::serve(vec![http]);
    assert_eq!(site.get("/fails").fetch().await.standing(), "500 10-9-60");
    settles_at(&limiter, 0).await;
    assert_eq!(site.get("/").fetch().await.standing(), "200 10-9-60");
    assert_eq!(site.get("/").fetch().await.standing(), "200 10-8-60");
}

pub(super) async fn the_response_says_what_a_request_costs<T: Target>() {
    let limiter = ten();
    let http = HttpLimiter::new(limiter.clone()).cost(|_| Cost::new(8)).response_cost(|response| {
        let mut is_plain = false;
        response.header_lines("content-type", &mut |value| is_plain |= value.starts_with(b"text"));
        is_plain.then_some(Cost::new(3))
    });
    let site = T::serve(vec![http]);
    assert_eq!(site.get("/").fetch().await.standing(), "200 10-2-60");
    settles_at(&limiter, 3).await;
}

pub(super) async fn a_request_is_refunded_when_its_body_has_ended<T: Target>() {
    let limiter = ten();
    let http = HttpLimiter::new(limiter.clone()).cost(|_| Cost::new(8));
    let site = T::serve(vec![http.response_cost(|_| Some(Cost::new(5)))]);
    let mut response = site.get("/streams").send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.chunk().await.unwrap().unwrap(), "first ");
    assert_eq!(used(&limiter).await, 8, "the body goes on");
    site.cue();
    assert_eq!(response.text().await.unwrap(), "last");
    settles_at(&limiter, 5).await;
}

/// Fault: a final cost was charged when the body had ended. A client that left the end of each body
/// unread was charged the estimate, as long as it held the connections.
pub(super) async fn a_client_that_leaves_a_body_unread_is_charged_the_cost<T: Target>() {
    let limiter = ten();
    let http = HttpLimiter::new(limiter.clone()).response_cost(|_| Some(Cost::new(6)));
    let site = T::serve(vec![http]);
    let first = site.get("/streams").send().await.unwrap();
    settles_at(&limiter, 6).await;
    let second = site.get("/streams").send().await.unwrap();
    settles_at(&limiter, 12).await;
    assert_eq!(site.get("/").fetch().await.status, 429);
    drop((first, second));
    site.cue();
}

pub(super) async fn a_request_whose_handler_panics_has_cost_what_it_was_granted<T: Target>() {
    let limiter = ten();
    let http = HttpLimiter::new(limiter.clone()).metered().cost(|_| Cost::new(2));
    let site = T::serve(vec![http]);
    assert!(site.get("/panics").send().await.is_err());
    assert_eq!(used(&limiter).await, 2);
    assert_eq!(site.get("/").fetch().await.standing(), "200 10-6-60");
}
