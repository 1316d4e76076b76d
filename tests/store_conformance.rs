//! Runs the contract of `Store` on every store of the library.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rl_core::conformance::{Suite, Time, suite};
use rl_core::store::Layout;
use rl_core::time::{Clock, ManualClock, SystemClock, Timestamp};
use rl_core::{MemoryStore, RedisStore};
use rl_tests::RedisServer;
use tokio::time::timeout;

pub(crate) fn manual_clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Timestamp::from_secs(1_769_903_998)))
}

/// The clock of a Redis server, which runs in real time. Tests can read it, but cannot set it.
#[derive(Debug)]
pub(crate) struct ServerTime(pub(crate) redis::aio::MultiplexedConnection);

impl ServerTime {
    async fn now(&self) -> Duration {
        let (seconds, micros): (u64, u64) =
            redis::cmd("TIME").query_async(&mut self.0.clone()).await.unwrap();
        Duration::from_secs(seconds) + Duration::from_micros(micros)
    }
}

impl Time for ServerTime {
    fn pass(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            let end = self.now().await + time;
            loop {
                let left = end.saturating_sub(self.now().await);
                if left.is_zero() {
                    return;
                }
                // Nothing is ready earlier, so this waits for the whole time.
                let _ = timeout(left, pending::<()>()).await;
            }
        })
    }

    fn manual(&self) -> Option<&ManualClock> {
        None
    }
}

/// Returns a suite for a memory store. The suite can count the stored subjects.
fn memory_suite<C: Clock>(store: MemoryStore<C>, time: impl Time) -> Suite {
    let store = Arc::new(store);
    let held = store.clone();
    let stored = move || std::future::ready(held.len());
    Suite::new(store, time).count_stored(stored)
}

/// Returns a suite for a Redis store. The suite can count the keys without an expiry.
async fn redis_suite(server: &RedisServer, store: RedisStore, time: impl Time) -> Suite {
    const WITHOUT_EXPIRY: &str = "local count = 0 for _, key in ipairs(redis.call('KEYS', '*')) do
        if redis.call('PTTL', key) == -1 then count = count + 1 end end return count";

    let connection = server.connection().await;
    let stored = move || {
        let mut connection = connection.clone();
        let mut script = redis::cmd("EVAL");
        script.arg(WITHOUT_EXPIRY).arg(0);
        async move { script.query_async(&mut connection).await.unwrap() }
    };
    Suite::new(store, time).count_stored(stored)
}

#[tokio::test]
async fn memory_store_keeps_the_contract() {
    let clock = manual_clock();
    let store = MemoryStore::builder().clock(clock.clone()).build();
    suite(&memory_suite(store, clock)).await;
}

#[tokio::test]
async fn packed_redis_store_keeps_the_contract() {
    let server = RedisServer::start();
    let clock = manual_clock();
    let store = server.patient_store().manual_clock(clock.clone());
    suite(&redis_suite(&server, store.connect().await.unwrap(), clock).await).await;
    assert_eq!(server.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn packed_redis_store_keeps_the_contract_on_the_servers_clock() {
    let server = RedisServer::start();
    let store = server.patient_store().connect().await.unwrap();
    let time = ServerTime(server.connection().await);
    suite(&redis_suite(&server, store, time).await).await;
    assert_eq!(server.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn readable_redis_store_keeps_the_contract() {
    let server = RedisServer::start();
    let store = server.patient_store().layout(Layout::Readable).connect().await.unwrap();
    let time = ServerTime(server.connection().await);
    suite(&redis_suite(&server, store, time).await.only_fixed_windows()).await;
    assert_eq!(server.keys_without_expiry().await, [""; 0]);
}

/// The system clock runs during the suite. So nothing in the suite may need a clock that stands
/// still.
#[tokio::test]
async fn memory_store_keeps_the_contract_on_the_system_clock() {
    #[derive(Debug)]
    struct SystemTime;

    impl Time for SystemTime {
        fn pass(&self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
            Box::pin(async move {
                let micros = u64::try_from(time.as_micros()).unwrap();
                let end = SystemClock.now().plus_micros(micros);
                let _ = timeout(time, pending::<()>()).await;
                while SystemClock.now() < end {
                    tokio::task::yield_now().await;
                }
            })
        }

        fn manual(&self) -> Option<&ManualClock> {
            None
        }
    }

    suite(&memory_suite(MemoryStore::new(), SystemTime)).await;
}
