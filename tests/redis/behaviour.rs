//! Behaviour of the Redis store on a real server, whose clock decides.

pub(crate) mod access;
mod commands;
mod corruption;
mod damage;
mod denials;
mod keys;
mod logs;
mod notes;
mod readable;
mod windows;

use std::time::Duration;

use rl_core::store::Layout;
use rl_core::{Decision, Limit, Origin, RateLimiter, RedisStore, Subject};
use rl_tests::RedisServer;

const LAYOUTS: [Layout; 2] = [Layout::Packed, Layout::Readable];

/// A timeout that is longer than any pause of a busy machine. With it, the store makes every
/// decision.
const PATIENCE: Duration = Duration::from_secs(30);

async fn store_of(server: &RedisServer, layout: Layout) -> RedisStore {
    let store = RedisStore::builder(&server.url())
        .local_denial(false)
        .layout(layout)
        .connection_wait(PATIENCE);
    store.connect().await.unwrap()
}

fn limiter(store: &RedisStore, limits: &[Limit]) -> RateLimiter {
    let limiter = RateLimiter::builder().store(store.clone()).deadline(PATIENCE);
    let limiter = limits.iter().fold(limiter, |limiter, limit| limiter.limit(*limit));
    limiter.build().unwrap()
}

/// Returns limits for six periods. No test uses them up.
fn six_limits() -> [Limit; 6] {
    [
        Limit::per_second(10_000),
        Limit::per_minute(20_000),
        Limit::per_hour(30_000),
        Limit::per_day(40_000),
        Limit::per_week(50_000),
        Limit::per_month(60_000),
    ]
}

/// Checks one unit, and asserts that the store made the decision.
async fn check(limiter: &RateLimiter, subject: &Subject) -> Decision {
    let decision = limiter.check(subject, 1).await;
    assert_eq!(decision.origin(), Origin::Store);
    decision
}

/// Returns the used units of each limit.
async fn used(limiter: &RateLimiter, subject: &Subject) -> Vec<u64> {
    let usage = limiter.usage(subject).await.unwrap();
    usage.limits().map(|limit| limit.used()).collect()
}
