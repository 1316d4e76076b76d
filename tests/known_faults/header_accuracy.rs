//! Faults T14 to T17 of `README.md`: headers that contradict the decision.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rl_core::adapter::HttpLimiter;
use rl_core::headers::{HeaderFamily, Headers};
use rl_core::time::ManualClock;
use rl_core::{GoverningLimit, Subject};
use rl_tests::web::{Answer, Axum, Fetch, Site, Target, limiter, new_year};

/// Returns the subject of the client in these tests.
fn caller() -> Subject {
    Subject::ip([127, 0, 0, 1])
}

/// Returns a site with these limits. Its responses list all of them, and describe one of them in
/// the fields that have room for one limit.
fn site(limits: &[&str], follow: GoverningLimit) -> (Site, Arc<ManualClock>) {
    let clock = new_year();
    let headers = Headers::new(HeaderFamily::IetfDraft11)
        .and(HeaderFamily::OpenBank)
        .with_governing_limit(follow);
    (Axum::serve(vec![HttpLimiter::new(limiter(&clock, limits)).headers(headers)]), clock)
}

/// Parses the fields that list all limits. Returns for each limit its quota, its remaining units,
/// and the seconds until its reset.
fn listed(answer: &Answer) -> Vec<[String; 3]> {
    let number = |text: &str| text.split('=').nth(1).unwrap_or_default().to_owned();
    let of = |name| answer.header(name).unwrap().split(", ").map(|item| item.split(';'));
    let policies = of("ratelimit-policy").map(|mut item| item.nth(1).map(number).unwrap());
    let standings = of("ratelimit").map(|mut item| {
        item.next();
        [item.next(), item.next()].map(|part| part.map(number).unwrap_or_default())
    });
    policies.zip(standings).map(|(quota, [left, reset])| [quota, left, reset]).collect()
}

/// Returns the fields that describe one limit.
fn single(answer: &Answer) -> [String; 3] {
    ["limit", "remaining", "reset"]
        .map(|name| answer.header(&format!("x-rate-limit-{name}")).unwrap().to_owned())
}

/// Some limiters take the fields from different limits: the max of one, the remaining units of
/// another, and a reset computed from both. Such a limit does not exist.
#[tokio::test]
async fn t14_the_fields_describe_one_limit() {
    for follow in [GoverningLimit::ShortestActive, GoverningLimit::FewestRemaining] {
        let (site, clock) = site(&["7/second", "20/minute", "25/hour"], follow);
        let mut denials = 0;
        for n in 0..60 {
            let answer = site.get("/").fetch().await;
            let (one, all) = (single(&answer), listed(&answer));
            assert!(all.contains(&one), "{follow:?}, request {n}: {one:?} is none of {all:?}");
            denials += u32::from(answer.status == 429);
            clock.advance(Duration::from_millis(137 * (n % 5)));
        }
        assert!((1..60).contains(&denials), "{denials}");
    }
}

/// A response describes one limit. If that is the one with the fewest remaining units, a limit per
/// second nearly always hides a limit per month. If a denial reports the wait of the first limit
/// that denies, another limit denies the retry.
#[tokio::test]
async fn t15_a_denial_reports_the_longest_wait_of_the_limits_that_deny() {
    for (follow, denied) in [
        (GoverningLimit::ShortestActive, "429 2-0-1, retry 2591999"),
        (GoverningLimit::FewestRemaining, "429 3-0-2591999, retry 2591999"),
    ] {
        let (site, clock) = site(&["2/second", "3/month", "100/day"], follow);
        assert_eq!(site.get("/").fetch().await.status, 200);
        clock.advance(Duration::from_secs(1));
        site.get("/").fetch().await;
        site.get("/").fetch().await;
        // The limits per second and per month are used up, but the limit per day is not.
        let answer = site.get("/").fetch().await;
        assert_eq!(answer.standing(), denied, "{follow:?}");
        clock.advance(Duration::from_secs(2_591_998));
        assert_eq!(site.get("/").fetch().await.status, 429);
        clock.advance(Duration::from_secs(1));
        assert_eq!(site.get("/").fetch().await.status, 200);
    }
}

/// If seconds are rounded down, the client retries too early. In the last second it retries
/// immediately: `Retry-After: 0` is a busy loop.
#[tokio::test]
async fn t16_a_client_that_waits_for_retry_after_is_served() {
    let (site, clock) = site(&["1/second", "3/4321ms"], GoverningLimit::default());
    let mut waits = BTreeSet::new();
    for n in 0..400_u64 {
        // The pauses are up to a second long, and are not aligned with the windows.
        clock.advance(Duration::from_micros(n * 7_919_017 % 1_000_003));
        let answer = site.get("/").fetch().await;
        if answer.status == 429 {
            let wait = answer.header("retry-after").unwrap().parse().unwrap();
            waits.insert(wait);
            clock.advance(Duration::from_secs(wait));
            assert_eq!(site.get("/").fetch().await.status, 200, "after {wait} s");
        }
    }
    assert_eq!(waits, BTreeSet::from([1, 2, 3]));
}

/// Other limiters reported a constant, the used units instead of the remaining ones, or too many
/// remaining units. No test compared their headers with the count.
#[tokio::test]
async fn t17_the_reported_remaining_units_are_those_that_are_granted() {
    let clock = new_year();
    let limiter = limiter(&clock, &["13/minute"]);
    let site = Axum::serve(vec![HttpLimiter::new(limiter.clone())]);
    for used in [1, 3, 4, 2] {
        // Each round uses `used` units of the client: all but one here, and one by the request to
        // the site.
        limiter.check(&caller(), used - 1).await;
        let answer = site.get("/").fetch().await;
        let left = limiter.usage(&caller()).await.unwrap().limits().next().unwrap().remaining();
        assert_eq!(answer.standing(), format!("200 13-{left}-60"));
    }
    for left in [2, 1, 0] {
        assert_eq!(site.get("/").fetch().await.standing(), format!("200 13-{left}-60"));
    }
    assert_eq!(site.get("/").fetch().await.status, 429);

    // After a use beyond the limit, the remaining units are 0, neither negative nor a huge number.
    limiter.request(&caller()).cost(50).charge().await;
    assert_eq!(site.get("/").fetch().await.standing(), "429 13-0-60, retry 60");
}
