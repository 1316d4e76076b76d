//! Checks concurrent operations in every order of their steps.

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
        // If both requests come before the probe is abandoned, both are refused. The request below
        // is then the probe.
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
