//! Limits in shadow: they are decided and reported, but never deny.

use rl_core::adapter::HttpLimiter;
use rl_core::{Limit, RateLimiter};
use rl_tests::web::{Fetch, Target, limiter, new_year};

const WARNING: &str = "x-rate-limit-warning";

pub(super) async fn a_limit_in_shadow_warns_and_denies_no_request<T: Target>() {
    let http =
        HttpLimiter::new(limiter(&new_year(), &["3/minute", "1/hour:shadow", "2/day:shadow"]));
    let site = T::serve(vec![http]);
    let warnings = [
        None,
        Some("over limits that are not enforced yet: hour=1"),
        Some("over limits that are not enforced yet: hour=1, day=2"),
    ];
    for (left, warning) in [2, 1, 0].into_iter().zip(warnings) {
        let answer = site.get("/").fetch().await;
        assert_eq!(answer.standing(), format!("200 3-{left}-60"), "clients see what is enforced");
        assert_eq!(answer.header(WARNING), warning);
    }
    let denied = site.get("/").fetch().await;
    assert_eq!(denied.standing(), "429 3-0-60, retry 60");
    assert!(denied.body.contains("3 per minute"), "{}", denied.body);
}

pub(super) async fn a_limiter_in_shadow_only_warns<T: Target>() {
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).shadow(true).build().unwrap();
    let site = T::serve(vec![HttpLimiter::new(limiter)]);
    for warning in [None, Some("over limits that are not enforced yet: hour=1")] {
        let answer = site.get("/").fetch().await;
        assert_eq!((answer.standing().as_str(), answer.header(WARNING)), ("200", warning));
    }
    assert_eq!(site.handled(), 2);
}
