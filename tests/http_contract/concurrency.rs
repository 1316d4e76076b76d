//! Concurrency limits.

use std::time::Duration;

use rl_core::OverLimit;
use rl_core::adapter::HttpLimiter;
use rl_core::{Limit, RateLimiter, Subject};
use rl_tests::RedisServer;
use rl_tests::web::{Fetch, Site, Target, eventually, limiter, new_year};

use super::settling::used;

fn two_at_once() -> RateLimiter {
    limiter(&new_year(), &["2:concurrency", "9/hour"])
}

pub(super) async fn concurrent_requests_never_exceed_the_concurrency_limit<T: Target>() {
    let limiter = two_at_once();
    let site = T::serve(vec![HttpLimiter::new(limiter.clone())]);
    let (one, other) = (site.get("/waits"), site.get("/waits"));
    let held = [one, other].map(|request| tokio::spawn(request.fetch()));
    site.reached(2).await;
    let denied = site.get("/").fetch().await;
    assert_eq!(denied.standing(), "429 2-0-1, retry 1");
    assert!(
        denied.body.contains("at most 2 at the same time. Try again in 1 second."),
        "{}",
        denied.body
    );
    site.cue();
    site.cue();
    for request in held {
        assert_eq!(request.await.unwrap().status, 200);
    }
    eventually(|| async { used(&limiter).await == 0 }).await;
    assert_eq!(site.get("/").fetch().await.status, 200);
    let usage = limiter.usage(&Subject::ip([127, 0, 0, 1])).await.unwrap();
    assert_eq!(usage.limits().nth(1).unwrap().used(), 3, "the denial was not charged");
}

pub(super) async fn a_place_is_free_however_a_request_ends<T: Target>() {
    let limiter = limiter(&new_year(), &["1:concurrency"]);
    let site = T::serve(vec![HttpLimiter::new(limiter.clone())]);
    for path in ["/", "/fails", "/nowhere", "/panics", "/users/7"] {
        // If a handler panics, its connection ends without a response.
        let answer = site.get(path).send().await;
        assert_eq!(answer.is_err(), path == "/panics");
        assert_ne!(answer.map(|answer| answer.status().as_u16()).unwrap_or_default(), 429);
        eventually(|| async { used(&limiter).await == 0 }).await;
    }
}

pub(super) async fn a_place_is_held_until_the_body_has_ended<T: Target>() {
    let limiter = limiter(&new_year(), &["1:concurrency"]);
    let site = T::serve(vec![HttpLimiter::new(limiter.clone())]);
    let mut response = site.get("/streams").send().await.unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "first ");
    assert_eq!(site.get("/").fetch().await.status, 429);
    site.cue();
    assert_eq!(response.text().await.unwrap(), "last");
    eventually(|| async { used(&limiter).await == 0 }).await;
}

pub(super) async fn a_waiting_request_gets_the_permit_that_is_released<T: Target>() {
    let limiter = limiter(&new_year(), &["1:concurrency"]);
    let (at_most, queue) = (Duration::from_secs(60), 5);
    let site =
        T::serve(vec![HttpLimiter::new(limiter).on_over_limit(OverLimit::Wait { at_most, queue })]);
    let requests = (0..3).map(|_| tokio::spawn(site.get("/waits").fetch())).collect::<Vec<_>>();
    for handled in 1..=3 {
        site.reached(handled).await;
        assert_eq!(site.handled(), handled, "one after the other");
        site.cue();
    }
    for request in requests {
        assert_eq!(request.await.unwrap().status, 200);
    }
}

/// Instances that share a store also share the permits of its concurrency limits.
pub(super) async fn places_are_shared_by_all_instances<T: Target>() {
    let redis = RedisServer::start();
    let mut sites = Vec::new();
    for _ in 0..2 {
        let store = redis.patient_store().connect().await.unwrap();
        let limits = RateLimiter::builder().limit(Limit::concurrency(3).unwrap()).store(store);
        let limiter = limits.deadline(Duration::from_secs(60)).build().unwrap();
        sites.push((T::serve(vec![HttpLimiter::new(limiter.clone())]), limiter));
    }
    let handled = || sites.iter().map(|(site, _)| site.handled()).sum::<usize>();
    let requests: Vec<_> =
        (0..12).map(|n: usize| tokio::spawn(sites[n % 2].0.get("/waits").fetch())).collect();
    let refused = || requests.iter().filter(|request| request.is_finished()).count();
    eventually(|| async { (refused(), handled()) == (9, 3) }).await;
    sites.iter().for_each(|(site, _): &(Site, _)| (0..3).for_each(|_| site.cue()));
    let mut served = 0;
    for request in requests {
        served += usize::from(request.await.unwrap().status == 200);
    }
    assert_eq!((served, handled()), (3, 3));
    eventually(|| async { used(&sites[0].1).await == 0 }).await;
}
