mod flood;
mod parts;
mod settlement;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::Mode;
use crate::model::{Cost, Limit, Subject};
use crate::policy::Policy;
use crate::store::memory::MemoryStore;
use crate::store::{DecideRequest, Namespace, Part, Refund, RefundOf, Reset, Store, StoreFuture};
use crate::time::{Clock, ManualClock, Timestamp};

const HOUR: Duration = Duration::from_secs(3_600);

/// Returns a policy of two units per hour.
fn two() -> Policy {
    Policy::new([Limit::per_hour(2)]).unwrap()
}

/// Returns the n-th subject that a client invents.
fn invented(n: usize) -> Subject {
    Subject::user(&n.to_string())
}

fn ready<T>(result: StoreFuture<T>) -> T {
    match result {
        MaybeReady::Ready(Some(Ok(value))) => value,
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
    ready(store.decide(DecideRequest::new(namespace, &[Part::new(subject, policy, cost)], mode)))
}

/// Returns whether a request of one unit is allowed.
fn is_allowed<C: Clock>(store: &MemoryStore<C>, policy: &Policy, subject: &Subject) -> bool {
    decide(store, policy, subject, Mode::Check, 1).is_allowed()
}

/// Creates a store for `capacity` subjects, and its clock.
fn store(capacity: usize) -> (MemoryStore<Arc<ManualClock>>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_767_225_600)));
    let builder = MemoryStore::builder().capacity(capacity).clock(Arc::clone(&clock));
    (builder.build(), clock)
}

/// Fault: the output contained every entry, and each shard was locked while it was formatted.
#[test]
fn debug_output_is_short_however_many_subjects_there_are() {
    let (store, _) = store(1_000);
    for n in 0..1_000 {
        assert!(is_allowed(&store, &two(), &invented(n)));
    }
    let text = format!("{store:?}");
    assert!(text.starts_with("MemoryStore") && text.len() < 100, "{text}");
}

#[test]
fn a_store_holds_no_more_subjects_than_its_capacity() {
    let (store, _) = store(1_000);
    let policy = two();
    for n in 0..1_000_000 {
        assert!(is_allowed(&store, &policy, &invented(n)));
    }
    // 64 shards of 16 subjects each.
    assert_eq!(store.len(), 1_024);
}

/// A client must not get rid of a denial by inventing subjects.
#[test]
fn a_denied_subject_is_not_evicted_by_new_subjects() {
    let (store, clock) = store(64);
    let policy = two();
    let denied = Subject::user("denied");
    assert!(is_allowed(&store, &policy, &denied) && is_allowed(&store, &policy, &denied));
    for n in 0..50_000 {
        is_allowed(&store, &policy, &invented(n));
    }
    assert!(!is_allowed(&store, &policy, &denied));

    clock.advance(HOUR);
    assert!(is_allowed(&store, &policy, &denied));
}

#[test]
fn eviction_prefers_the_least_used_of_the_inspected_subjects() {
    let (store, _) = store(64 * 8);
    let policy = Policy::new([Limit::per_hour(10)]).unwrap();
    let regulars: Vec<_> = (0..64).map(|n| Subject::consumer(&n.to_string())).collect();
    for regular in &regulars {
        assert_eq!(decide(&store, &policy, regular, Mode::Check, 9).granted(), 9);
    }
    for n in 0..20_000 {
        is_allowed(&store, &policy, &invented(n));
    }
    let remaining = regulars.iter().filter(|regular| {
        decide(&store, &policy, regular, Mode::Peek, 0).limits().next().unwrap().used() == 9
    });
    // A shard has room for eight subjects. If it has eight regulars by chance, one of them is
    // evicted.
    assert!(remaining.count() >= 60);
}

/// A new subject that uses most of its limit must inspect several entries. It must not evict the
/// first subject only because that has used less than the new one.
#[test]
fn eviction_inspects_further_subjects_if_the_first_has_used_much() {
    let (store, _) = store(64 * 8);
    let policy = Policy::new([Limit::per_hour(10)]).unwrap();
    let regulars: Vec<_> = (0..64).map(|n| Subject::consumer(&n.to_string())).collect();
    for regular in &regulars {
        assert_eq!(decide(&store, &policy, regular, Mode::Check, 6).granted(), 6);
    }
    for n in 0..5_000 {
        is_allowed(&store, &policy, &invented(n));
    }
    for n in 5_000..5_128 {
        assert_eq!(decide(&store, &policy, &invented(n), Mode::Check, 9).granted(), 9);
    }
    let remaining = regulars.iter().filter(|regular| {
        decide(&store, &policy, regular, Mode::Peek, 0).limits().next().unwrap().used() == 6
    });
    // If each new subject inspected only one entry, one in eight of them would find a regular
    // subject, and evict it.
    assert!(remaining.count() >= 60);
}

/// If all subjects of a full store are denied, new subjects must evict none of them, and must still
/// be counted.
#[test]
fn new_subjects_share_an_entry_when_all_others_are_denied() {
    let (store, clock) = store(64);
    let policy = Policy::new([Limit::per_hour(1)]).unwrap();
    // One subject in each of 64 shards, and one shared entry in each shard.
    let passed = (0..10_000).filter(|n| is_allowed(&store, &policy, &invented(*n))).count();
    assert_eq!((passed, store.len()), (128, 128));

    // Once the windows have ended, there is room again.
    clock.advance(HOUR);
    let passed = (20_000..20_064).filter(|n| is_allowed(&store, &policy, &invented(*n))).count();
    assert!(passed >= 32, "{passed}");
}

#[test]
fn new_subjects_drop_expired_ones() {
    let (store, clock) = store(1_000_000);
    let policy = two();
    for n in 0..20_000 {
        is_allowed(&store, &policy, &invented(n));
    }
    assert_eq!(store.len(), 20_000);
    clock.advance(HOUR);
    // Add half as many new subjects. Each of them inspects eight entries, so that all expired
    // entries are removed.
    for n in 20_000..30_000 {
        is_allowed(&store, &policy, &invented(n));
    }
    assert_eq!(store.len(), 10_000);
}

#[test]
fn a_subject_without_a_charge_gets_no_entry() {
    let (store, _) = store(64);
    let policy = two();
    for n in 0..1_000 {
        decide(&store, &policy, &invented(n), Mode::Peek, 1);
        decide(&store, &policy, &invented(n), Mode::Check, 0);
        decide(&store, &policy, &invented(n), Mode::Check, 3);
        decide(&store, &Policy::new([Limit::per_hour(0)]).unwrap(), &invented(n), Mode::Check, 1);
    }
    assert!(store.is_empty());
    assert!(is_allowed(&store, &policy, &invented(0)));
    assert_eq!(store.len(), 1);
}

#[test]
fn the_smallest_store_holds_one_subject_in_each_shard() {
    let (store, _) = store(0);
    let policy = two();
    for n in 0..10_000 {
        assert!(is_allowed(&store, &policy, &invented(n)));
    }
    assert_eq!(store.len(), 64);
}

/// A clock that panics when a test demands it. The store reads the clock while it holds the lock of
/// a shard, so the panic poisons that lock.
#[derive(Debug, Default)]
struct PanickingClock {
    panics: AtomicBool,
    clock: ManualClock,
}

impl Clock for PanickingClock {
    fn now(&self) -> Timestamp {
        assert!(!self.panics.load(Ordering::SeqCst), "a panic under the lock");
        self.clock.now()
    }
}

/// If the store did not ignore poisoned locks, one panic would make all later requests panic for
/// the subjects in one of the 64 shards.
#[test]
fn a_panic_under_the_lock_leaves_the_counters_usable() {
    let clock = Arc::new(PanickingClock::default());
    let store = Arc::new(MemoryStore::builder().clock(Arc::clone(&clock)).build());
    let alice = Subject::user("alice");
    assert!(is_allowed(&store, &two(), &alice));

    clock.panics.store(true, Ordering::SeqCst);
    let (theirs, subject) = (Arc::clone(&store), alice.clone());
    let panicked = std::thread::spawn(move || is_allowed(&theirs, &two(), &subject)).join();
    assert!(panicked.is_err());
    assert!(store.shards.iter().any(std::sync::Mutex::is_poisoned));

    clock.panics.store(false, Ordering::SeqCst);
    assert!(is_allowed(&store, &two(), &alice));
    assert!(!is_allowed(&store, &two(), &alice));
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
    // Check that allocations are counted at all: the first decision allocates an entry.
    assert_ne!(allocated(&alice, Mode::Check, 1), 0);
    // The first peek of a thread allocates the box of its outcomes, which the thread recycles.
    allocated(&alice, Mode::Peek, 1);
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
    // New windows replace the old ones without an allocation.
    clock.advance(HOUR * 24 * 40);
    assert_eq!(allocated(&alice, Mode::Check, 1), 0);
    // A new subject that is denied gets no entry.
    assert_eq!(allocated(&Subject::user("newcomer"), Mode::Check, 2_000), 0);
}

#[test]
fn a_refunded_subject_can_be_evicted_again() {
    let (store, _) = store(64);
    let policy = Policy::new([Limit::per_hour(1)]).unwrap();
    for subject in (0..1_000).map(invented) {
        let charged = decide(&store, &policy, &subject, Mode::Check, 1);
        // Each previous subject used up its limit, and then got a refund, so it can be evicted. If
        // it could not, new subjects would soon share one entry, and be denied.
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
        ready(store.settle(&[refund.into()]));
    }
    assert_eq!(store.len(), 64);
}

/// Fault: a denied subject was evicted after another of its limits was reset, after another policy
/// was charged, or if some units remained, but too few for the request.
#[test]
fn a_denied_subject_is_not_evicted_whatever_limit_denies_it() {
    let (store, _) = store(64);
    let minute_and_hour = Policy::new([Limit::per_minute(1), Limit::per_hour(1)]).unwrap();
    let day = Policy::new([Limit::per_day(9)]).unwrap();
    let large = Policy::new([Limit::per_hour(1_000)]).unwrap();
    let [reset, elsewhere, costly] = ["reset", "elsewhere", "costly"].map(Subject::user);

    assert!(is_allowed(&store, &minute_and_hour, &reset));
    let namespace = &Namespace::default();
    let (subject, policy) = (&reset, &minute_and_hour);
    ready(store.reset(&[Reset { namespace, subject, policy, limit: Some(0) }]));
    assert!(
        is_allowed(&store, &minute_and_hour, &elsewhere) && is_allowed(&store, &day, &elsewhere)
    );
    decide(&store, &large, &costly, Mode::Check, 999);
    assert!(!decide(&store, &large, &costly, Mode::Check, 5).is_allowed());

    for n in 0..20_000 {
        is_allowed(&store, &two(), &invented(n));
    }
    assert!(!is_allowed(&store, &minute_and_hour, &reset));
    assert!(!is_allowed(&store, &minute_and_hour, &elsewhere));
    assert!(!decide(&store, &large, &costly, Mode::Check, 5).is_allowed());
}
