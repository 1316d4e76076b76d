//! Redis over TLS, behind sentinels and as a cluster.

mod ambiguous;
mod cluster;
mod load;
mod memory;
mod parts_across_slots;
mod sentinel;
mod slot_groups;
mod tls;

use std::time::Duration;

use rl_core::{Limit, Origin, RateLimiter, RedisStore, RedisStoreBuilder, Subject};

/// A timeout that is longer than any pause of a busy machine. With it, the store makes every
/// decision.
const PATIENCE: Duration = Duration::from_secs(30);

async fn patient(store: RedisStoreBuilder) -> RedisStore {
    let store = store.connection_wait(PATIENCE).connect_timeout(PATIENCE);
    store.response_timeout(PATIENCE).connect().await.unwrap()
}

/// Makes twenty concurrent requests for each of many subjects. Asserts that the store allows
/// exactly five requests of each subject.
async fn assert_exactly_five_of_twenty_pass(store: RedisStore) {
    let limiter = RateLimiter::builder()
        .limit(Limit::per_hour(5))
        .limit(Limit::per_day(1_000))
        .store(store)
        .deadline(PATIENCE)
        .build()
        .unwrap();
    for round in 0..50 {
        let subject = Subject::consumer(&format!("round-{round}"));
        let callers: Vec<_> = (0..20).map(|_| tokio::spawn(limiter.check(&subject, 1))).collect();
        let mut allowed = 0;
        for caller in callers {
            let decision = caller.await.unwrap();
            // On a busy machine, the denial cache may already contain the denials when the last
            // requests are made.
            let origin = decision.origin();
            let denied = (false, Origin::LocalDeny);
            assert!(
                origin == Origin::Store || (decision.is_allowed(), origin) == denied,
                "{origin:?}"
            );
            allowed += u32::from(decision.is_allowed());
        }
        assert_eq!(allowed, 5, "round {round}");
    }
}
