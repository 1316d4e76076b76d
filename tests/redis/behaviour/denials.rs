//! Denials change nothing on the server.

use std::collections::BTreeMap;

use rl_core::{Limit, Subject};
use rl_tests::{Bystander, RedisServer};

use super::{LAYOUTS, check, limiter, store_of, used};

/// Returns all keys, with their values and with their remaining lifetimes in milliseconds.
pub(super) async fn snapshot(
    operator: &mut Bystander,
) -> (BTreeMap<String, Vec<u8>>, BTreeMap<String, i64>) {
    let keys: Vec<String> = operator.query("KEYS *").await;
    let (mut contents, mut expiries) = (BTreeMap::new(), BTreeMap::new());
    for key in keys {
        let content = operator.send(redis::cmd("DUMP").arg(&key)).await;
        let expiry = operator.send(redis::cmd("PTTL").arg(&key)).await;
        expiries.insert(key.clone(), expiry);
        contents.insert(key, content);
    }
    (contents, expiries)
}

/// If one limit denies, no counter changes, and no window is extended.
#[tokio::test]
async fn a_denied_call_moves_no_counter() {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    for layout in LAYOUTS {
        operator.query::<()>("FLUSHALL").await;
        let store = store_of(&server, layout).await;
        let limiter = limiter(
            &store,
            &[
                Limit::per_minute(100),
                Limit::per_hour(3),
                Limit::per_day(100),
                Limit::per_week(100),
                Limit::per_month(100),
            ],
        );
        let subject = Subject::consumer("consumer_abc123");
        for _ in 0..3 {
            assert!(check(&limiter, &subject).await.is_allowed());
        }
        let (contents, expiries) = snapshot(&mut operator).await;
        for _ in 0..20 {
            let denied = check(&limiter, &subject).await;
            let over: Vec<&str> =
                denied.limits().filter(|limit| limit.is_over()).map(|limit| limit.name()).collect();
            assert_eq!(over, ["hour"]);
        }
        assert_eq!(used(&limiter, &subject).await, [3; 5], "{layout:?}");
        let (contents_after, expiries_after) = snapshot(&mut operator).await;
        assert_eq!(contents_after, contents, "{layout:?}");
        assert!(expiries_after <= expiries, "{layout:?}");
    }
}

/// Requests that the limit per second denies must not use up the other limits.
#[tokio::test]
async fn denials_of_the_second_leave_minute_hour_and_day_untouched() {
    let server = RedisServer::start();
    let mut clock = Bystander::new(&server).await;
    for layout in LAYOUTS {
        let store = store_of(&server, layout).await;
        let limiter = limiter(
            &store,
            &[
                Limit::per_second(2),
                Limit::per_minute(1_000),
                Limit::per_hour(1_000),
                Limit::per_day(1_000),
            ],
        );
        let subject = Subject::user(&format!("{layout:?}"));
        let (mut passed, mut denied) = (0, 0);
        let end = clock.now().await.plus_micros(1_500_000);
        loop {
            let decision = check(&limiter, &subject).await;
            if decision.is_allowed() {
                passed += 1;
            } else {
                denied += 1;
            }
            if decision.at() >= end {
                break;
            }
        }
        assert!(denied > 10, "{layout:?}: {denied}");
        assert_eq!(used(&limiter, &subject).await[1..], [passed; 3], "{layout:?}");
    }
}
