//! Slot groups of a cluster: a fail-over, and instances with different numbers of groups.

use rl_core::{Limit, Origin, RateLimiter, RedisStoreBuilder, Subject};
use rl_tests::RedisServer;

use super::cluster::{GROUPS, assert_fail_over, start, store};
use super::{PATIENCE, patient};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_with_slot_groups_that_dies_under_load_is_replaced_within_a_second() {
    let grouped = |store: RedisStoreBuilder| store.slot_groups(GROUPS);
    assert_fail_over("primary of a cluster with slot groups killed", grouped, RedisServer::stop)
        .await;
}

/// The number of groups is a part of each key, so each number has its own counters. If instances
/// use different numbers, each number grants the whole limit, as REDIS.md says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_with_different_numbers_of_slot_groups_count_apart() {
    const LIMIT: u32 = 5;
    let page = include_str!("../../../crates/rl-core/docs/REDIS.md");
    assert!(page.contains("a change each number grants the whole limit"));
    let cluster = start().await;
    let subject = Subject::user("alice");
    for groups in [Some(GROUPS), Some(GROUPS + 1), None] {
        let mut allowed = 0;
        // Two instances with the same number of groups share the counters.
        for _ in 0..2 {
            let mut store = store(&cluster);
            if let Some(groups) = groups {
                store = store.slot_groups(groups);
            }
            let limiter = RateLimiter::builder()
                .limit(Limit::per_day(LIMIT))
                .store(patient(store).await)
                .deadline(PATIENCE)
                .build()
                .unwrap();
            for _ in 0..2 * LIMIT {
                let decision = limiter.check(&subject, 1).await;
                assert_eq!(decision.origin(), Origin::Store);
                allowed += u32::from(decision.is_allowed());
            }
        }
        assert_eq!(allowed, LIMIT, "{groups:?}");
    }
}
