//! Races in code with hand-written synchronisation.
//!
//! In the first two tests, loom runs a model of the code in every order that the memory model
//! allows. The models repeat code of the library, so they must be changed together with it. The
//! third test is a race between real tasks.

use std::sync::Arc as StdArc;
use std::time::Duration;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use rl_core::store::{DecideRequest, LeaseStatus, Renewal, Reset, Settlement, Store, StoreFuture};
use rl_core::time::{Timestamp, TokioClock};
use rl_core::{Decision, Limit, MaybeReady, MemoryStore, RateLimiter, Subject};
use rl_tests::web::eventually;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// A model of `store/redis/connection/liveness.rs`: all connections of a generation leave the pool
/// when one of them fails.
struct Liveness {
    opened_under: u64,
    generation: Arc<AtomicU64>,
}

impl Liveness {
    fn open(generation: &Arc<AtomicU64>) -> Self {
        Self {
            opened_under: generation.load(Ordering::Acquire),
            generation: Arc::clone(generation),
        }
    }

    fn fail(&self) {
        let next = self.opened_under + 1;
        let _ = self.generation.compare_exchange(
            self.opened_under,
            next,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }

    fn is_stale(&self) -> bool {
        self.opened_under != self.generation.load(Ordering::Acquire)
    }
}

/// Several connections of one generation fail together, while a new connection is opened. The
/// generation ends only once. Its connections are stale, and a connection that is opened afterwards
/// is not.
#[test]
fn a_generation_ends_once_if_several_of_its_connections_fail() {
    loom::model(|| {
        let current = Arc::new(AtomicU64::new(0));
        let old = [Liveness::open(&current), Liveness::open(&current)];
        let failing = old.map(|connection| {
            thread::spawn(move || {
                connection.fail();
                assert!(connection.is_stale());
            })
        });
        let between = Liveness::open(&current);
        failing.into_iter().for_each(|task| task.join().unwrap());
        assert_eq!(current.load(Ordering::Relaxed), 1);
        assert_eq!(between.is_stale(), between.opened_under == 0);
        // A connection of the old generation fails late. This does not end the new generation.
        let new = Liveness::open(&current);
        Liveness { opened_under: 0, generation: Arc::clone(&current) }.fail();
        assert!(!new.is_stale());
    });
}

/// A model of `Account` in `limiter/permit/inner.rs`, the charge of a permit.
struct Account {
    leased: u64,
    is_settled: bool,
}

/// A model of a store with one permit: the time at which its lease began or was last renewed, or
/// `None` while the permit is free.
type Place = Mutex<Option<u64>>;

fn free(place: &Place, leased: u64) {
    let mut taken = place.lock().unwrap();
    if *taken == Some(leased) {
        *taken = None;
    }
}

/// The lease is renewed while the permit is settled. The store may execute the two calls in any
/// order. In the end, the permit must be free.
#[test]
fn a_place_that_is_settled_while_it_is_renewed_is_free() {
    loom::model(|| {
        let account = Arc::new(Mutex::new(Account { leased: 1, is_settled: false }));
        let place: Arc<Place> = Arc::new(Mutex::new(Some(1)));
        let (theirs, store) = (Arc::clone(&account), Arc::clone(&place));
        let renewing = thread::spawn(move || {
            let charged = theirs.lock().unwrap().leased;
            let renewed = {
                let mut taken = store.lock().unwrap();
                if *taken != Some(charged) {
                    return;
                }
                *taken = Some(charged + 1);
                charged + 1
            };
            let is_settled = {
                let mut account = theirs.lock().unwrap();
                account.leased = renewed;
                account.is_settled
            };
            if is_settled {
                free(&store, renewed);
            }
        });
        let leased = {
            let mut account = account.lock().unwrap();
            account.is_settled = true;
            account.leased
        };
        free(&place, leased);
        renewing.join().unwrap();
        assert_eq!(*place.lock().unwrap(), None);
    });
}

/// A store that renews immediately, but replies only when the test permits it.
#[derive(Debug)]
struct SlowToAnswer {
    inside: MemoryStore<TokioClock>,
    asked: Semaphore,
    replies: StdArc<Semaphore>,
}

impl Store for SlowToAnswer {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        self.inside.decide(request)
    }

    fn settle(&self, settlements: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        self.inside.settle(settlements)
    }

    fn renew(&self, renewal: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        let (renewed, replies) = (self.inside.renew(renewal), StdArc::clone(&self.replies));
        self.asked.add_permits(1);
        MaybeReady::later(async move {
            replies.acquire().await.unwrap().forget();
            renewed.await
        })
    }

    fn reset(&self, resets: &[Reset<'_>]) -> StoreFuture<()> {
        self.inside.reset(resets)
    }
}

/// The permit is dropped after the store has renewed its lease, but before the store replies. Its
/// place must still become free.
#[tokio::test(start_paused = true)]
async fn a_permit_that_is_dropped_during_its_renewal_frees_its_place() {
    let replies = StdArc::new(Semaphore::new(0));
    let inside = MemoryStore::builder().clock(TokioClock::new()).build();
    let store =
        StdArc::new(SlowToAnswer { inside, asked: Semaphore::new(0), replies: replies.clone() });
    let limit: Limit = "1:concurrency:lease=15s".parse().unwrap();
    let limiter = RateLimiter::builder().limit(limit).store(store.clone()).build().unwrap();
    let alice = Subject::user("alice");
    for _ in 0..2 {
        let permit = limiter.acquire(&alice, 1).await;
        assert!(permit.decision().is_allowed());
        store.asked.acquire().await.unwrap().forget();
        drop(permit);
        replies.add_permits(1);
        // The permit must be free before its lease ends.
        let used = async || limiter.usage(&alice).await.unwrap().limits().next().unwrap().used();
        let free = eventually(async || used().await == 0);
        timeout(Duration::from_secs(12), free).await.expect("the place is free");
    }
}
