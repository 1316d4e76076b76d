mod attack;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::Mode;
use crate::model::{Cost, Limit, Subject};
use crate::policy::Policy;
use crate::store::{
    DecideRequest, MemoryStore, Namespace, Part, Refund, RefundOf, Reset, Store, StoreFuture,
};
use crate::time::{Clock, ManualClock, Timestamp};

const HOUR: Duration = Duration::from_secs(3_600);

/// Two units per hour.
fn two() -> Policy {
    Policy::new([Limit::per_hour(2)]).unwrap()
}

/// The n-th of the callers that somebody invents.
fn invented(n: usize) -> Subject {
    Subject::user(&n.to_string())
}

fn at_once<T>(answer: StoreFuture<T>) -> T {
    match answer {
        MaybeReady::Ready(Some(Ok(answer))) => answer,
        other => panic!("{other:?}"),
    }
}

fn decide<C: Clock>(
    store: &MemoryStore<C>,
    policy: &Policy,
    subject: &Subject,
    mode: Mode,
    cost: u64,
) -> Decision {
    static NAMESPACE: LazyLock<Namespace> = LazyLock::new(Namespace::default);
    let (namespace, cost) = (&*NAMESPACE, Cost::new(cost));
    at_once(store.decide(DecideRequest::new(namespace, &[Part::new(subject, policy, cost)], mode)))
}

/// One request of one unit; whether it passes.
fn passes<C: Clock>(store: &MemoryStore<C>, policy: &Policy, subject: &Subject) -> bool {
    decide(store, policy, subject, Mode::Check, 1).is_allowed()
}

/// A store for so many subjects, and its clock.
fn store(capacity: usize) -> (MemoryStore<Arc<ManualClock>>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_767_225_600)));
    let builder = MemoryStore::builder().capacity(capacity).clock(Arc::clone(&clock));
    (builder.build(), clock)
}

#[test]
fn a_million_invented_subjects_do_not_fill_the_memory() {
    let (store, _) = store(1_000);
    let policy = two();
    for n in 0..1_000_000 {
        assert!(passes(&store, &policy, &invented(n)));
    }
    // 64 shards for 16 subjects each.
    assert_eq!(store.len(), 1_024);
}

/// Else a caller who is over its limit would only have to invent others until it is forgotten.
#[test]
fn a_denied_subject_is_not_forgotten_for_newcomers() {
    let (store, clock) = store(64);
    let policy = two();
    let debtor = Subject::user("debtor");
    assert!(passes(&store, &policy, &debtor) && passes(&store, &policy, &debtor));
    for n in 0..50_000 {
        passes(&store, &policy, &invented(n));
    }
    assert!(!passes(&store, &policy, &debtor));

    clock.advance(HOUR);
    assert!(passes(&store, &policy, &debtor));
}

/// Of those that inspection meets, who has used more stays.
#[test]
fn who_has_used_least_makes_room() {
    let (store, _) = store(64 * 8);
    let policy = Policy::new([Limit::per_hour(10)]).unwrap();
    let regulars: Vec<_> = (0..64).map(|n| Subject::consumer(&n.to_string())).collect();
    for regular in &regulars {
        assert_eq!(decide(&store, &policy, regular, Mode::Check, 9).granted(), 9);
    }
    for n in 0..20_000 {
        passes(&store, &policy, &invented(n));
    }
    let kept = regulars.iter().filter(|regular| {
        decide(&store, &policy, regular, Mode::Peek, 0).limits().next().unwrap().used() == 9
    });
    // A shard that has drawn eight of them by chance has to lose one.
    assert!(kept.count() >= 60);
}

/// A newcomer that uses up nearly all at once does not push out the first who has used less than that.
#[test]
fn who_has_used_much_is_not_forgotten_before_others_were_looked_at() {
    let (store, _) = store(64 * 8);
    let policy = Policy::new([Limit::per_hour(10)]).unwrap();
    let regulars: Vec<_> = (0..64).map(|n| Subject::consumer(&n.to_string())).collect();
    for regular in &regulars {
        assert_eq!(decide(&store, &policy, regular, Mode::Check, 6).granted(), 6);
    }
    for n in 0..5_000 {
        passes(&store, &policy, &invented(n));
    }
    for n in 5_000..5_128 {
        assert_eq!(decide(&store, &policy, &invented(n), Mode::Check, 9).granted(), 9);
    }
    let kept = regulars.iter().filter(|regular| {
        decide(&store, &policy, regular, Mode::Peek, 0).limits().next().unwrap().used() == 6
    });
    // Else one in eight of the newcomers would have found one of them first.
    assert!(kept.count() >= 60);
}

/// Where nobody can be forgotten, newcomers count together: they can neither push anybody out, nor
/// pass without being counted.
#[test]
fn when_all_are_denied_newcomers_count_together() {
    let (store, clock) = store(64);
    let policy = Policy::new([Limit::per_hour(1)]).unwrap();
    // One subject in each of 64 shards, and for each one that is shared by all who find no room.
    let passed = (0..10_000).filter(|n| passes(&store, &policy, &invented(*n))).count();
    assert_eq!((passed, store.len()), (128, 128));

    // Once the windows have ended there is room again.
    clock.advance(HOUR);
    let passed = (20_000..20_064).filter(|n| passes(&store, &policy, &invented(*n))).count();
    assert!(passed >= 32, "{passed}");
}

#[test]
fn what_has_expired_is_dropped_in_passing() {
    let (store, clock) = store(1_000_000);
    let policy = two();
    for n in 0..20_000 {
        passes(&store, &policy, &invented(n));
    }
    assert_eq!(store.len(), 20_000);
    clock.advance(HOUR);
    // Half as many newcomers, each of whom looks at eight.
    for n in 20_000..30_000 {
        passes(&store, &policy, &invented(n));
    }
    assert_eq!(store.len(), 10_000);
}

#[test]
fn nothing_is_held_of_whom_nothing_is_charged_to() {
    let (store, _) = store(64);
    let policy = two();
    for n in 0..1_000 {
        decide(&store, &policy, &invented(n), Mode::Peek, 1);
        decide(&store, &policy, &invented(n), Mode::Check, 0);
        decide(&store, &policy, &invented(n), Mode::Check, 3);
        decide(&store, &Policy::new([Limit::per_hour(0)]).unwrap(), &invented(n), Mode::Check, 1);
    }
    assert!(store.is_empty());
    assert!(passes(&store, &policy, &invented(0)));
    assert_eq!(store.len(), 1);
}

#[test]
fn the_least_capacity_is_a_subject_for_each_shard() {
    let (store, _) = store(0);
    let policy = two();
    for n in 0..10_000 {
        assert!(passes(&store, &policy, &invented(n)));
    }
    assert_eq!(store.len(), 64);
}

/// A clock that panics when it is told to: under the lock, where the store reads it.
#[derive(Debug, Default)]
struct Treacherous {
    panics: AtomicBool,
    clock: ManualClock,
}

impl Clock for Treacherous {
    fn now(&self) -> Timestamp {
        assert!(!self.panics.load(Ordering::SeqCst), "told to");
        self.clock.now()
    }
}

/// One panic must not be a panic for each request of a 64th of all subjects from there on.
#[test]
fn a_panic_under_the_lock_leaves_the_counters_usable() {
    let clock = Arc::new(Treacherous::default());
    let store = Arc::new(MemoryStore::builder().clock(Arc::clone(&clock)).build());
    let alice = Subject::user("alice");
    assert!(passes(&store, &two(), &alice));

    clock.panics.store(true, Ordering::SeqCst);
    let (theirs, subject) = (Arc::clone(&store), alice.clone());
    let panicked = std::thread::spawn(move || passes(&theirs, &two(), &subject)).join();
    assert!(panicked.is_err());
    assert!(store.shards.iter().any(std::sync::Mutex::is_poisoned));

    clock.panics.store(false, Ordering::SeqCst);
    assert!(passes(&store, &two(), &alice));
    assert!(!passes(&store, &two(), &alice));
    assert_eq!(store.len(), 1);
}

#[test]
fn decisions_on_known_subjects_do_not_allocate() {
    let (store, clock) = store(1_000);
    let six = Policy::new([
        Limit::per_second(1_000),
        Limit::per_minute(1_000),
        Limit::per_hour(1_000),
        Limit::per_day(1_000),
        Limit::per_week(1_000),
        Limit::per_month(1_000),
    ])
    .unwrap();
    let allocated = |subject: &Subject, mode, cost| {
        let decide = || drop(decide(&store, &six, subject, mode, cost));
        allocation_counter::measure(decide).count_total
    };
    let alice = Subject::user("alice");
    // The counter counts: the first decision makes an entry.
    assert_ne!(allocated(&alice, Mode::Check, 1), 0);
    for (mode, cost) in [
        (Mode::Check, 1),
        (Mode::Check, 0),
        (Mode::Check, 2_000),
        (Mode::CheckUpTo, 3),
        (Mode::Peek, 1),
        (Mode::Charge, 5),
    ] {
        assert_eq!(allocated(&alice, mode, cost), 0, "{mode:?} {cost}");
    }
    // New windows take the place of the old ones.
    clock.advance(HOUR * 24 * 40);
    assert_eq!(allocated(&alice, Mode::Check, 1), 0);
    // A stranger who is denied is not worth an entry.
    assert_eq!(allocated(&Subject::user("stranger"), Mode::Check, 2_000), 0);
}

#[test]
fn a_denied_subject_that_gets_units_back_makes_room_again() {
    let (store, _) = store(64);
    let policy = Policy::new([Limit::per_hour(1)]).unwrap();
    for subject in (0..1_000).map(invented) {
        let charged = decide(&store, &policy, &subject, Mode::Check, 1);
        // Nobody stands in the way, though each of those before was denied for a moment.
        assert!(charged.is_allowed());
        let (namespace, charged) = (&Namespace::default(), charged.at());
        let refund = Refund {
            namespace,
            subject: &subject,
            policy: &policy,
            charged,
            units: 1,
            of: RefundOf::All,
            uncharged: crate::policy::LimitSet::EMPTY,
        };
        at_once(store.refund(refund));
    }
    assert_eq!(store.len(), 64);
}

/// A denial by one limit was forgotten when another was reset, when another policy was charged, and
/// when the subject had something left but too little.
#[test]
fn a_denied_subject_stays_whatever_it_is_denied_by() {
    let (store, _) = store(64);
    let minute_and_hour = Policy::new([Limit::per_minute(1), Limit::per_hour(1)]).unwrap();
    let day = Policy::new([Limit::per_day(9)]).unwrap();
    let large = Policy::new([Limit::per_hour(1_000)]).unwrap();
    let [reset, elsewhere, costly] = ["reset", "elsewhere", "costly"].map(Subject::user);

    assert!(passes(&store, &minute_and_hour, &reset));
    let namespace = &Namespace::default();
    let (subject, policy) = (&reset, &minute_and_hour);
    at_once(store.reset(Reset { namespace, subject, policy, limit: Some(0) }));
    assert!(passes(&store, &minute_and_hour, &elsewhere) && passes(&store, &day, &elsewhere));
    decide(&store, &large, &costly, Mode::Check, 999);
    assert!(!decide(&store, &large, &costly, Mode::Check, 5).is_allowed());

    for n in 0..20_000 {
        passes(&store, &two(), &invented(n));
    }
    assert!(!passes(&store, &minute_and_hour, &reset));
    assert!(!passes(&store, &minute_and_hour, &elsewhere));
    assert!(!decide(&store, &large, &costly, Mode::Check, 5).is_allowed());
}
