//! The settlement of several subjects in one step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::{invented, ready, store};
use crate::model::{Cost, Mode, Subject};
use crate::policy::{LimitSet, Policy};
use crate::store::{DecideRequest, Namespace, Part, Settlement, Store};

/// Three threads charge the same units to four subjects, and settle them at half or twice that
/// number. A fourth thread checks that all subjects have always used the same number of units.
#[test]
fn subjects_that_are_settled_together_change_at_once() {
    const ROUNDS: usize = 3_000;

    let (store, _) = store(10_000);
    let (store, namespace) = (&store, Namespace::default());
    let policy = Policy::new(["1000000/hour", "64:concurrency"].map(|l| l.parse().unwrap()));
    let (policy, subjects) = (policy.unwrap(), [0, 1, 2, 3].map(invented));
    let decide = |cost: u64, mode: Mode| {
        let part = |subject| Part::new(subject, &policy, Cost::new(cost));
        let parts = subjects.each_ref().map(part);
        ready(store.decide(DecideRequest::new(&namespace, &parts, mode)))
    };
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let settling = (0..3).map(|thread| {
            let (decide, subjects, namespace, policy) = (&decide, &subjects, &namespace, &policy);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let decision = decide(4, Mode::Check);
                    assert!(decision.is_allowed());
                    let (refunded, added) = if (round + thread) % 2 == 0 { (2, 0) } else { (0, 4) };
                    let settlement = |subject: &'_ Subject| Settlement {
                        namespace,
                        subject: subjects.iter().find(|known| *known == subject).unwrap(),
                        policy,
                        charged: decision.at(),
                        leased: decision.at(),
                        released: 4,
                        refunded,
                        added,
                        uncharged: LimitSet::EMPTY,
                        kept: LimitSet::EMPTY,
                        reservation: None,
                    };
                    ready(store.settle(&subjects.each_ref().map(settlement)));
                }
            })
        });
        let settling: Vec<_> = settling.collect();
        let reading = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let decision = decide(0, Mode::Peek);
                let used = decision
                    .parts()
                    .map(|part| part.limits().map(|limit| limit.used()).collect::<Vec<_>>());
                let used: Vec<_> = used.collect();
                assert!(used.iter().all(|one| *one == used[0]), "{used:?}");
            }
        });
        settling.into_iter().for_each(|thread| thread.join().unwrap());
        is_done.store(true, Ordering::Relaxed);
        reading.join().unwrap();
    });
    for part in decide(0, Mode::Peek).parts() {
        let used: Vec<_> = part.limits().map(|limit| limit.used()).collect();
        assert_eq!(used, [3 * ROUNDS as u64 / 2 * (2 + 8), 0]);
    }
}
