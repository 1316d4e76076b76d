//! Floods of invented subjects: what they cannot grow, and whom they cannot free.

use super::*;
use crate::policy::LimitSet;
use crate::store::Renewal;

/// One limit of each algorithm, six units each, and what else limits can be told.
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

/// The units that the subject has used of each limit.
fn used<C: Clock>(store: &MemoryStore<C>, policy: &Policy, subject: &Subject) -> Vec<u64> {
    let standing = decide(store, policy, subject, Mode::Peek, 0);
    standing.limits().map(|limit| limit.used()).collect()
}

/// How many subjects to invent: ten million in a soak (`RL_SOAK=1`).
fn flood() -> usize {
    if std::env::var_os("RL_SOAK").is_some() { 10_000_000 } else { 40_000 }
}

/// Each algorithm has a debtor of its own, and a second whom only a large request finds denied. The
/// newcomers come once and have room left, or are over their limit at once.
#[test]
fn who_is_over_a_limit_stays_over_it_under_a_flood() {
    for newcomers in ["9/hour", "1/hour", "1:concurrency:lease=1h", "1/hour:sliding-log"] {
        let (store, clock) = store(64 * 30);
        let newcomers = policy(&[newcomers]);
        let debtors = LIMITS.map(|limit| (policy(&[limit]), Subject::consumer(limit)));
        for (policy, debtor) in &debtors {
            for _ in 0..6 {
                assert!(passes(&store, policy, debtor));
            }
        }
        for n in 0..flood() / 4 {
            passes(&store, &newcomers, &invented(n));
            if n % 1_000 == 0 {
                clock.advance(Duration::from_micros(1));
            }
        }
        for (policy, debtor) in &debtors {
            let limit = policy.limits()[0].limit();
            assert!(!passes(&store, policy, debtor), "{limit}");
            assert_eq!(used(&store, policy, debtor), [6], "{limit}");
        }
        // 64 shards of 30, and in each what is counted together.
        assert!(store.len() <= 64 * 31, "{}", store.len());
    }
}

/// Permits are held as long as the work takes: a flood in between neither frees nor loses them.
#[test]
fn permits_that_are_held_under_a_flood_are_given_back_one_by_one() {
    let (store, clock) = store(64 * 4);
    let (policy, holder) = (policy(&["3:concurrency:lease=1h"]), Subject::user("holder"));
    let mut held = Vec::new();
    for _ in 0..3 {
        clock.advance(Duration::from_millis(1));
        held.push(decide(&store, &policy, &holder, Mode::Check, 1).at());
    }
    for charged in held {
        for n in 0..flood() / 10 {
            passes(&store, &two(), &invented(n));
        }
        assert!(!passes(&store, &policy, &holder));
        let (namespace, subject, policy) = (&Namespace::default(), &holder, &policy);
        let (of, uncharged) = (RefundOf::Permits, LimitSet::EMPTY);
        at_once(store.refund(Refund {
            namespace,
            subject,
            policy,
            charged,
            units: 1,
            of,
            uncharged,
        }));
        clock.advance(Duration::from_millis(1));
        assert!(passes(&store, policy, subject));
        assert!(!passes(&store, policy, subject));
    }
}

/// Their entry, once there is room for one, knows nothing of what was counted with others.
#[test]
fn places_that_were_counted_with_others_are_renewed_and_freed_there() {
    let (store, clock) = store(64 * 2);
    for n in 0..1_000 {
        passes(&store, &policy(&["1/hour"]), &invented(n));
    }
    let (policy, holder) = (policy(&["2:concurrency:lease=5h"]), Subject::user("holder"));
    let first = decide(&store, &policy, &holder, Mode::Check, 1).at();
    clock.advance(HOUR);
    let (namespace, subject, policy) = (&Namespace::default(), &holder, &policy);
    let second = decide(&store, policy, subject, Mode::Check, 1).at();
    assert_eq!(used(&store, policy, subject), [1], "it has an entry of its own");

    let uncharged = LimitSet::EMPTY;
    let renew = |charged| {
        let renewal = Renewal { namespace, subject, policy, charged, units: 1, uncharged };
        at_once(store.renew(renewal))
    };
    clock.advance(HOUR);
    let first = renew(first).unwrap();
    clock.advance(HOUR);
    for charged in [first, renew(second).unwrap()] {
        let of = RefundOf::Permits;
        at_once(store.refund(Refund {
            namespace,
            subject,
            policy,
            charged,
            units: 1,
            of,
            uncharged,
        }));
        assert_eq!(renew(charged), None);
    }
    assert_eq!(used(&store, policy, subject), [0]);
}

/// Who has used four fifths of a large limit has more left than a newcomer under a small one ever
/// had, and was forgotten first: the units that are left do not compare.
#[test]
fn large_consumers_are_not_forgotten_for_small_ones() {
    let (store, _) = store(64 * 16);
    let (large, small) = (policy(&["5000/hour", "100000/day"]), policy(&["10/hour"]));
    let consumers: Vec<_> = (0..32).map(|n| Subject::consumer(&n.to_string())).collect();
    for consumer in &consumers {
        decide(&store, &large, consumer, Mode::Check, 4_000);
    }
    for n in 0..flood() {
        passes(&store, &small, &invented(n));
    }
    for consumer in &consumers {
        assert_eq!(used(&store, &large, consumer), [4_000, 4_000]);
    }
}

/// Who finds no room is counted with all others who do not, each limit on its own, and however much
/// they invent they get no more than one of them would.
#[test]
fn newcomers_for_whom_there_is_no_room_share_what_one_has() {
    for limit in LIMITS {
        let (store, _) = store(64);
        let policy = policy(&[limit]);
        // They take all they may at once, so that nobody makes room.
        let mut granted = 0;
        for n in 0..1_500 {
            for _ in 0..7 {
                granted += u64::from(passes(&store, &policy, &invented(n)));
            }
        }
        assert_eq!((granted, store.len()), (6 * 128, 128), "{limit}");
    }
}

/// An id of many kilobytes takes the room of a short one.
#[test]
fn long_ids_take_no_more_room() {
    let retained = |id: &dyn Fn(usize) -> String| {
        let subjects: Vec<_> = (0..640).map(|n| Subject::consumer(&id(n))).collect();
        let (store, _) = store(1_000);
        let counted = allocation_counter::measure(|| {
            assert!(subjects.iter().all(|subject| passes(&store, &two(), subject)));
        });
        counted.bytes_current
    };
    let short = retained(&|n| n.to_string());
    let long = retained(&|n| format!("{n}{}", "{}\r\n\0:".repeat(2_000)));
    let ratio = long * 100 / short;
    assert!((80..=120).contains(&ratio), "{short} bytes, {long} of long ones");
}

/// The memory of a full store under a flood, and what a subject costs.
#[test]
fn a_flood_takes_no_more_than_the_memory_of_a_full_store() {
    let capacity = flood() / 10;
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
                    passes(&store, &policy, &invented(n));
                }
            });
            counted.bytes_current
        };
        let full = invent(0, capacity * 3 / 2);
        let after = invent(capacity * 3 / 2, flood());
        let each = full / capacity as i64;
        println!("{limits:?}: {each} bytes for each of {capacity}, {after} more after a flood");
        assert!(store.len() <= capacity.next_multiple_of(64) + 64, "{}", store.len());
        assert!(each <= most, "{limits:?}: {each} bytes");
        assert!(after.abs() <= full / 20, "{limits:?}: {after} bytes after {full}");
    }
}

/// A limit that is lowered, or no longer only tried, judges who has been held since before.
#[test]
fn who_has_used_most_of_a_lowered_limit_does_not_make_room() {
    for before in ["1000000/hour", "10/hour:shadow", "1000000/hour:gcra"] {
        let after = if before.ends_with("gcra") { "10/hour:gcra" } else { "10/hour" };
        let (before, after) = (policy(&[before]), policy(&[after]));
        let (store, _) = store(64 * 8);
        let user = Subject::user("user");
        assert!(passes(&store, &before, &user));
        for _ in 0..8 {
            assert!(passes(&store, &after, &user));
        }
        for n in 0..flood() / 10 {
            passes(&store, &after, &invented(n));
        }
        assert!(used(&store, &after, &user)[0] >= 8, "{before:?}");
    }
}
