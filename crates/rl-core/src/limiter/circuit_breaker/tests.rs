use std::collections::HashSet;
use std::sync::atomic::{AtomicU8, AtomicUsize};
use std::time::Duration;

use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, advance};

use super::state::{
    FAILURE_THRESHOLD, FIRST_WAIT, LONGEST_WAIT, PROBE_TIMEOUT, Phase, RECOVERY_PERIOD, wait,
};
use super::*;
use crate::decision::{Decision, Origin};
use crate::limiter::RateLimiter;
use crate::limiter::Share;
use crate::maybe_ready::MaybeReady;
use crate::model::StoreError;
use crate::model::{Limit, Subject};
use crate::store::memory::MemoryStore;
use crate::store::{DecideRequest, Refund, Renewal, Reset, Store, StoreFuture};
use crate::time::Timestamp;

const DOWN: FailureKind = FailureKind::Unavailable;
const LATE: FailureKind = FailureKind::TimedOut;

type OnThreads = BreakerState<AtomicU64>;

/// Opens the breaker at `now`, with the longest possible wait of 100 ms.
fn opened(circuit: &OnThreads, now: u64) {
    for _ in 0..FAILURE_THRESHOLD {
        circuit.failed(circuit.snapshot(), DOWN, now, FIRST_WAIT / 2);
    }
    assert_eq!(circuit.snapshot().phase(), Phase::Open);
}

fn admit(circuit: &OnThreads, now: u64) -> Result<CallSnapshot, FailureKind> {
    circuit.try_acquire(|| now)
}

#[test]
fn a_call_to_a_healthy_store_does_not_read_the_clock() {
    let circuit = OnThreads::default();
    let no_clock = || unreachable!("the clock is read");
    for _ in 0..3 {
        let pass = circuit.try_acquire(no_clock).unwrap();
        assert!(!pass.is_probe() && !circuit.succeeded(pass, no_clock));
    }
}

#[test]
fn it_opens_after_three_failures_in_a_row() {
    let circuit = OnThreads::default();
    let fail = |kind| circuit.failed(admit(&circuit, 0).unwrap(), kind, 0, 0);
    assert!(fail(DOWN), "the first is a line");
    assert!(!fail(LATE));
    assert_eq!(circuit.snapshot().phase(), Phase::Failing);
    assert!(!fail(LATE), "it has been logged");
    assert_eq!(admit(&circuit, 0).unwrap_err(), LATE);
}

#[test]
fn a_success_resets_the_count_of_consecutive_failures() {
    let circuit = OnThreads::default();
    for now in 0..50 {
        circuit.failed(admit(&circuit, now).unwrap(), DOWN, now, 0);
        circuit.failed(admit(&circuit, now).unwrap(), DOWN, now, 0);
        assert!(!circuit.succeeded(admit(&circuit, now).unwrap(), || now), "it is not calm");
        assert_eq!(circuit.snapshot().phase(), Phase::Failing);
    }
}

/// A broken connection fails all calls in flight.
#[test]
fn a_thousand_failures_of_concurrent_requests_count_as_one() {
    let circuit = OnThreads::default();
    let passes: Vec<_> = (0..1_000).map(|_| admit(&circuit, 0).unwrap()).collect();
    let lines = passes.into_iter().filter(|pass| circuit.failed(*pass, DOWN, 1, 0)).count();
    assert_eq!((lines, circuit.snapshot().phase()), (1, Phase::Failing));
    let answered =
        circuit.succeeded(admit(&circuit, 1 + RECOVERY_PERIOD).unwrap(), || 1 + RECOVERY_PERIOD);
    assert!(answered, "the next is answered");
}

#[test]
fn it_closes_after_a_success_and_a_recovery_period_without_failures() {
    let circuit = OnThreads::default();
    circuit.failed(circuit.snapshot(), DOWN, 7, 0);
    assert!(!circuit.succeeded(circuit.snapshot(), || 6 + RECOVERY_PERIOD));
    let before = circuit.snapshot();
    circuit.failed(before, DOWN, 8, 0);
    assert!(
        !circuit.succeeded(before, || 8 + RECOVERY_PERIOD),
        "it set out before the last failure"
    );
    assert!(circuit.succeeded(circuit.snapshot(), || 8 + RECOVERY_PERIOD));
    assert!(!circuit.succeeded(circuit.snapshot(), || 8 + RECOVERY_PERIOD));
    assert_eq!(circuit.snapshot().phase(), Phase::Closed);
}

#[test]
fn a_failure_of_a_call_sent_during_an_outage_begins_no_other_outage() {
    let circuit = OnThreads::default();
    let before = circuit.snapshot();
    opened(&circuit, 0);
    let probe = admit(&circuit, 100).unwrap();
    let during = circuit.snapshot();
    assert!(circuit.succeeded(probe, || 100));
    for late in [before, during] {
        assert!(!circuit.failed(late, LATE, 101, 0));
        assert_eq!(circuit.snapshot().phase(), Phase::Closed);
    }
}

#[test]
fn open_it_lets_one_probe_through_after_the_wait() {
    let circuit = OnThreads::default();
    opened(&circuit, 1_000);
    assert_eq!(admit(&circuit, 1_099).unwrap_err(), DOWN);
    assert!(admit(&circuit, 1_100).unwrap().is_probe());
    assert_eq!(admit(&circuit, 1_200).unwrap_err(), DOWN, "one probe at a time");
}

#[test]
fn results_of_calls_from_before_it_opened_change_nothing() {
    let circuit = OnThreads::default();
    let before = circuit.snapshot();
    opened(&circuit, 0);
    let open = circuit.snapshot();
    for pass in [before, open] {
        assert!(!circuit.succeeded(pass, || 50));
        assert!(!circuit.failed(pass, DOWN, 50, 0));
        circuit.abandon_probe(pass);
        assert_eq!(circuit.snapshot().phase(), Phase::Open);
    }
    assert!(admit(&circuit, 100).unwrap().is_probe(), "the wait is as it was");
}

#[test]
fn a_successful_probe_closes_it() {
    let circuit = OnThreads::default();
    opened(&circuit, 0);
    assert!(circuit.succeeded(admit(&circuit, 100).unwrap(), || 100));
    assert_eq!(circuit.snapshot().phase(), Phase::Closed);
    // Consecutive failures are counted from zero again, so one failure does not open the breaker.
    circuit.failed(circuit.snapshot(), DOWN, 101, 0);
    assert_eq!(circuit.snapshot().phase(), Phase::Failing);
}

#[test]
fn a_probe_that_fails_opens_it_for_longer_up_to_the_longest_wait() {
    let circuit = OnThreads::default();
    let (mut now, mut waits) = (0, Vec::new());
    opened(&circuit, now);
    for _ in 0..20 {
        let begun = now;
        let probe = loop {
            match admit(&circuit, now) {
                Ok(probe) => break probe,
                Err(_) => now += 1,
            }
        };
        waits.push(now - begun);
        // This random number results in the longest wait.
        assert!(!circuit.failed(probe, LATE, now, LONGEST_WAIT / 2), "it has been logged");
        assert_eq!(admit(&circuit, now).unwrap_err(), LATE);
    }
    assert_eq!(waits[..3], [100, 200, 200]);
    assert!(waits[3..].iter().all(|wait| *wait == LONGEST_WAIT));
}

#[test]
fn after_an_abandoned_probe_the_next_request_is_the_probe() {
    let circuit = OnThreads::default();
    opened(&circuit, 0);
    let probe = admit(&circuit, 100).unwrap();
    circuit.abandon_probe(probe);
    assert!(admit(&circuit, 100).unwrap().is_probe());
}

/// The task of a probe may be delayed, for example on a busy thread.
#[test]
fn a_probe_without_a_result_is_replaced_after_its_timeout() {
    let circuit = OnThreads::default();
    opened(&circuit, 0);
    let lost = admit(&circuit, 100).unwrap();
    assert!(admit(&circuit, 100 + PROBE_TIMEOUT - 1).is_err());
    let other = admit(&circuit, 100 + PROBE_TIMEOUT).unwrap();
    assert!(other.is_probe());
    assert!(admit(&circuit, 100 + PROBE_TIMEOUT).is_err(), "one at a time");
    // The late result of the first probe changes nothing.
    circuit.abandon_probe(lost);
    assert!(!circuit.failed(lost, DOWN, 1_200, 0) && !circuit.succeeded(lost, || 1_200));
    assert!(!circuit.misconfigured(lost, 1_200));
    assert_eq!(circuit.snapshot().phase(), Phase::HalfOpen);
    assert!(circuit.succeeded(other, || 1_200));
}

#[test]
fn refusals_do_not_open_it_and_are_logged_once() {
    let circuit = OnThreads::default();
    let refuse = |now| circuit.misconfigured(admit(&circuit, now).unwrap(), now);
    assert!(refuse(0));
    assert!((1..100).all(|now| !refuse(now)));
    assert!(admit(&circuit, 100).is_ok(), "the store is still called");
    // A failure soon after the store refused a call belongs to the same outage, and is not reported
    // again.
    assert!(!circuit.failed(circuit.snapshot(), DOWN, 101, 0));
    assert!(!circuit.succeeded(circuit.snapshot(), || 98 + RECOVERY_PERIOD));
    assert!(
        circuit.failed(circuit.snapshot(), DOWN, 99 + RECOVERY_PERIOD, 0),
        "an outage after it"
    );
    assert!(refuse(700), "and the other way round");
    assert!(circuit.succeeded(circuit.snapshot(), || 700 + RECOVERY_PERIOD));
}

/// A store that was restarted with another password can be reached, so its errors must be reported
/// as configuration failures.
#[test]
fn a_probe_that_is_refused_closes_it_as_misconfigured() {
    let circuit = OnThreads::default();
    opened(&circuit, 0);
    assert!(circuit.misconfigured(admit(&circuit, 100).unwrap(), 100));
    let pass = admit(&circuit, 100).unwrap();
    assert_eq!((pass.phase(), pass.is_probe()), (Phase::Misconfigured, false));
}

#[test]
fn waits_are_between_half_and_all_of_the_doubled_wait() {
    for (doubled, whole) in [(0, 100), (1, 200), (2, 200), (15, 200), (u64::MAX, 200)] {
        let chances = (0..1_000).chain(u64::MAX - 1_000..=u64::MAX);
        let waits: HashSet<u64> = chances.map(|chance| wait(doubled, chance)).collect();
        assert_eq!(waits, (whole / 2..=whole).collect());
    }
}

#[test]
fn instances_do_not_probe_at_the_same_time() {
    let waits: HashSet<u64> = (0..64)
        .map(|_| {
            let breaker = Arc::new(CircuitBreaker::default());
            opened_by_failures(&breaker);
            (0..).find(|now| breaker.state.try_acquire(|| *now).is_ok()).unwrap()
        })
        .collect();
    assert!(waits.len() > 8, "{waits:?}");
}

fn opened_by_failures(breaker: &Arc<CircuitBreaker>) {
    while let Ok(ticket) = breaker.try_acquire() {
        breaker.failed(ticket, DOWN);
    }
}

#[test]
fn damaged_counters_do_not_change_its_state() {
    let breaker = Arc::new(CircuitBreaker::default());
    for _ in 0..100 {
        let ticket = breaker.try_acquire().unwrap();
        assert!(!ticket.sent.is_probe());
        breaker.failed(ticket, FailureKind::Corrupt);
        breaker.failed(breaker.try_acquire().unwrap(), FailureKind::Unsupported);
    }
    assert_eq!(breaker.state.snapshot().phase(), Phase::Closed);
}

const ANSWERS: u8 = 0;
const FAILS: u8 = 1;
const HANGS: u8 = 2;

/// A store whose replies take time.
#[derive(Debug, Default)]
struct Remote {
    memory: MemoryStore,
    does: AtomicU8,
    asked: AtomicUsize,
}

impl Remote {
    fn does(&self, what: u8) {
        self.does.store(what, Ordering::SeqCst);
    }

    fn asked(&self) -> usize {
        self.asked.swap(0, Ordering::SeqCst)
    }
}

impl Store for Remote {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        let decision = self.memory.decide(request);
        self.asked.fetch_add(1, Ordering::SeqCst);
        let does = self.does.load(Ordering::SeqCst);
        MaybeReady::later(async move {
            yield_now().await;
            match does {
                ANSWERS => decision.await,
                FAILS => Err(StoreError::new(DOWN)),
                _ => std::future::pending().await,
            }
        })
    }

    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        self.memory.refund(refund)
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<Option<Timestamp>> {
        self.memory.renew(renewal)
    }

    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        self.memory.reset(reset)
    }
}

fn limiter(limit: Limit) -> (Arc<Remote>, RateLimiter) {
    let remote = Arc::new(Remote::default());
    let limiter = RateLimiter::builder().limit(limit).store(Arc::clone(&remote)).build().unwrap();
    (remote, limiter)
}

/// Sends `requests` concurrent requests, and returns the origins of their decisions.
async fn at_once(limiter: &RateLimiter, requests: usize) -> Vec<Origin> {
    let mut asking = JoinSet::new();
    for _ in 0..requests {
        let limiter = limiter.clone();
        asking.spawn(async move { limiter.check(&Subject::user("alice"), 1).await.origin() });
    }
    asking.join_all().await
}

async fn until_open(remote: &Remote, limiter: &RateLimiter) {
    remote.does(FAILS);
    for _ in 0..FAILURE_THRESHOLD {
        at_once(limiter, 1).await;
    }
    assert_eq!(remote.asked(), FAILURE_THRESHOLD as usize);
    at_once(limiter, 100).await;
    assert_eq!(remote.asked(), 0, "open");
}

const WAIT: Duration = Duration::from_millis(FIRST_WAIT);

#[tokio::test(start_paused = true)]
async fn one_of_a_thousand_concurrent_requests_is_the_probe() {
    let (remote, limiter) = limiter(Limit::per_hour(10_000));
    for does in [FAILS, HANGS, ANSWERS] {
        until_open(&remote, &limiter).await;
        advance(WAIT).await;
        remote.does(does);
        let origins = at_once(&limiter, 1_000).await;
        assert_eq!(remote.asked(), 1);
        let by_store = origins.iter().filter(|origin| **origin == Origin::Store).count();
        assert_eq!(by_store, usize::from(does == ANSWERS));
        // Closes the breaker for the next round.
        advance(WAIT * 2).await;
        remote.does(ANSWERS);
        at_once(&limiter, 1).await;
        assert_eq!(at_once(&limiter, 10).await, [Origin::Store; 10]);
        remote.asked();
    }
}

/// If the client that sent the probe disconnects, the breaker must not stay open for ever.
#[tokio::test(start_paused = true)]
async fn another_request_probes_after_the_client_of_a_probe_disconnects() {
    let (remote, limiter) = limiter(Limit::per_hour(10_000));
    until_open(&remote, &limiter).await;
    advance(WAIT).await;
    remote.does(HANGS);
    for _ in 0..50 {
        let alice = Subject::user("alice");
        let mut probe = limiter.check(&alice, 1);
        std::future::poll_fn(|cx| {
            assert!(std::pin::Pin::new(&mut probe).poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        assert_eq!(remote.asked(), 1);
        at_once(&limiter, 10).await;
        assert_eq!(remote.asked(), 0);
        drop(probe);
    }
    assert_eq!(limiter.in_flight(), 0);
    remote.does(ANSWERS);
    assert_eq!(at_once(&limiter, 1).await, [Origin::Store]);
}

/// Under load, few calls reach a store during a long outage. The store decides again soon after it
/// returns.
#[tokio::test(start_paused = true)]
async fn a_failing_store_is_probed_a_few_times_a_second_and_decides_soon_after_its_recovery() {
    let (remote, limiter) = limiter(Limit::per_hour(1_000_000));
    for does in [FAILS, HANGS] {
        until_open(&remote, &limiter).await;
        remote.does(does);
        let mut asking = JoinSet::new();
        // 10 000 requests in 10 s.
        for _ in 0..10_000 {
            let limiter = limiter.clone();
            asking.spawn(async move {
                let asked = Instant::now();
                limiter.check(&Subject::user("alice"), 1).await;
                // The deadline of 100 ms is noticed at most one step of the test's clock later.
                let took = asked.elapsed();
                assert!(took <= Duration::from_millis(101), "{took:?}");
            });
            advance(Duration::from_millis(1)).await;
        }
        while let Some(done) = asking.join_next().await {
            done.unwrap();
        }
        let asked = remote.asked();
        assert!((30..=110).contains(&asked), "{asked} in 10 s");

        remote.does(ANSWERS);
        let back = Instant::now();
        while at_once(&limiter, 1).await != [Origin::Store] {
            advance(Duration::from_millis(1)).await;
        }
        assert!(
            back.elapsed() <= Duration::from_millis(LONGEST_WAIT + 100),
            "{:?}",
            back.elapsed()
        );
        assert_eq!(at_once(&limiter, 1_000).await, [Origin::Store; 1_000]);
        remote.asked();
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_delays_requests_for_three_deadlines() {
    let (remote, limiter) = limiter(Limit::per_hour(10_000));
    remote.does(HANGS);
    let begun = Instant::now();
    let mut asking = JoinSet::new();
    while limiter.pipeline.breaker.try_acquire().is_ok() {
        let limiter = limiter.clone();
        asking.spawn(async move { limiter.check(&Subject::user("alice"), 1).await });
        advance(Duration::from_millis(1)).await;
        yield_now().await;
    }
    let took = begun.elapsed().as_millis();
    assert!((300..=310).contains(&took), "{took} ms");
}

#[tokio::test(start_paused = true)]
async fn no_more_decisions_wait_than_are_allowed() {
    let remote = Arc::new(Remote::default());
    let builder = RateLimiter::builder().limit(Limit::per_hour(10_000)).store(remote.clone());
    let limiter = builder.max_in_flight(10).build().unwrap();
    remote.does(HANGS);
    let waiting = {
        let limiter = limiter.clone();
        tokio::spawn(async move { at_once(&limiter, 10).await })
    };
    while limiter.in_flight() < 10 {
        yield_now().await;
    }
    let asked = Instant::now();
    let overloaded = Origin::FailedClosed(FailureKind::Overloaded);
    assert_eq!(at_once(&limiter, 1_000).await, [overloaded; 1_000]);
    assert_eq!((asked.elapsed(), limiter.in_flight()), (Duration::ZERO, 10));
    waiting.await.unwrap();
    assert_eq!(limiter.in_flight(), 0);
    // Overload is no failure of the store: calls to it continue.
    remote.does(ANSWERS);
    assert_eq!(at_once(&limiter, 10).await, [Origin::Store; 10]);
}

/// A fallback may be a server too, and may hang as well.
#[tokio::test(start_paused = true)]
async fn no_more_decisions_wait_for_the_fallback_than_are_allowed() {
    let remotes = [Arc::new(Remote::default()), Arc::new(Remote::default())];
    let builder = RateLimiter::builder().limit(Limit::per_hour(10_000)).store(remotes[0].clone());
    let builder = builder.fallback(remotes[1].clone(), Share::with_instances(1));
    let limiter = builder.max_in_flight(10).build().unwrap();
    until_open(&remotes[0], &limiter).await;
    remotes[1].asked();
    remotes[1].does(HANGS);
    let mut waiting = {
        let limiter = limiter.clone();
        tokio::spawn(async move { at_once(&limiter, 1_000).await })
    };
    while remotes[1].asked() == 0 || limiter.in_flight() < 10 {
        yield_now().await;
    }
    let origins = (&mut waiting).await.unwrap();
    let of = |kind| origins.iter().filter(|o| **o == Origin::FailedClosed(kind)).count();
    assert_eq!((of(FailureKind::TimedOut), of(FailureKind::Overloaded)), (10, 990));
    assert_eq!(limiter.in_flight(), 0);
}

/// Checks concurrent operations in every order of their steps.
mod every_order {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::thread;

    use super::*;

    impl AtomicState for AtomicU64 {
        fn new(value: u64) -> Self {
            Self::new(value)
        }

        fn load(&self) -> u64 {
            self.load(Ordering::Relaxed)
        }

        fn exchange(&self, current: u64, next: u64) -> bool {
            self.compare_exchange(current, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        }
    }

    type Loomed = BreakerState<AtomicU64>;
    type Act = Box<dyn FnOnce(&Loomed) -> bool>;

    fn open() -> Arc<Loomed> {
        let circuit = Loomed::default();
        for _ in 0..FAILURE_THRESHOLD {
            circuit.failed(circuit.snapshot(), DOWN, 0, 0);
        }
        Arc::new(circuit)
    }

    /// Runs each operation in a thread of its own, and returns their results.
    fn each(circuit: &Arc<Loomed>, acts: impl IntoIterator<Item = Act>) -> Vec<bool> {
        let threads: Vec<_> = acts
            .into_iter()
            .map(|act| {
                let circuit = Arc::clone(circuit);
                thread::spawn(move || act(&circuit))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    fn is_probe(circuit: &Loomed) -> bool {
        circuit.try_acquire(|| 1_000).is_ok_and(CallSnapshot::is_probe)
    }

    #[test]
    fn one_of_two_is_the_probe() {
        loom::model(|| {
            let circuit = open();
            let acts = (0..2).map(|_| Box::new(is_probe) as Act);
            let probes = each(&circuit, acts);
            assert_eq!(probes.into_iter().filter(|probe| *probe).count(), 1);
        });
    }

    #[test]
    fn concurrent_failures_are_logged_and_counted_once() {
        loom::model(|| {
            let circuit = Arc::new(Loomed::default());
            let pass = circuit.snapshot();
            let fail = move |circuit: &Loomed| circuit.failed(pass, DOWN, 1, 0);
            let acts = (0..2).map(|_| Box::new(fail) as Act);
            let lines = each(&circuit, acts);
            assert_eq!(lines.into_iter().filter(|line| *line).count(), 1);
            assert!(!circuit.failed(circuit.snapshot(), DOWN, 1, 0));
            assert_eq!(circuit.snapshot().phase(), Phase::Failing, "two so far");
        });
    }

    #[test]
    fn a_successful_probe_wins_over_late_failures() {
        loom::model(|| {
            let circuit = Arc::new(Loomed::default());
            let before = circuit.snapshot();
            for _ in 0..FAILURE_THRESHOLD {
                circuit.failed(circuit.snapshot(), DOWN, 0, 0);
            }
            let probe = circuit.try_acquire(|| 1_000).unwrap();
            let acts: [Act; 3] = [
                Box::new(move |circuit| circuit.succeeded(probe, || 1_000)),
                Box::new(move |circuit| circuit.failed(before, LATE, 1_000, 0)),
                Box::new(move |circuit| circuit.succeeded(before, || 1_000)),
            ];
            assert_eq!(each(&circuit, acts), [true, false, false]);
            assert_eq!(circuit.snapshot().phase(), Phase::Closed);
        });
    }

    #[test]
    fn an_abandoned_probe_is_replaced_by_exactly_one() {
        loom::model(|| {
            let circuit = open();
            let probe = circuit.try_acquire(|| 1_000).unwrap();
            let acts: [Act; 3] = [
                Box::new(move |circuit| {
                    circuit.abandon_probe(probe);
                    false
                }),
                Box::new(is_probe),
                Box::new(is_probe),
            ];
            let probes = each(&circuit, acts).into_iter().filter(|probe| *probe).count();
            // Both requests may have come before the wait was over; then the next request is the
            // probe.
            assert_eq!(probes + usize::from(is_probe(&circuit)), 1);
        });
    }

    #[test]
    fn a_success_and_a_failure_leave_it_closed_or_failing_and_log_each_change_once() {
        loom::model(|| {
            let circuit = Arc::new(Loomed::default());
            circuit.failed(circuit.snapshot(), DOWN, 0, 0);
            let pass = circuit.snapshot();
            let acts: [Act; 2] = [
                Box::new(move |circuit| circuit.succeeded(pass, || RECOVERY_PERIOD)),
                Box::new(move |circuit| circuit.failed(pass, DOWN, RECOVERY_PERIOD, 0)),
            ];
            let lines = each(&circuit, acts);
            let phase = circuit.snapshot().phase();
            let is_well = phase == Phase::Closed;
            assert!(is_well || phase == Phase::Failing);
            assert_eq!(lines, [is_well, false]);
        });
    }
}
