//! Limiters that are nested in other limiters.

use rl_core::OverLimit;
use rl_core::adapter::HttpLimiter;
use rl_core::headers::{HeaderFamily, Headers};
use rl_core::key::RequestInfo;
use rl_core::source::ByRealm;
use rl_core::{Cost, Limit, Policy, RateLimiter, Realm, Subject};
use rl_tests::web::{Fetch, Target, eventually, limiter, new_year};

fn of(limit: &str) -> RateLimiter {
    limiter(&new_year(), &[limit])
}

/// Returns the units that the client of the tests has used under the first limit.
async fn used(limiter: &RateLimiter) -> u64 {
    let usage = limiter.usage(&Subject::ip([127, 0, 0, 1])).await.unwrap();
    usage.limits().next().unwrap().used()
}

pub(super) async fn the_stricter_numbers_survive_from_outside<T: Target>() {
    let site = T::serve(vec![HttpLimiter::new(of("3/hour")), HttpLimiter::new(of("10/minute"))]);
    let answer = site.get("/").fetch().await;
    assert_eq!(answer.standing(), "200 3-2-3600");
    assert_eq!(answer.body, "store minute 1/10 < store hour 1/3");
}

pub(super) async fn the_stricter_numbers_survive_from_inside<T: Target>() {
    let site = T::serve(vec![HttpLimiter::new(of("10/minute")), HttpLimiter::new(of("3/hour"))]);
    let answer = site.get("/").fetch().await;
    assert_eq!(answer.standing(), "200 3-2-3600");
    assert_eq!(answer.body, "store hour 1/3 < store minute 1/10");
}

pub(super) async fn an_inner_denial_is_not_overwritten<T: Target>() {
    let limiters = ["9/second", "1/hour"].map(|limit| HttpLimiter::new(of(limit)));
    let site = T::serve(limiters.to_vec());
    assert_eq!(site.get("/").fetch().await.standing(), "200 1-0-3600");
    let denied = site.get("/").fetch().await;
    assert_eq!(denied.standing(), "429 1-0-3600, retry 3600");
    assert!(denied.body.contains("Too many requests: 1 per hour."), "{}", denied.body);
}

pub(super) async fn an_outer_denial_spares_the_inner_limiter<T: Target>() {
    let (outer, inner) = (of("1/minute"), of("9/hour"));
    let site = T::serve(vec![HttpLimiter::new(outer), HttpLimiter::new(inner.clone())]);
    assert_eq!(site.get("/").fetch().await.status, 200);
    for _ in 0..3 {
        assert_eq!(site.get("/").fetch().await.standing(), "429 1-0-60, retry 60");
    }
    assert_eq!(used(&inner).await, 1);
}

pub(super) async fn lists_of_nested_limiters_are_both_sent<T: Target>() {
    let ietf = || Headers::new(HeaderFamily::IetfDraft11).and(HeaderFamily::OpenBank);
    let limiters = ["5/minute", "9/hour"].map(|limit| HttpLimiter::new(of(limit)).headers(ietf()));
    let site = T::serve(limiters.to_vec());
    let expected = [
        r#"ratelimit: "hour";r=8;t=3600"#,
        r#"ratelimit: "minute";r=4;t=60"#,
        r#"ratelimit-policy: "hour";q=9;w=3600"#,
        r#"ratelimit-policy: "minute";q=5;w=60"#,
        "x-rate-limit-limit: 5",
        "x-rate-limit-remaining: 4",
        "x-rate-limit-reset: 60",
    ];
    assert_eq!(site.get("/").fetch().await.limit_lines(), expected);
}

pub(super) async fn each_limiter_charges_once<T: Target>() {
    let limiters = ["9/second", "9/minute", "9/hour"].map(of);
    let site =
        T::serve(limiters.each_ref().map(|limiter| HttpLimiter::new(limiter.clone())).to_vec());
    assert_eq!(site.get("/").fetch().await.status, 200);
    for limiter in &limiters {
        assert_eq!(used(limiter).await, 1);
    }
}

pub(super) async fn the_same_limiter_twice_charges_once<T: Target>() {
    let limiter = of("3/minute");
    let site = T::serve(vec![HttpLimiter::new(limiter.clone()), HttpLimiter::new(limiter.clone())]);
    for standing in ["200 3-2-60", "200 3-1-60", "200 3-0-60", "429 3-0-60, retry 60"] {
        assert_eq!(site.get("/").fetch().await.standing(), standing);
    }
    assert_eq!(used(&limiter).await, 3);
}

pub(super) async fn the_same_limiter_around_another_charges_once<T: Target>() {
    let (limiter, another) = (of("3/minute"), of("9/hour"));
    let limiters = [&limiter, &another, &limiter].map(|limiter| HttpLimiter::new(limiter.clone()));
    let site = T::serve(limiters.to_vec());
    for standing in ["200 3-2-60", "200 3-1-60", "200 3-0-60", "429 3-0-60, retry 60"] {
        assert_eq!(site.get("/").fetch().await.standing(), standing);
    }
    assert_eq!((used(&limiter).await, used(&another).await), (3, 3));
}

/// Fault: two layers of one limiter counted different subjects. The inner layer charged nothing,
/// and allowed 50 requests beyond its limit.
pub(super) async fn the_same_limiter_charges_each_subject_once<T: Target>() {
    let policy = |max| Policy::new([Limit::per_hour(max)]).unwrap();
    let policies = ByRealm::with_default(policy(100)).with(Realm::Consumer, policy(3));
    let limiter = RateLimiter::builder().policies(policies).build().unwrap();
    // The third layer counts the same subject as the first; the layer between them counts another
    // subject.
    let of_consumer = |key: &'static str| {
        HttpLimiter::new(limiter.clone()).key(move |request: &dyn RequestInfo| match key {
            "address" => Ok(Some(Subject::ip([127, 0, 0, 1]))),
            _ => Ok(T::extension::<Subject>(request).cloned()),
        })
    };
    let site = T::serve(["address", "consumer", "address"].map(of_consumer).to_vec());
    let of = |consumer: &str| site.get("/").header("x-consumer", consumer);
    for status in [200, 200, 200, 429, 429] {
        assert_eq!(of("alice").fetch().await.status, status);
    }
    assert_eq!(of("bob").fetch().await.status, 200);
    assert_eq!((used(&limiter).await, site.handled()), (6, 4));
}

pub(super) async fn outer_layers_see_the_stricter_decision_if_it_is_exposed<T: Target>() {
    for limits in [["3/minute", "9/hour"], ["9/hour", "3/minute"]] {
        let limiters = limits.map(|limit| HttpLimiter::new(of(limit)));
        let hiding = T::serve(limiters.to_vec());
        assert_eq!(hiding.get("/").fetch().await.header("x-outer-sees"), None);
        let [outer, inner] = limiters;
        let site = T::serve(vec![outer.expose_decision(), inner]);
        for used in 2..=3 {
            let seen = format!("store minute {used}/3");
            assert_eq!(site.get("/").fetch().await.header("x-outer-sees"), Some(seen.as_str()));
        }
        let denied = site.get("/").fetch().await;
        assert_eq!((denied.status, denied.header("x-outer-sees")), (429, Some("store minute 3/3")));
    }
}

/// A handler adds 400 units to its cost. Every metered limiter around it is charged 401 units. The
/// limiter that is not metered is charged one unit.
pub(super) async fn a_cost_reaches_every_metered_limiter_around_the_handler<T: Target>() {
    let [outer, inner, other] = ["9000/hour", "5000/hour", "100/hour"].map(of);
    let limiters = vec![
        HttpLimiter::new(outer.clone()).metered(),
        HttpLimiter::new(other.clone()).refund_if(|response| response.status() >= 500),
        HttpLimiter::new(inner.clone()).metered(),
    ];
    let site = T::serve(limiters);
    assert_eq!(site.get("/costs/400").fetch().await.status, 200);
    eventually(|| async { used(&outer).await == 401 && used(&inner).await == 401 }).await;
    assert_eq!(used(&other).await, 1);
    assert_eq!(site.get("/fails").fetch().await.status, 500);
    eventually(|| async { used(&other).await == 1 }).await;
    assert_eq!((used(&outer).await, used(&inner).await), (402, 402));
}

pub(super) async fn a_request_is_degraded_by_a_limiter_around_another<T: Target>() {
    let limiters = vec![
        HttpLimiter::new(of("1/hour")).on_over_limit(OverLimit::Degrade),
        HttpLimiter::new(of("9/hour")).metered().response_cost(|_| Some(Cost::new(3))),
    ];
    let site = T::serve(limiters);
    assert_eq!(site.get("/").fetch().await.body, "store hour 1/9 < store hour 1/1");
    let degraded = site.get("/").fetch().await;
    assert!(degraded.body.starts_with("degraded store hour "), "{}", degraded.body);
    assert_eq!(degraded.status, 200);
}
