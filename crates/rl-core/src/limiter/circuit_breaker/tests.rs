mod every_order;
mod limiter;

use std::collections::HashSet;

use super::state::{
    FAILURE_THRESHOLD, FIRST_WAIT, LONGEST_WAIT, PROBE_TIMEOUT, Phase, RECOVERY_PERIOD, wait,
};
use super::*;

const DOWN: FailureKind = FailureKind::Unavailable;
const LATE: FailureKind = FailureKind::TimedOut;

type OnThreads = BreakerState<AtomicU64>;

/// Opens the breaker at `now`, with a wait of 100 ms before the first probe.
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

/// A probe may stay without a result, for example because its task is on a busy thread.
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
    // A failure less than `RECOVERY_PERIOD` after the last refusal belongs to the same outage, and
    // is not reported again.
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
