//! Floods of invented subjects: they neither grow the memory nor end the denial of another subject.

use super::*;
use crate::policy::LimitSet;
use crate::store::{Lease, Renewal};

/// Limits of six units: one for each algorithm and for each option of it.
const LIMITS: [&str; 10] = [
    "6/hour",
    "6/hour:clock",
    "6/hour:sliding-log",
    "6/hour:sliding-window:precision=5m",
    "6/hour:sliding-window-counter",
    "6/hour:gcra",
    "6/hour:token-bucket:refill=interval",
    "6/hour:token-bucket:capacity=6",
    "6:concurrency:lease=1h",
    "6/hour:requests",
];

fn policy(limits: &[&str]) -> Policy {
    Policy::new(limits.iter().map(|limit| limit.parse().unwrap())).unwrap()
}

/// Returns the units that the subject has used of each limit.
fn used<C: Clock>(store: &MemoryStore<C>, policy: &Policy, subject: &Subject) -> Vec<u64> {
    let decision = decide(store, policy, subject, Mode::Peek, 0);
    decision.limits().map(|limit| limit.used()).collect()
}

/// Returns the number of subjects to invent: ten million in a soak test (`RL_SOAK=1`).
fn flood_size() -> usize {
    if std::env::var_os("RL_SOAK").is_some() { 10_000_000 } else { 40_000 }
}

/// Under each algorithm, a subject is denied. Then new subjects make one request each, which must
/// not end the denial. Under some of their policies, one request uses up the limit.
#[test]
fn a_denied_subject_stays_denied_under_a_flood() {
    for newcomers in ["9/hour", "1/hour", "1:concurrency:lease=1h", "1/hour:sliding-log"] {
        let (store, clock) = store(64 * 30);
        let newcomers = policy(&[newcomers]);
        let denied = LIMITS.map(|limit| (policy(&[limit]), Subject::consumer(limit)));
        for (policy, subject) in &denied {
            for _ in 0..6 {
                assert!(is_allowed(&store, policy, subject));
            }
        }
        for n in 0..flood_size() / 4 {
            is_allowed(&store, &newcomers, &invented(n));
            if n % 1_000 == 0 {
                clock.advance(Duration::from_micros(1));
            }
        }
        for (policy, subject) in &denied {
            let limit = policy.limits()[0].limit();
            assert!(!is_allowed(&store, policy, subject), "{limit}");
            assert_eq!(used(&store, policy, subject), [6], "{limit}");
        }
        // 64 shards of 30 subjects, and one shared entry in each shard.
        assert!(store.len() <= 64 * 31, "{}", store.len());
    }
}

/// A flood must neither release nor lose permits, even if they are held for a long time.
#[test]
fn permits_survive_a_flood_and_are_released_one_by_one() {
    let (store, clock) = store(64 * 4);
    let (policy, holder) = (policy(&["3:concurrency:lease=1h"]), Subject::user("holder"));
    let mut held = Vec::new();
    for _ in 0..3 {
        clock.advance(Duration::from_millis(1));
        held.push(decide(&store, &policy, &holder, Mode::Check, 1).at());
    }
    for charged in held {
        for n in 0..flood_size() / 10 {
            is_allowed(&store, &two(), &invented(n));
        }
        assert!(!is_allowed(&store, &policy, &holder));
        let (namespace, subject, policy) = (&Namespace::default(), &holder, &policy);
        let (of, uncharged) = (RefundOf::Permits, LimitSet::EMPTY);
        ready(store.settle(&[
            Refund { namespace, subject, policy, charged, units: 1, of, uncharged }.into(),
        ]));
        clock.advance(Duration::from_millis(1));
        assert!(is_allowed(&store, policy, subject));
        assert!(!is_allowed(&store, policy, subject));
    }
}

/// Checks a permit that is in the shared entry. Its subject has got an entry of its own since,
/// which does not contain this permit.
#[test]
fn permits_in_the_shared_entry_are_renewed_and_released_there() {
    let (store, clock) = store(64 * 2);
    for n in 0..1_000 {
        is_allowed(&store, &policy(&["1/hour"]), &invented(n));
    }
    let (policy, holder) = (policy(&["2:concurrency:lease=5h"]), Subject::user("holder"));
    let first = decide(&store, &policy, &holder, Mode::Check, 1).at();
    clock.advance(HOUR);
    let (namespace, subject, policy) = (&Namespace::default(), &holder, &policy);
    let second = decide(&store, policy, subject, Mode::Check, 1).at();
    assert_eq!(used(&store, policy, subject), [1], "the subject has an entry of its own");

    let uncharged = LimitSet::EMPTY;
    let renew = |charged| {
        let renewal = Renewal {
            namespace,
            subject,
            policy,
            charged,
            units: 1,
            uncharged,
            lease: Lease::Permits,
        };
        ready(store.renew(renewal)).held()
    };
    clock.advance(HOUR);
    let first = renew(first).unwrap();
    clock.advance(HOUR);
    for charged in [first, renew(second).unwrap()] {
        let of = RefundOf::Permits;
        ready(store.settle(&[
            Refund { namespace, subject, policy, charged, units: 1, of, uncharged }.into(),
        ]));
        assert_eq!(renew(charged), None);
    }
    assert_eq!(used(&store, policy, subject), [0]);
}

/// Fault: eviction compared remaining units. A subject that had used four fifths of a large limit
/// was evicted first, because it had more units left than a small limit ever grants.
#[test]
fn large_consumers_are_not_evicted_for_small_ones() {
    let (store, _) = store(64 * 16);
    let (large, small) = (policy(&["5000/hour", "100000/day"]), policy(&["10/hour"]));
    let consumers: Vec<_> = (0..32).map(|n| Subject::consumer(&n.to_string())).collect();
    for consumer in &consumers {
        decide(&store, &large, consumer, Mode::Check, 4_000);
    }
    for n in 0..flood_size() {
        is_allowed(&store, &small, &invented(n));
    }
    for consumer in &consumers {
        assert_eq!(used(&store, &large, consumer), [4_000, 4_000]);
    }
}

/// New subjects without room are counted together, so inventing more subjects gains nothing.
#[test]
fn new_subjects_without_room_share_the_limit_of_one_subject() {
    for limit in LIMITS {
        let (store, _) = store(64);
        let policy = policy(&[limit]);
        // Each subject uses up its limit at once, so that none can be evicted.
        let mut granted = 0;
        for n in 0..1_500 {
            for _ in 0..7 {
                granted += u64::from(is_allowed(&store, &policy, &invented(n)));
            }
        }
        assert_eq!((granted, store.len()), (6 * 128, 128), "{limit}");
    }
}

#[test]
fn long_ids_take_no_more_memory() {
    let retained = |id: &dyn Fn(usize) -> String| {
        let subjects: Vec<_> = (0..640).map(|n| Subject::consumer(&id(n))).collect();
        let (store, _) = store(1_000);
        let counted = allocation_counter::measure(|| {
            assert!(subjects.iter().all(|subject| is_allowed(&store, &two(), subject)));
        });
        counted.bytes_current
    };
    let short = retained(&|n| n.to_string());
    let long = retained(&|n| format!("{n}{}", "{}\r\n\0:".repeat(2_000)));
    let ratio = long * 100 / short;
    assert!((80..=120).contains(&ratio), "{short} bytes, {long} of long ones");
}

/// Also prints the bytes that each subject takes.
#[test]
fn a_flood_takes_no_more_memory_than_a_full_store() {
    let capacity = flood_size() / 10;
    for (limits, most) in [
        (&["100/minute"][..], 500),
        (&["10/second", "100/minute", "1000/hour", "9/day", "9/week", "9/month"], 500),
        (&["100/hour:sliding-log"], 700),
        (&["9:concurrency"], 700),
    ] {
        let (policy, (store, _)) = (policy(limits), store(capacity));
        let invent = |from: usize, to: usize| {
            let counted = allocation_counter::measure(|| {
                for n in from..to {
                    is_allowed(&store, &policy, &invented(n));
                }
            });
            counted.bytes_current
        };
        let full = invent(0, capacity * 3 / 2);
        let after = invent(capacity * 3 / 2, flood_size());
        let each = full / capacity as i64;
        println!("{limits:?}: {each} bytes for each of {capacity}, {after} more after a flood");
        assert!(store.len() <= capacity.next_multiple_of(64) + 64, "{}", store.len());
        assert!(each <= most, "{limits:?}: {each} bytes");
        assert!(after.abs() <= full / 20, "{limits:?}: {after} bytes after {full}");
    }
}

/// When a limit is lowered or leaves shadow, the units that were used before count in the
/// comparison of used fractions.
#[test]
fn a_subject_that_has_used_most_of_a_lowered_limit_is_not_evicted() {
    for before in ["1000000/hour", "10/hour:shadow", "1000000/hour:gcra"] {
        let after = if before.ends_with("gcra") { "10/hour:gcra" } else { "10/hour" };
        let (before, after) = (policy(&[before]), policy(&[after]));
        let (store, _) = store(64 * 8);
        let user = Subject::user("user");
        assert!(is_allowed(&store, &before, &user));
        for _ in 0..8 {
            assert!(is_allowed(&store, &after, &user));
        }
        for n in 0..flood_size() / 10 {
            is_allowed(&store, &after, &invented(n));
        }
        assert!(used(&store, &after, &user)[0] >= 8, "{before:?}");
    }
}
