//! Response headers: families of fields, and the limit that they describe.

use std::time::Duration;

use rl_core::adapter::HttpLimiter;
use rl_core::denial::DenialBody;
use rl_core::headers::{HeaderFamily, Headers};
use rl_core::key::{Identified, KeyExtractor};
use rl_core::source::ByRealm;
use rl_core::{GoverningLimit, Limit, Policy, RateLimiter, Realm};
use rl_tests::web::{Fetch, Site, Target, limiter, new_year};

/// Returns a site 18 seconds after the beginning of a minute, in which 26 of 100 requests are used.
/// The first request of the test is the 27th.
async fn the_worked_example<T: Target>(headers: Headers) -> Site {
    let clock = new_year();
    let limiter = limiter(&clock, &["100/minute"]);
    limiter.check(&rl_core::Subject::ip([127, 0, 0, 1]), 26).await;
    clock.advance(Duration::from_secs(18));
    T::serve(vec![HttpLimiter::new(limiter).headers(headers)])
}

pub(super) async fn each_family_has_its_own_fields<T: Target>() {
    use HeaderFamily::*;

    // The time is 18 seconds into the first minute of 2026, which ends at 1767225660.
    let families: [(_, &[&str]); 10] = [
        (
            OpenBank,
            &["x-rate-limit-limit: 100", "x-rate-limit-remaining: 73", "x-rate-limit-reset: 42"],
        ),
        (
            GitHub,
            &[
                "x-ratelimit-limit: 100",
                "x-ratelimit-remaining: 73",
                "x-ratelimit-reset: 1767225660",
                "x-ratelimit-resource: core",
                "x-ratelimit-used: 27",
            ],
        ),
        (
            IetfDraft11,
            &[r#"ratelimit: "minute";r=73;t=42"#, r#"ratelimit-policy: "minute";q=100;w=60"#],
        ),
        (
            IetfDraft07,
            &["ratelimit: limit=100, remaining=73, reset=42", "ratelimit-policy: 100;w=60"],
        ),
        (
            IetfDraft06,
            &[
                "ratelimit-limit: 100",
                "ratelimit-policy: 100;w=60",
                "ratelimit-remaining: 73",
                "ratelimit-reset: 42",
            ],
        ),
        (
            IetfDraft03,
            &["ratelimit-limit: 100, 100;w=60", "ratelimit-remaining: 73", "ratelimit-reset: 42"],
        ),
        (
            Envoy,
            &[
                r#"x-ratelimit-limit: 100, 100;w=60;name="minute""#,
                "x-ratelimit-remaining: 73",
                "x-ratelimit-reset: 42",
            ],
        ),
        (
            Legacy,
            &[
                "x-ratelimit-limit: 100",
                "x-ratelimit-remaining: 73",
                "x-ratelimit-reset: 1767225660",
            ],
        ),
        (
            Twitter,
            &[
                "x-rate-limit-limit: 100",
                "x-rate-limit-remaining: 73",
                "x-rate-limit-reset: 1767225660",
            ],
        ),
        (
            Zuul,
            &["x-ratelimit-limit: 100", "x-ratelimit-remaining: 73", "x-ratelimit-reset: 60000"],
        ),
    ];
    for (family, expected) in families {
        let site = the_worked_example::<T>(Headers::new(family)).await;
        assert_eq!(site.get("/").fetch().await.limit_lines(), expected, "{family:?}");
    }
}

pub(super) async fn several_families_are_sent_in_one_response<T: Target>() {
    let both = Headers::default().and(HeaderFamily::IetfDraft11).and(HeaderFamily::GitHub);
    let site = the_worked_example::<T>(both).await;
    let expected = [
        r#"ratelimit: "minute";r=73;t=42"#,
        r#"ratelimit-policy: "minute";q=100;w=60"#,
        "x-rate-limit-limit: 100",
        "x-rate-limit-remaining: 73",
        "x-rate-limit-reset: 42",
        "x-ratelimit-limit: 100",
        "x-ratelimit-remaining: 73",
        "x-ratelimit-reset: 1767225660",
        "x-ratelimit-resource: core",
        "x-ratelimit-used: 27",
    ];
    assert_eq!(site.get("/").fetch().await.limit_lines(), expected);
}

/// Scripts in browsers can read only the fields that a CORS layer exposes by name. So `expose_list`
/// must name exactly the fields that a denial writes.
pub(super) async fn the_written_headers_are_those_that_cors_can_expose<T: Target>() {
    for headers in [
        Headers::default().and(HeaderFamily::IetfDraft11).and(HeaderFamily::GitHub),
        Headers::new(HeaderFamily::IetfDraft06),
        Headers::none(),
    ] {
        let mut exposed: Vec<String> =
            headers.expose_list().split(", ").map(String::from).collect();
        exposed.sort_unstable();
        let http = HttpLimiter::new(limiter(&new_year(), &["1/minute", "1/hour:shadow"]));
        let http = http.headers(headers);
        let site = T::serve(vec![http]);
        site.get("/").fetch().await;
        let denied = site.get("/").fetch().await;
        let lines = denied.limit_lines();
        let names: Vec<_> = lines.iter().map(|line| line.split(':').next().unwrap()).collect();
        assert_eq!((denied.status, names), (429, exposed.iter().map(String::as_str).collect()));
    }
}

pub(super) async fn without_a_family_only_a_denial_tells<T: Target>() {
    let http = HttpLimiter::new(limiter(&new_year(), &["1/minute"])).headers(Headers::none());
    let site = T::serve(vec![http]);
    assert_eq!(site.get("/").fetch().await.limit_lines(), [""; 0]);
    assert_eq!(site.get("/").fetch().await.limit_lines(), ["retry-after: 60"]);
}

/// Returns a site with limits of 10 per second, 100 per minute and 1 000 per hour. The limit per
/// minute has one unit left, and its window ends in 49 seconds.
async fn one_left_of_the_minute<T: Target>(follow: GoverningLimit) -> Site {
    let clock = new_year();
    let limiter = limiter(&clock, &["10/second", "100/minute", "1000/hour"]);
    let site = T::serve(vec![
        HttpLimiter::new(limiter).headers(Headers::default().with_governing_limit(follow)),
    ]);
    for _ in 0..11 {
        for _ in 0..9 {
            assert_eq!(site.get("/").fetch().await.status, 200);
        }
        clock.advance(Duration::from_secs(1));
    }
    site
}

pub(super) async fn the_shortest_active_limit_is_shown<T: Target>() {
    let site = one_left_of_the_minute::<T>(GoverningLimit::ShortestActive).await;
    assert_eq!(site.get("/").fetch().await.standing(), "200 10-9-1");
    assert_eq!(site.get("/").fetch().await.standing(), "429 100-0-49, retry 49");
}

pub(super) async fn the_limit_with_the_fewest_left_is_shown_if_set<T: Target>() {
    let site = one_left_of_the_minute::<T>(GoverningLimit::FewestRemaining).await;
    assert_eq!(site.get("/").fetch().await.standing(), "200 100-0-49");
    assert_eq!(site.get("/").fetch().await.standing(), "429 100-0-49, retry 49");
}

/// Fault: the default message named the shortest limit beside the wait of the longest one.
pub(super) async fn a_message_names_the_limit_of_its_wait_or_that_of_the_headers<T: Target>() {
    let (shortest, fewest) = (GoverningLimit::ShortestActive, GoverningLimit::FewestRemaining);
    let (second, hour) = ("429 2-0-1, retry 3600", "429 2-0-3600, retry 3600");
    for (body, follow, standing, period) in [
        (DenialBody::json(), shortest, second, "2 per hour. Try again in 3600 seconds."),
        (DenialBody::json(), fewest, hour, "2 per hour. Try again in 3600 seconds."),
        (DenialBody::open_bank(), shortest, second, "per second"),
        (DenialBody::open_bank(), fewest, hour, "per hour"),
    ] {
        let limiter = limiter(&new_year(), &["2/second", "2/hour"]);
        let headers = Headers::default().with_governing_limit(follow);
        let site = T::serve(vec![HttpLimiter::new(limiter).headers(headers).denial_body(body)]);
        site.get("/").fetch().await;
        site.get("/").fetch().await;
        let denied = site.get("/").fetch().await;
        assert_eq!(denied.standing(), standing, "{follow:?}");
        assert!(denied.body.contains(period), "{follow:?}: {}", denied.body);
    }
}

pub(super) async fn a_limiter_that_is_switched_off_leaves_no_trace<T: Target>() {
    let limiter = RateLimiter::builder().limit(Limit::per_day(0)).enabled(false).build().unwrap();
    let site = T::serve(vec![HttpLimiter::new(limiter)]);
    let answer = site.get("/").fetch().await;
    assert_eq!(
        (answer.status, answer.limit_lines(), answer.body.as_str()),
        (200, vec![], "disabled")
    );
}

pub(super) async fn a_subject_without_limits_gets_no_headers<T: Target>() {
    let one = Policy::new([Limit::per_minute(1)]).unwrap();
    let policies = ByRealm::with_default(one).unlimited(Realm::Consumer);
    let limiter = RateLimiter::builder().policies(policies).build().unwrap();
    let key = Identified.or(rl_core::key::ClientAddress::default());
    let site = T::serve(vec![HttpLimiter::new(limiter).key(key)]);
    for _ in 0..3 {
        let answer = site.get("/").header("x-consumer", "a partner").fetch().await;
        assert_eq!((answer.standing().as_str(), answer.body.as_str()), ("200", "unlimited"));
    }
    assert_eq!(site.get("/").fetch().await.status, 200);
    assert_eq!(site.get("/").fetch().await.status, 429);
}

pub(super) async fn a_blocked_subject_gets_no_retry_after<T: Target>() {
    let http = HttpLimiter::new(limiter(&new_year(), &["0/minute"]));
    let site = T::serve(vec![http.headers(Headers::default().and(HeaderFamily::IetfDraft11))]);
    let expected = [
        r#"ratelimit: "minute";r=0"#,
        r#"ratelimit-policy: "minute";q=0;w=60"#,
        "x-rate-limit-limit: 0",
        "x-rate-limit-remaining: 0",
    ];
    let denied = site.get("/").fetch().await;
    assert_eq!(
        (denied.status, denied.limit_lines(), site.handled()),
        (429, expected.map(String::from).to_vec(), 0)
    );
}
