//! Requests that end while Redis executes no write. Their places and refunds are not lost: the
//! store repeats what Redis has certainly not executed, until the fault ends.

use std::time::Duration;

use rl_core::store::Part;
use rl_core::{
    FailureKind, Permit, Policy, RateLimiter, RateLimiterBuilder, RedisStore, RedisStoreBuilder,
    Subject,
};
use rl_tests::web::eventually;
use rl_tests::{Bystander, RedisServer, connected};
use tokio::runtime::Builder;

/// The number of permits that are dropped. One more is settled.
const DROPPED: u64 = 5;

/// A time that no test takes.
const AN_HOUR: Duration = Duration::from_secs(3_600);

fn policy(limit: &str) -> Policy {
    Policy::new([limit.parse().unwrap()]).unwrap()
}

/// Requests that are in flight when the fault begins: under a concurrency limit, and with an
/// estimated cost. No lease, window or reservation ends before the test.
struct InFlight {
    store: RedisStore,
    places: RateLimiter,
    units: RateLimiter,
    reserved: RateLimiter,
    dropped: Vec<Permit>,
    settled: Vec<Permit>,
}

impl InFlight {
    async fn begin(store: RedisStoreBuilder) -> Self {
        let store = connected(store).await;
        let limiter = |namespace: &str, limit: &str| -> RateLimiterBuilder {
            let builder = RateLimiter::builder().namespace(namespace).policy(policy(limit));
            builder.store(store.clone()).deadline(Duration::from_secs(60))
        };
        let places = limiter("places", "10:concurrency:lease=1hour").build().unwrap();
        let units = limiter("units", "1000/day").build().unwrap();
        let reserved = limiter("reserved", "1000/day").reservation_expires_after(AN_HOUR);
        let reserved = reserved.build().unwrap();

        let (alice, bob) = (Subject::user("alice"), Subject::user("bob"));
        let mut dropped = Vec::new();
        for _ in 0..DROPPED {
            dropped.push(places.acquire(&alice, 1).await);
        }
        let (policy, cost) = (policy("1000/day"), 50.into());
        let parts = [&alice, &bob].map(|subject| Part::new(subject, &policy, cost));
        let settled = vec![
            places.acquire(&alice, 1).await,
            units.acquire(&alice, 900).await,
            units.request(&parts).acquire().await,
            reserved.acquire(&alice, 900).await,
        ];
        for permit in &settled {
            assert!(permit.decision().is_allowed(), "{:?}", permit.decision());
            permit.set_cost(1);
        }
        let this = Self { store, places, units, reserved, dropped, settled };
        assert_eq!(this.used().await, Some([DROPPED + 1, 950, 50, 900]));
        this
    }

    /// Returns the used units: of the places, of both subjects, and of the reservation. Returns
    /// `None` if Redis does not reply.
    async fn used(&self) -> Option<[u64; 4]> {
        let (alice, bob) = (Subject::user("alice"), Subject::user("bob"));
        let used = async |limiter: &RateLimiter, subject: &Subject| {
            let usage = limiter.usage(subject).await.ok()?;
            Some(usage.limits().next().unwrap().used())
        };
        Some([
            used(&self.places, &alice).await?,
            used(&self.units, &alice).await?,
            used(&self.units, &bob).await?,
            used(&self.reserved, &alice).await?,
        ])
    }

    /// Ends all requests. Asserts that settling them fails, except that a full server may settle
    /// the reservation: this begins with a removal, which needs no memory.
    async fn end(&mut self, kind: FailureKind) {
        self.dropped.clear();
        let reservation = self.settled.pop().unwrap();
        for permit in self.settled.drain(..) {
            let error = permit.settle().await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
        }
        let settled = reservation.settle().await.map_err(|error| error.kind());
        assert!(settled == Err(kind) || settled == Ok(()) && kind == FailureKind::OutOfMemory);
    }

    /// Waits until the counts are right, without another request. Asserts that they stay so.
    async fn assert_settled(&self) {
        const SETTLED: Option<[u64; 4]> = Some([0, 2, 1, 1]);
        eventually(|| async { self.used().await == SETTLED }).await;
        self.store.close().await.unwrap();
        assert_eq!(self.used().await, SETTLED, "nothing is settled twice");
        assert_eq!(self.store.unreturned_charges(), 0);
    }
}

/// Ends requests while the server refuses every write, and then cures it.
async fn assert_nothing_is_lost(kind: FailureKind, fault: &str, cure: &str) {
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    let mut requests = InFlight::begin(server.patient_store()).await;
    let mut operator = Bystander::new(&server).await;

    operator.query::<()>(fault).await;
    requests.end(kind).await;
    // Each settlement has met the fault, and is repeated in vain.
    eventually(|| async { server.failed_calls("evalsha").await > 5 * DROPPED }).await;
    assert_eq!(requests.used().await.unwrap()[..3], [DROPPED + 1, 950, 50]);

    operator.query::<()>(cure).await;
    requests.assert_settled().await;
}

/// Fault: places and refunds of requests that ended while Redis was full were lost. A place was
/// taken until its lease ended, and an estimate was charged until its window ended.
#[tokio::test]
async fn requests_that_end_while_redis_is_full_are_settled_when_it_has_memory() {
    let kind = FailureKind::OutOfMemory;
    let (fault, cure) = ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0");
    assert_nothing_is_lost(kind, fault, cure).await;
}

/// Fault: they were also lost while Redis was a replica, as in a fail-over.
#[tokio::test]
async fn requests_that_end_while_redis_is_a_replica_are_settled_when_it_is_the_primary() {
    let kind = FailureKind::Unavailable;
    let (fault, cure) = ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE");
    assert_nothing_is_lost(kind, fault, cure).await;
}

/// Fault: they were also lost while Redis was down, although it kept the counts.
#[tokio::test]
async fn requests_that_end_while_redis_is_down_are_settled_when_it_is_restarted() {
    let mut server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let store = RedisStore::builder(&server.url()).response_timeout(Duration::from_secs(60));
    let mut requests = InFlight::begin(store.connections(1)).await;

    server.stop();
    // The store has noticed that its connection is lost: a call on it might have been executed.
    let alice = Subject::user("alice");
    let is_refused = || async {
        let error = requests.units.usage(&alice).await.unwrap_err();
        error.to_string().contains("could not connect")
    };
    eventually(is_refused).await;
    requests.end(FailureKind::Unavailable).await;

    server.restart();
    requests.assert_settled().await;
}

/// Settlements that are repeated end with the runtime of the store, and later ones fail at once.
#[test]
fn a_runtime_that_ends_does_not_wait_for_settlements_that_are_repeated() {
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (of_store, of_request) = (runtime(), runtime());
    let server = RedisServer::start();
    let mut requests = of_store.block_on(InFlight::begin(server.patient_store()));
    let late = requests.settled.remove(1);
    of_store.block_on(async {
        server.query::<()>("REPLICAOF 127.0.0.1 1").await;
        requests.end(FailureKind::Unavailable).await;
        eventually(|| async { server.failed_calls("evalsha").await > 5 * DROPPED }).await;
    });
    drop(of_store);
    let error = of_request.block_on(late.settle()).unwrap_err();
    assert_eq!(error.kind(), FailureKind::Unavailable);
}
