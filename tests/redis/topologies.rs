//! Redis in other forms than one server on a bare socket.

mod ambiguous;
mod authority;
mod cluster;
mod load;
mod memory;
mod sentinel;
mod tls;

use std::time::Duration;

use rl_core::store::RedisStore;
use rl_core::store::redis::RedisStoreBuilder;
use rl_core::{Limit, Origin, RateLimiter, Subject};

/// Longer than any pause of a busy machine: what is counted must have been decided by the store.
const PATIENCE: Duration = Duration::from_secs(30);

async fn patient(store: RedisStoreBuilder) -> RedisStore {
    let store = store.connection_wait(PATIENCE).connect_timeout(PATIENCE);
    store.connect().await.unwrap()
}

/// Of twenty that ask at once, the store lets exactly five pass, for each of many subjects.
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
            // A busy machine may ask for the last when the first are known to be denied.
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
