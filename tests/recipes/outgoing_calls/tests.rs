use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::get;
use futures::FutureExt;
use futures::future::join_all;
use rl_core::RetryAfter;
use rl_core::observe::{DecisionEvent, Observer};
use rl_core::time::{Clock, Timestamp, TokioClock};
use rl_core::{Limit, MemoryStore, RateLimiter, Subject};
use rl_tests::web::{self, client, new_year};
use tokio::time::Instant;

use super::{AT_MOST, Partner, RETRY_AFTER, StatusCode};
use crate::recipes::COOKBOOK;

const SECOND: Duration = Duration::from_secs(1);

/// The limits in the table of the cookbook.
const LIMITS: [&str; 6] = [
    "10/second",
    "10/second:token-bucket",
    "10/second:sliding-log",
    "9/second:sliding-log",
    "10/second:gcra:burst=1",
    "9/second:gcra:burst=1",
];

/// Returns the times of calls that are sent as soon as the limit allows them. There is one call at
/// first, none for the time of `idle`, and then always one that waits.
fn sent_after(idle: Duration, limit: Limit) -> Vec<Timestamp> {
    let clock = new_year();
    let store = MemoryStore::builder().clock(Arc::clone(&clock)).build();
    let limiter = RateLimiter::builder().limit(limit).store(store).build().unwrap();
    let partner = Subject::global();
    let decide = || limiter.check(&partner, 1).now_or_never().expect("a decision in memory");

    assert!(decide().is_allowed());
    let mut sent = vec![clock.now()];
    clock.advance(idle);
    while sent.len() < 50 {
        let decision = decide();
        match decision.retry_after() {
            RetryAfter::Now => sent.push(clock.now()),
            RetryAfter::In(wait) => clock.advance(wait),
            RetryAfter::Never => panic!("{decision:?}"),
        }
    }
    sent
}

/// Returns the largest number of times in any span of this length.
fn most_in(span: Duration, times: &[Timestamp]) -> usize {
    let in_span = |from: &Timestamp| {
        let end = from.plus_micros(Timestamp::from(span).as_micros());
        times.iter().filter(|time| (*from..end).contains(*time)).count()
    };
    times.iter().map(in_span).max().unwrap_or_default()
}

/// A call that is sent at `t` arrives between `t` and `t` + 5 ms. So calls that arrive within
/// a second may have been sent within 1005 ms.
#[test]
fn the_table_of_the_cookbook_states_the_most_calls_in_a_second() {
    let jitter = Duration::from_millis(5);
    let mut table = String::new();
    for limit in LIMITS {
        let parsed: Limit = limit.parse().unwrap();
        let (mut sent, mut seen) = (0, 0);
        for idle in (0..1_000).step_by(9) {
            let times = sent_after(Duration::from_millis(idle), parsed);
            sent = sent.max(most_in(SECOND, &times));
            seen = seen.max(most_in(SECOND + jitter, &times));
        }
        table += &format!("| `{limit}` | {sent} | {seen} |\n");
    }
    assert!(COOKBOOK.contains(&table), "the cookbook does not contain:\n{table}");
}

/// Records the times of the decisions that allow a call.
#[derive(Clone, Debug, Default)]
struct Decided(Arc<Mutex<Vec<Timestamp>>>);

impl Observer for Decided {
    fn decided(&self, event: &DecisionEvent<'_>) {
        if event.decision.is_allowed() {
            self.0.lock().unwrap().push(event.decision.at());
        }
    }
}

fn partner(limit: &str, clock: TokioClock, decided: Decided) -> Partner {
    let store = MemoryStore::builder().clock(clock).build();
    let limiter = RateLimiter::builder().limit(limit.parse().unwrap()).store(store);
    let limiter = limiter.observer(decided).build().unwrap();
    Partner { limiter, paused_until: Mutex::new(Instant::now()) }
}

/// The store's clock decides when a call may be sent. It arrives later, by a delay that depends on
/// the machine. If no delay is longer than `d`, eleven calls arrive in no less than a period minus
/// `d`. This holds on every machine.
#[tokio::test]
async fn a_partner_on_http_sees_at_most_its_limit_in_any_period() {
    const CALLS: usize = 30;
    let (clock, decided) = (TokioClock::new(), Decided::default());
    let partner = partner("10/100ms:gcra:burst=1", clock, decided.clone());
    let period = Duration::from_millis(100);

    let arrivals = Arc::<Mutex<Vec<Timestamp>>>::default();
    let record = {
        let arrivals = Arc::clone(&arrivals);
        async move || arrivals.lock().unwrap().push(clock.now())
    };
    let site = web::axum::serve(Router::new().route("/", get(record)));
    let (url, client) = (site.url("/"), client());
    let responses = join_all((0..CALLS).map(|_| partner.get(&client, &url))).await;
    assert!(responses.iter().all(|response| response.as_ref().unwrap().status().is_success()));

    let (decided, mut arrived) =
        (decided.0.lock().unwrap().clone(), arrivals.lock().unwrap().clone());
    arrived.sort_unstable();
    assert_eq!((decided.len(), arrived.len()), (CALLS, CALLS));
    assert!(most_in(period, &decided) <= 10, "{decided:?}");

    let delays = decided.iter().zip(&arrived);
    let delays = delays.map(|(sent, arrived)| {
        assert!(arrived >= sent, "no call arrives before it is allowed");
        Duration::from_micros(arrived.micros_since(*sent))
    });
    let longest = delays.max().unwrap();
    assert!(most_in(period.saturating_sub(longest), &arrived) <= 10, "{longest:?} {arrived:?}");
}

#[tokio::test]
async fn a_call_that_the_partner_rejects_is_sent_again_after_its_retry_after() {
    let partner = Partner::new("acme", Limit::per_second(100), MemoryStore::new()).unwrap();
    let arrivals = Arc::<Mutex<Vec<Instant>>>::default();
    let reject_first = {
        let arrivals = Arc::clone(&arrivals);
        async move || {
            let mut arrivals = arrivals.lock().unwrap();
            arrivals.push(Instant::now());
            match arrivals.len() {
                1 => (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")]).into_response(),
                _ => StatusCode::OK.into_response(),
            }
        }
    };
    let site = web::axum::serve(Router::new().route("/", get(reject_first)));
    let response = partner.get(&client(), &site.url("/")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let arrivals = arrivals.lock().unwrap();
    assert_eq!(arrivals.len(), 2);
    assert!(arrivals[1] - arrivals[0] >= SECOND, "{arrivals:?}");
}

#[tokio::test]
async fn a_call_that_the_partner_always_rejects_is_an_error() {
    let partner = Partner::new("acme", Limit::per_second(100), MemoryStore::new()).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let reject = {
        let calls = Arc::clone(&calls);
        async move || {
            calls.fetch_add(1, Ordering::SeqCst);
            (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "0")])
        }
    };
    let site = web::axum::serve(Router::new().route("/", get(reject)));
    let error = partner.get(&client(), &site.url("/")).await.unwrap_err();
    assert_eq!(error.to_string(), "the partner rejected the call three times");
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_for_calls_that_wait_already() {
    let partner = partner("10/second:gcra:burst=1", TokioClock::new(), Decided::default());
    let sent = Mutex::new(Vec::new());
    join_all((0..20).map(async |_| {
        partner.wait_for_turn().await.unwrap();
        let mut sent = sent.lock().unwrap();
        sent.push(Instant::now());
        if sent.len() == 6 {
            partner.pause(10 * SECOND);
            partner.pause(SECOND); // does not shorten the pause
        }
    }))
    .await;
    let sent = sent.into_inner().unwrap();
    assert_eq!(sent.len(), 20);
    assert!(sent[6] - sent[5] >= 10 * SECOND, "{sent:?}");
    let between = sent.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(between.min().unwrap() >= SECOND / 10, "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_would_wait_too_long_is_an_error_at_once() {
    let begin = Instant::now();
    let partner = partner("1/minute:gcra:burst=1", TokioClock::new(), Decided::default());
    partner.wait_for_turn().await.unwrap();
    partner.wait_for_turn().await.unwrap_err();
    partner.pause(AT_MOST + SECOND);
    partner.wait_for_turn().await.unwrap_err();
    partner.pause(Duration::MAX);
    partner.wait_for_turn().await.unwrap_err();
    assert_eq!(begin.elapsed(), Duration::ZERO);
}
