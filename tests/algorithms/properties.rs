//! Properties that must hold for all traffic, tested with random traffic.

use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use rl_core::Algorithm;
use rl_core::store::{Refund, RefundOf, Reset};

use super::*;

/// The number of calls for each limit and store.
const CALLS: usize = 300;

/// Returns the pause before each call, and the cost of the call. Most pauses are very short, and
/// some are long.
fn traffic() -> Vec<(u64, u64)> {
    let pause = prop_oneof![
        6 => 0..2_000_000_u64,
        3 => 2_000_000..20_000_000_u64,
        1 => 20_000_000..200_000_000_u64,
    ];
    let calls = prop::collection::vec((pause, 1..4_u64), CALLS);
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    calls.new_tree(&mut runner).unwrap().current()
}

/// Returns the maximum number of units that the limit may grant in a span of `micros`. The span
/// must not be longer than the period.
fn guarantee(limit: Limit, micros: u64) -> u64 {
    let (max, period) = (limit.max(), limit.period().as_micros());
    let accrued = (u128::from(micros) * u128::from(max)).div_ceil(u128::from(period));
    let accrued = u64::try_from(accrued).unwrap();
    match limit.algorithm() {
        Algorithm::SlidingLog | Algorithm::SlidingWindow { .. } | Algorithm::Concurrency => max,
        Algorithm::TokenBucket { capacity, refill: rl_core::Refill::Greedy } => capacity + accrued,
        Algorithm::TokenBucket { capacity, .. } => capacity + max,
        Algorithm::Gcra { burst } => burst + accrued,
        // A span may contain the maximum of one window and the maximum of the next.
        _ => 2 * max,
    }
}

#[tokio::test]
async fn no_algorithm_exceeds_its_guarantee_in_any_span() {
    each(&LIMITS, |tested| async move {
        let limit = tested.policy.limits()[0].limit();
        let period = limit.period().as_micros();
        let mut admitted = VecDeque::<(u64, u64)>::new();
        let mut denied = 0;
        for (pause, cost) in traffic() {
            tested.clock.advance(Duration::from_micros(pause));
            if !tested.decide(Mode::Check, cost).await.is_allowed() {
                denied += 1;
                continue;
            }
            let now = tested.clock.now().as_micros();
            admitted.push_back((now, cost));
            admitted.retain(|(time, _)| time + period > now);
            // Every span that ends now and is shorter than a period is checked.
            let mut units = 0;
            for (time, cost) in admitted.iter().rev() {
                units += cost;
                assert!(
                    units <= guarantee(limit, now - time),
                    "{limit}: {units} in {}",
                    now - time
                );
            }
        }
        assert!(denied > CALLS / 4, "{limit}: the limit was felt {denied} times");
    })
    .await;
}

#[tokio::test]
async fn a_peek_changes_no_byte_under_any_algorithm() {
    let server = RedisServer::start();
    let mut bystander = Bystander::new(&server).await;
    for text in LIMITS {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(START)));
        let store = server.patient_store().manual_clock(clock.clone());
        let tested = Tested::new(Arc::new(store.connect().await.unwrap()), clock, text);
        tested.exhaust().await;
        let before = bystander.contents().await;
        assert!(!before.is_empty());
        for cost in [0, 1, 5, u64::MAX] {
            tested.clock.advance(Duration::from_secs(2));
            tested.decide(Mode::Peek, cost).await;
            tested.decide(Mode::Check, 0).await;
        }
        assert_eq!(bystander.contents().await, before, "{text}");
        bystander.query::<()>("FLUSHALL").await;
    }
}

/// The bytes of a memory store cannot be compared. Instead, a store that was peeked at and a store
/// that was not must make equal decisions.
#[tokio::test]
async fn a_peek_changes_no_decision_in_memory_under_any_algorithm() {
    for text in LIMITS {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(START)));
        let [looked_at, left_alone] = [(); 2].map(|()| {
            let store = MemoryStore::builder().clock(clock.clone()).build();
            Tested::new(Arc::new(store), clock.clone(), text)
        });
        for (pause, cost) in traffic() {
            clock.advance(Duration::from_micros(pause));
            for cost in [0, cost, 50] {
                looked_at.decide(Mode::Peek, cost).await;
            }
            let one = looked_at.decide(Mode::Check, cost).await;
            let other = left_alone.decide(Mode::Check, cost).await;
            assert_eq!(format!("{one:?}"), format!("{other:?}"));
        }
    }
}

#[tokio::test]
async fn every_key_has_an_expiry_after_every_step_under_every_algorithm() {
    let server = RedisServer::start();
    let mut bystander = Bystander::new(&server).await;
    for text in LIMITS {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(START)));
        let store = server.patient_store().manual_clock(clock.clone());
        let tested = Tested::new(Arc::new(store.connect().await.unwrap()), clock, text);
        let Tested { namespace, subject, policy, .. } = &tested;
        for step in 0..40_u64 {
            tested.clock.advance(Duration::from_millis(step * 977));
            match step % 8 {
                6 => {
                    let reset = Reset { namespace, subject, policy, limit: Some(0) };
                    tested.store.reset(&[reset]).await.unwrap();
                }
                7 => {
                    let charged = tested.decide(Mode::Charge, 9).await;
                    let refund = Refund {
                        namespace,
                        subject,
                        policy,
                        charged: charged.at(),
                        units: 4,
                        of: RefundOf::All,
                        uncharged: charged.uncharged(),
                    };
                    tested.store.settle(&[refund.into()]).await.unwrap();
                }
                mode => {
                    let modes = [Mode::Check, Mode::CheckUpTo, Mode::Charge, Mode::Peek];
                    tested.decide(modes[mode as usize % 4], 1 + step % 3).await;
                }
            }
            assert_eq!(bystander.keys_without_expiry().await, [""; 0], "{text}, step {step}");
        }
    }
}

/// Four of seven units are used. They stay used while the limit changes, and while other limits are
/// added and removed.
#[tokio::test]
async fn a_change_of_policy_keeps_what_was_used_under_every_algorithm() {
    each(&LIMITS, |mut tested| async move {
        let limit = tested.policy.limits()[0].limit();
        tested.decide(Mode::Check, 4).await;
        let used = |decision: &Decision| decision.limits().next().unwrap().used();
        let before = tested.decide(Mode::Peek, 0).await;
        assert_eq!(used(&before), 4);

        // Other limits are added before and after the tested one, are charged, and are removed
        // again.
        let (others, alone) = (["900/day", "800/hour:sliding-log"], tested.policy.clone());
        let others = others.map(|text| text.parse::<Limit>().unwrap());
        tested.policy = Policy::new([others[0], limit, others[1]]).unwrap();
        let beside = tested.decide(Mode::Check, 1).await;
        let beside: Vec<_> = beside.limits().map(|limit| limit.used()).collect();
        assert_eq!(beside, [1, 5, 1], "{limit}");
        tested.policy = alone;
        assert_eq!(used(&tested.decide(Mode::Peek, 0).await), 5, "{limit}");

        // The max is raised, and set back. Some algorithms store the used units as a share of the
        // capacity. They keep the share while the max is raised.
        let is_share = matches!(
            limit.algorithm(),
            Algorithm::Gcra { .. } | Algorithm::TokenBucket { refill: rl_core::Refill::Greedy, .. }
        );
        let larger = match limit.algorithm() {
            Algorithm::Concurrency => {
                Limit::concurrency(70).unwrap().with_lease(limit.period()).unwrap()
            }
            algorithm => Limit::new(70, limit.period()).unwrap().with_algorithm(algorithm).unwrap(),
        };
        let smaller = std::mem::replace(&mut tested.policy, Policy::new([larger]).unwrap());
        let raised = used(&tested.decide(Mode::Peek, 0).await);
        assert_eq!(raised, if is_share { raised.max(1) } else { 5 }, "{limit}");
        tested.policy = smaller;
        assert_eq!(used(&tested.decide(Mode::Peek, 0).await), 5, "{limit}");
    })
    .await;
}
