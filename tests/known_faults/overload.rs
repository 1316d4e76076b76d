//! A flood beyond the capacity of the store or the source of policies, while one client is denied.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rl_core::source::{PolicyFuture, PolicySource};
use rl_core::store::{
    DecideRequest, LeaseStatus, Mode, Namespace, Part, Renewal, Reset, Settlement, Store,
    StoreFuture,
};
use rl_core::time::{Clock, ManualClock, Timestamp};
use rl_core::{
    Cost, Decision, FailureKind, Limit, MaybeReady, MemoryStore, OnFailure, Origin, Policy,
    RateLimiter, RateLimiterBuilder, Realm, RedisStore, RetryAfter, Share, StoreError, Subject,
};
use rl_tests::RedisServer;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, advance, timeout};

use super::GIVE_UP;
use crate::redis::failure::log::Log;

/// Lets this time pass on tokio's paused clock, which only advances while all tasks wait.
async fn pass(time: Duration) {
    let _ = timeout(time, std::future::pending::<()>()).await;
}

/// Tokio's paused clock, which only advances while all tasks wait.
#[derive(Debug)]
struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> Timestamp {
        Timestamp::from(Duration::from_secs(1_000_000) + self.0.elapsed())
    }
}

/// A store that decides a fixed number of requests in each millisecond, in order of arrival. Other
/// requests wait.
#[derive(Debug)]
struct SlowStore {
    memory: MemoryStore<Paused>,
    per_milli: AtomicUsize,
    queue: Mutex<VecDeque<Queued>>,
}

#[derive(Debug)]
struct Queued {
    namespace: Namespace,
    subject: Subject,
    policy: Policy,
    mode: Mode,
    cost: Cost,
    reply: oneshot::Sender<Decision>,
}

impl SlowStore {
    /// Starts a store that decides until the runtime of the test ends.
    fn start(per_milli: usize) -> Arc<Self> {
        let memory = MemoryStore::builder().clock(Paused(Instant::now())).build();
        let (per_milli, queue) = (AtomicUsize::new(per_milli), Mutex::default());
        let store = Arc::new(Self { memory, per_milli, queue });
        let server = Arc::clone(&store);
        tokio::spawn(async move {
            loop {
                pass(Duration::from_millis(1)).await;
                for _ in 0..server.per_milli.load(Ordering::SeqCst) {
                    let Some(next) = server.queue.lock().unwrap().pop_front() else { break };
                    let Queued { namespace, subject, policy, mode, cost, reply } = next;
                    let (namespace, subject, policy) = (&namespace, &subject, &policy);
                    let parts = [Part::new(subject, policy, cost)];
                    let request = DecideRequest::new(namespace, &parts, mode);
                    // Decides the request even if its caller has stopped waiting, as a real server
                    // does.
                    let _ = reply.send(server.memory.decide(request).await.unwrap());
                }
            }
        });
        store
    }
}

impl Store for SlowStore {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        let (reply, answer) = oneshot::channel();
        let part = request.sole_part().unwrap();
        self.queue.lock().unwrap().push_back(Queued {
            namespace: request.namespace.clone(),
            subject: part.subject.clone(),
            policy: part.policy.clone(),
            mode: request.mode,
            cost: part.cost,
            reply,
        });
        MaybeReady::later(async move {
            answer.await.map_err(|_| StoreError::new(FailureKind::Unavailable))
        })
    }

    fn settle(&self, settlements: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        self.memory.settle(settlements)
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        self.memory.renew(renewal)
    }

    fn reset(&self, resets: &[Reset<'_>]) -> StoreFuture<()> {
        self.memory.reset(resets)
    }
}

fn five_per_hour(store: impl Store) -> RateLimiterBuilder {
    RateLimiter::builder().limit(Limit::per_hour(5)).store(store)
}

/// The results of a flood: the numbers of its requests by their outcome, and the number of allowed
/// requests of a client that had been denied before.
#[derive(Debug, Default)]
struct Outcome {
    decided: usize,
    overloaded: usize,
    open: usize,
    other: usize,
    passed_denied: usize,
}

/// Runs a flood for this time. Each of `clients` sends a request for a new subject 20 ms after its
/// last response. Meanwhile a denied client sends a request every 5 ms.
async fn flood(limiter: &RateLimiter, clients: usize, time: Duration) -> Outcome {
    let guesser = Subject::ip([192, 0, 2, 7]);
    while limiter.check(&guesser, 1).await.is_allowed() {}

    let (end, outcome) = (Instant::now() + time, Arc::new(Mutex::new(Outcome::default())));
    let mut flood = JoinSet::new();
    for client in 0..clients {
        let (limiter, outcome) = (limiter.clone(), Arc::clone(&outcome));
        flood.spawn(async move {
            for request in 0.. {
                if Instant::now() >= end {
                    return;
                }
                let invented = Subject::new(Realm::Ip, &format!("{client}-{request}"));
                let decision = limiter.check(&invented, 1).await;
                {
                    let mut outcome = outcome.lock().unwrap();
                    match decision.origin() {
                        Origin::Store => outcome.decided += 1,
                        Origin::FailedClosed(FailureKind::Overloaded) => {
                            let second = RetryAfter::In(Duration::from_secs(1));
                            assert_eq!(decision.retry_after(), second);
                            outcome.overloaded += 1;
                        }
                        Origin::FailedOpen(_) => outcome.open += 1,
                        _ => outcome.other += 1,
                    }
                }
                pass(Duration::from_millis(20)).await;
            }
        });
    }
    let mut passed_denied = 0;
    while Instant::now() < end {
        passed_denied += usize::from(limiter.check(&guesser, 1).await.is_allowed());
        pass(Duration::from_millis(5)).await;
    }
    while let Some(done) = flood.join_next().await {
        done.unwrap();
    }
    let mut outcome = std::mem::take(&mut *outcome.lock().unwrap());
    outcome.passed_denied = passed_denied;
    outcome
}

/// Fault: a flood beyond the capacity of the store opened the breaker, and the failure policy
/// allowed all requests. The number of decided requests collapsed, because the store was busy with
/// requests that had timed out.
#[tokio::test(start_paused = true)]
async fn a_flood_beyond_capacity_does_not_fail_open_and_costs_no_decisions() {
    let (log, _guard) = Log::capture();
    let mut decided = Vec::new();
    for clients in [100, 1_000] {
        let limiter = five_per_hour(SlowStore::start(4)).build().unwrap();
        let outcome = flood(&limiter, clients, Duration::from_secs(3)).await;
        assert_eq!((outcome.open, outcome.other, outcome.passed_denied), (0, 0, 0), "{outcome:?}");
        assert_eq!(outcome.overloaded == 0, clients == 100, "{outcome:?}");
        assert_eq!(limiter.stats().in_flight, 0);
        decided.push(outcome.decided);
    }
    // The store can make 12 000 decisions in three seconds. A hundred clients use all of this
    // capacity. With a thousand clients, the store must still make nearly as many decisions.
    assert!(decided[1] * 10 >= decided[0] * 8, "{decided:?}");
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "no line for each request: {lines:#?}");
    assert!(lines[0].1.starts_with("store overloaded"), "{lines:#?}");
}

#[tokio::test(start_paused = true)]
async fn an_overload_is_logged_once_when_it_begins_and_once_when_it_ends() {
    let (log, _guard) = Log::capture();
    let store = SlowStore::start(4);
    let limiter = five_per_hour(store.clone()).namespace("api").build().unwrap();
    flood(&limiter, 1_000, Duration::from_secs(2)).await;
    for _ in 0..3 {
        // At first, the queue of the store still contains requests that have timed out. The store
        // decides them while these two seconds pass.
        advance(Duration::from_secs(2)).await;
        limiter.check(&Subject::user("alice"), 1).await;
    }
    let lines = log.lines();
    let [(_, begin), (_, end)] = &lines[..] else { panic!("{lines:#?}") };
    assert!(begin.starts_with("store overloaded limiter=\"api\" store=\"store\""), "{begin}");
    assert!(begin.contains("undecided requests are rejected with 503"), "{begin}");
    assert!(end.starts_with("store overload ended limiter=\"api\""), "{end}");
}

/// A paused store does not reply at all. This is an outage, however high the load is.
#[tokio::test(start_paused = true)]
async fn a_store_that_stops_answering_under_load_is_an_outage() {
    let store = SlowStore::start(40);
    let limiter = five_per_hour(store.clone()).build().unwrap();
    let outcome = flood(&limiter, 200, Duration::from_secs(1)).await;
    assert_eq!((outcome.overloaded, outcome.open), (0, 0), "{outcome:?}");
    store.per_milli.store(0, Ordering::SeqCst);
    let alice = Subject::user("alice");
    let timed_out = Origin::FailedOpen(FailureKind::TimedOut);
    for _ in 0..5 {
        assert_eq!(limiter.check(&alice, 1).await.origin(), timed_out);
    }
}

/// Fault: at the start of a flood, the store may not answer for a while. That was taken for an
/// outage, until the first requests were refused.
#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_at_the_start_of_a_flood_is_overloaded() {
    let store = SlowStore::start(40);
    let limiter = five_per_hour(store.clone()).build().unwrap();
    for number in 0..100 {
        let known = Subject::user(&format!("known-{number}"));
        assert_eq!(limiter.check(&known, 1).await.origin(), Origin::Store);
    }
    store.per_milli.store(0, Ordering::SeqCst);
    let mut flood = JoinSet::new();
    for number in 0..1_000 {
        flood.spawn(limiter.check(&Subject::user(&format!("invented-{number}")), 1));
    }
    for decision in flood.join_all().await {
        assert_eq!(decision.origin(), Origin::FailedClosed(FailureKind::Overloaded));
    }
    // If the store still does not answer, it is an outage.
    pass(Duration::from_secs(1)).await;
    let alice = limiter.check(&Subject::user("alice"), 1).await;
    assert_eq!(alice.origin(), Origin::FailedOpen(FailureKind::TimedOut));
}

#[tokio::test(start_paused = true)]
async fn on_overload_decides_requests_during_an_overload() {
    for (on_overload, expected) in [
        (OnFailure::Reject, Origin::FailedClosed(FailureKind::Overloaded)),
        (OnFailure::Allow, Origin::FailedOpen(FailureKind::Overloaded)),
        (OnFailure::Fallback, Origin::Fallback(FailureKind::Overloaded)),
    ] {
        let limiter = five_per_hour(SlowStore::start(0)).max_in_flight(1);
        let limiter = limiter.fallback(MemoryStore::new(), Share::with_instances(1));
        let limiter = limiter.on_overload(on_overload).build().unwrap();
        let waits = tokio::spawn(limiter.check(&Subject::user("bob"), 1));
        while limiter.stats().in_flight == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(limiter.check(&Subject::user("alice"), 1).await.origin(), expected);
        let outage = Origin::Fallback(FailureKind::TimedOut);
        assert_eq!(waits.await.unwrap().origin(), outage, "an outage is another setting");
    }
}

/// A source of policies. It finds the consumers whose names begin with `known`, and refuses all
/// other look-ups.
struct Overloaded;

impl PolicySource for Overloaded {
    fn policy(&self, subject: &Subject) -> PolicyFuture {
        let is_known = subject.id().as_text().is_some_and(|id| id.starts_with("known"));
        MaybeReady::later(async move {
            if is_known {
                Ok(Some(Policy::new([Limit::per_hour(100)]).unwrap()))
            } else {
                Err(StoreError::new(FailureKind::Overloaded))
            }
        })
    }
}

/// Fault: a log line was written for each refused look-up, and for each successful one in between.
/// The requests whose look-ups were refused were allowed.
#[tokio::test(start_paused = true)]
async fn refused_look_ups_do_not_fail_open_and_are_logged_once() {
    let (log, _guard) = Log::capture();
    let limiter = RateLimiter::builder().policies(Overloaded).build().unwrap();
    for round in 0..1_000 {
        let invented = limiter.check(&Subject::consumer(&format!("invented-{round}")), 1).await;
        assert_eq!(invented.origin(), Origin::FailedClosed(FailureKind::Overloaded));
        limiter.check(&Subject::consumer("known"), 1).await;
    }
    advance(Duration::from_secs(1)).await;
    limiter.check(&Subject::consumer("known"), 1).await;
    let lines = log.lines();
    let [(_, begin), (_, end)] = &lines[..] else { panic!("{lines:#?}") };
    assert!(begin.starts_with("policy look-ups overloaded"), "{begin}");
    assert!(end.starts_with("policy look-up overload ended"), "{end}");
    assert!(end.contains("refused=1000"), "{end}");
}

#[tokio::test]
async fn a_policy_can_be_set_for_look_ups_that_are_refused() {
    let strict = Policy::new([Limit::per_hour(2)]).unwrap();
    let limiter = RateLimiter::builder().policies(Overloaded).policy_when_overloaded(strict);
    let limiter = limiter.build().unwrap();
    let invented = Subject::consumer("invented");
    for allowed in [true, true, false] {
        let decision = limiter.check(&invented, 1).await;
        assert_eq!((decision.origin(), decision.is_allowed()), (Origin::Store, allowed));
    }
}

/// Fault: a denial was cached for only a second, so the denied client was allowed while the store
/// was overloaded.
#[tokio::test]
async fn a_cached_denial_holds_during_an_overload_until_its_wait_ends() {
    let server = RedisServer::start();
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_750_000_000)));
    let store = RedisStore::builder(&server.url()).manual_clock(clock.clone()).local_denial(true);
    let store = store.connection_wait(GIVE_UP).connect().await.unwrap();
    let limiter = five_per_hour(store.clone()).deadline(GIVE_UP).max_in_flight(1);
    let limiter = limiter.build().unwrap();
    let [denied, reset] = ["denied", "reset"].map(Subject::user);
    for subject in [&denied, &reset] {
        while limiter.check(subject, 1).await.is_allowed() {}
    }
    // Another instance resets the subject `reset`. The limiter of this test notices the reset with
    // its next call to the server.
    let other = RedisStore::builder(&server.url()).manual_clock(clock.clone());
    let other = other.connection_wait(GIVE_UP);
    let other = five_per_hour(other.connect().await.unwrap()).deadline(GIVE_UP).build().unwrap();
    other.reset(&reset).await.unwrap();
    clock.advance(Duration::from_secs(1));
    assert_eq!(limiter.check(&reset, 1).await.origin(), Origin::Store);

    // The server is frozen. The limiter allows one decision in flight, and Bob's request is that
    // one.
    server.signal("STOP");
    let waits = tokio::spawn(limiter.check(&Subject::user("bob"), 1));
    while limiter.stats().in_flight == 0 {
        tokio::task::yield_now().await;
    }
    clock.advance(Duration::from_secs(3_000));
    let decision = limiter.check(&denied, 1).await;
    assert_eq!((decision.origin(), decision.is_allowed()), (Origin::LocalDeny, false));
    let RetryAfter::In(wait) = decision.retry_after() else { panic!("{decision:?}") };
    assert!((598..=599).contains(&wait.as_secs()), "{wait:?}");
    let overloaded = Origin::FailedClosed(FailureKind::Overloaded);
    assert_eq!(limiter.check(&reset, 1).await.origin(), overloaded, "it was allowed since");
    clock.advance(Duration::from_secs(600));
    assert_eq!(limiter.check(&denied, 1).await.origin(), overloaded, "its window has ended");
    server.signal("CONT");
    waits.await.unwrap();
}
