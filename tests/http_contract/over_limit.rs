//! Requests over their limits: rejected, waiting or degraded.

use std::time::Duration;

use futures::future::{Either, join_all, select};
use rl_core::OverLimit;
use rl_core::adapter::HttpLimiter;
use rl_core::{Limit, RateLimiter};
use rl_tests::web::{Fetch, Target, limiter, new_year};
use tokio::time::Instant;

fn waiting(limit: &str, at_most: Duration, queue: usize) -> HttpLimiter {
    let limit: Limit = limit.parse().unwrap();
    let limiter = RateLimiter::builder().limit(limit).build().unwrap();
    HttpLimiter::new(limiter).on_over_limit(OverLimit::Wait { at_most, queue })
}

pub(super) async fn requests_wait_for_their_turn_if_set<T: Target>() {
    let site = T::serve(vec![waiting("1/100ms", Duration::from_secs(60), 10)]);
    let begin = Instant::now();
    let answers = join_all((0..5).map(|_| site.get("/").fetch())).await;
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200; 5]);
    assert!(begin.elapsed() >= Duration::from_millis(400), "{:?}", begin.elapsed());
    assert_eq!(site.handled(), 5);
}

pub(super) async fn a_request_that_would_wait_too_long_is_rejected_without_waiting<T: Target>() {
    let site = T::serve(vec![waiting("1/day", Duration::from_secs(86_000), 10)]);
    assert_eq!(site.get("/").fetch().await.standing(), "200 1-0-86400");
    // The wait would be longer than the longest permitted wait. So the request is denied without
    // waiting.
    assert_eq!(site.get("/").fetch().await.status, 429);
    assert_eq!(site.handled(), 1);
}

pub(super) async fn a_request_is_rejected_when_the_queue_is_full<T: Target>() {
    let site = T::serve(vec![waiting("1/day", Duration::from_secs(999_999), 1)]);
    assert_eq!(site.get("/").fetch().await.status, 200);
    let (one, other) = (Box::pin(site.get("/").fetch()), Box::pin(site.get("/").fetch()));
    // One of the two requests waits, for up to a day. The other one is denied.
    let (Either::Left((answer, _)) | Either::Right((answer, _))) = select(one, other).await;
    assert_eq!(answer.standing(), "429 1-0-86400, retry 86400");
    assert_eq!(site.handled(), 1);
}

pub(super) async fn degraded_requests_reach_the_handler_uncharged<T: Target>() {
    let http = HttpLimiter::new(limiter(&new_year(), &["1/minute", "9/hour"]));
    let site = T::serve(vec![http.on_over_limit(OverLimit::Degrade)]);
    assert_eq!(site.get("/").fetch().await.body, "store minute 1/1 hour 1/9");
    for _ in 0..2 {
        let answer = site.get("/").fetch().await;
        assert_eq!(answer.body, "degraded store minute 1/1 hour 1/9");
        assert_eq!(answer.standing(), "200 1-0-60");
    }
}

pub(super) async fn the_strategy_is_chosen_for_each_request_if_set<T: Target>() {
    let http = HttpLimiter::new(limiter(&new_year(), &["1/minute"])).on_over_limit_by(|request| {
        if request.path() == "/" { OverLimit::Degrade } else { OverLimit::Reject }
    });
    let site = T::serve(vec![http]);
    assert_eq!(site.get("/users/7").fetch().await.standing(), "200 1-0-60");
    assert_eq!(site.get("/").fetch().await.standing(), "200 1-0-60");
    assert_eq!(site.get("/users/7").fetch().await.standing(), "429 1-0-60, retry 60");
}
