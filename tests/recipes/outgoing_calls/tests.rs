use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::get;
use futures::FutureExt;
use futures::future::join_all;
use http::header::RETRY_AFTER;
use rl_core::observe::{DecisionEvent, Observer};
use rl_core::time::{Clock, SystemClock, Timestamp};
use rl_core::{MemoryStore, RetryAfter, Subject};
use rl_tests::web::{self, Site, client, new_year};
use rl_tests::{RedisServer, connected};
use tokio::time::Instant;

use super::*;
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

/// The clock of the stores and of the partner is that of this machine. A call arrives after its
/// decision, by a delay that depends on the machine. If no delay is longer than `d`, eleven calls
/// arrive in no less than a period minus `d`. This holds on every machine.
async fn a_partner_sees_at_most_its_limit(stores: [Arc<dyn Store>; 2]) {
    const CALLS: usize = 50;
    let (limit, period) = ("10/100ms:gcra:burst=1", Duration::from_millis(100));
    let arrivals = Arc::<Mutex<Vec<Timestamp>>>::default();
    let record = {
        let arrivals = Arc::clone(&arrivals);
        async move || arrivals.lock().unwrap().push(SystemClock.now())
    };
    let site = web::axum::serve(Router::new().route("/", get(record)));
    let (url, decided) = (site.url("/"), Decided::default());
    let instances = stores.map(|store| {
        let limiter = RateLimiter::builder().limit(limit.parse().unwrap()).store(store);
        let limiter = limiter.deadline(30 * SECOND).observer(decided.clone());
        paced(client(), limiter.build().unwrap())
    });
    let calls = (0..CALLS).map(|call| super::get(&instances[call % 2], &url));
    for response in join_all(calls).await {
        assert!(response.unwrap().status().is_success());
    }
    let mut decided = decided.0.lock().unwrap().clone();
    let mut arrived = arrivals.lock().unwrap().clone();
    decided.sort_unstable();
    arrived.sort_unstable();
    assert_eq!((decided.len(), arrived.len()), (CALLS, CALLS));
    assert!(most_in(period, &decided) <= 10, "{decided:?}");
    let delays = decided.iter().zip(&arrived);
    let delays = delays.map(|(sent, arrived)| Duration::from_micros(arrived.micros_since(*sent)));
    let longest = delays.max().unwrap();
    assert!(most_in(period.saturating_sub(longest), &arrived) <= 10, "{longest:?} {arrived:?}");
}

#[tokio::test]
async fn a_partner_sees_at_most_its_limit_from_one_instance_and_from_two_over_redis() {
    let in_memory = Arc::new(MemoryStore::new());
    a_partner_sees_at_most_its_limit([in_memory.clone(), in_memory]).await;
    let server = RedisServer::start();
    let [one, other] = [connected(server.patient_store()), connected(server.patient_store())];
    a_partner_sees_at_most_its_limit([Arc::new(one.await), Arc::new(other.await)]).await;
}

/// Serves a partner that answers the call with the number `n` by `answer(n)`, and returns the times
/// of the calls.
fn partner<T: IntoResponse + 'static>(
    answer: impl Fn(usize) -> T + Clone + Send + Sync + 'static,
) -> (Site, Arc<Mutex<Vec<Instant>>>) {
    let arrivals = Arc::<Mutex<Vec<Instant>>>::default();
    let times = Arc::clone(&arrivals);
    let handler = async move || {
        let mut times = times.lock().unwrap();
        times.push(Instant::now());
        answer(times.len())
    };
    (web::axum::serve(Router::new().route("/", get(handler))), arrivals)
}

#[tokio::test]
async fn a_call_that_the_partner_rejects_is_sent_again_after_its_retry_after() {
    let limiter = limiter(Limit::per_second(100), MemoryStore::new()).unwrap();
    let (site, arrivals) = partner(|call| match call {
        1 => (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")]).into_response(),
        _ => StatusCode::OK.into_response(),
    });
    let response = super::get(&paced(client(), limiter), &site.url("/")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let arrivals = arrivals.lock().unwrap();
    assert_eq!(arrivals.len(), 2);
    assert!(arrivals[1] - arrivals[0] >= SECOND, "{arrivals:?}");
}

#[tokio::test]
async fn a_call_that_the_partner_always_rejects_is_an_error() {
    let limiter = limiter(Limit::per_second(100), MemoryStore::new()).unwrap();
    let (site, arrivals) = partner(|_| (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "0")]));
    let error = super::get(&paced(client(), limiter), &site.url("/")).await.unwrap_err();
    assert_eq!(error.to_string(), "the partner rejected the call three times");
    assert_eq!(arrivals.lock().unwrap().len(), 3);
}
