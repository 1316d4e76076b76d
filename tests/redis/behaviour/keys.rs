//! Keys: their number, their uniqueness and their size.

use std::collections::BTreeSet;

use futures::future::join_all;
use rl_core::store::Layout;
use rl_core::{Limit, Period, Realm, Subject};
use rl_tests::{Bystander, RedisServer};

use super::{LAYOUTS, check, limiter, six_limits, store_of, used};

/// Returns ten thousand ids whose characters have a meaning in keys, in hash tags, in the protocol
/// or in escapes.
fn hostile_ids() -> impl Iterator<Item = String> {
    // No piece is a prefix of another piece, so all ids differ.
    const PIECES: [&str; 10] = ["{", "}", " ", "\r\n", "\0", "ü💥", "%7B", ":", "|", "~_PER_HOUR"];
    (0..10_000).map(|number: usize| {
        let digits = [number / 1_000, number / 100, number / 10, number];
        digits.map(|digit| PIECES[digit % 10]).concat()
    })
}

#[tokio::test]
async fn ten_thousand_hostile_ids_have_distinct_keys() {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    for layout in LAYOUTS {
        operator.query::<()>("FLUSHALL").await;
        let store = store_of(&server, layout).await;
        let limiter = limiter(&store, &[Limit::per_hour(1)]);
        // Two ids of a million bytes each.
        let long = [500_000, 500_001].map(|len| "{}".repeat(len));
        let ids: BTreeSet<String> = hostile_ids().chain(long).collect();
        assert_eq!(ids.len(), 10_002);
        for allowed in [true, false] {
            // Requests at the same time share script calls.
            for ids in ids.iter().collect::<Vec<_>>().chunks(100) {
                let subjects: Vec<_> = ids.iter().map(|id| Subject::consumer(id)).collect();
                let checks = subjects.iter().map(|subject| check(&limiter, subject));
                for (decision, id) in join_all(checks).await.iter().zip(ids) {
                    assert_eq!(decision.is_allowed(), allowed, "{layout:?} {id:.40?}");
                }
            }
        }
        let keys: Vec<String> = operator.query("KEYS *").await;
        assert_eq!(keys.len(), ids.len(), "{layout:?}");
        for key in keys {
            // In a cluster, the text in braces determines the server of a key. Callers must not be
            // able to choose it.
            let braces = (key.matches('{').count(), key.matches('}').count());
            let expected = match layout {
                Layout::Packed => (1, 1),
                _ => (0, 0),
            };
            assert_eq!(braces, expected, "{key}");
            assert!(key.len() <= 200, "{key}");
            assert!(!key.contains(|c: char| c.is_control() || c == ' '), "{key:?}");
        }
    }
}

#[tokio::test]
async fn sixteen_limits_are_decided_together() {
    let server = RedisServer::start();
    let store = store_of(&server, Layout::Packed).await;
    // The shortest window is a minute, so none ends during the test. The last limit is the
    // smallest.
    let limits: Vec<Limit> = (1..=16)
        .map(|n| Limit::new(20 - n, Period::from_millis(n * 60_000).unwrap()).unwrap())
        .collect();
    let limiter = limiter(&store, &limits);
    let subject = Subject::user("alice");
    for count in 1..=4 {
        assert!(check(&limiter, &subject).await.is_allowed());
        assert_eq!(used(&limiter, &subject).await, [count; 16]);
    }
    let denied = check(&limiter, &subject).await;
    let over: Vec<&str> =
        denied.limits().filter(|limit| limit.is_over()).map(|limit| limit.name()).collect();
    assert_eq!(over, ["16minutes"]);
    assert_eq!(used(&limiter, &subject).await, [4; 16]);
    assert_eq!(server.query::<u64>("DBSIZE").await, 1);
    assert_eq!(server.keys_without_expiry().await, [""; 0]);
}

/// Each counter takes at most a hundred bytes, including names and the server's overhead.
#[tokio::test]
async fn six_limits_of_a_subject_cost_six_hundred_bytes_at_most() {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    for (layout, subject) in [
        (Layout::Packed, Subject::consumer("consumer_abc123")),
        (Layout::Packed, Subject::consumer("3f2504e0-4f89-41d3-9a0c-0305e82c3301")),
        (Layout::Readable, Subject::consumer("consumer_abc123")),
    ] {
        operator.query::<()>("FLUSHALL").await;
        let store = store_of(&server, layout).await;
        check(&limiter(&store, &six_limits()), &subject).await;
        let keys: Vec<String> = operator.query("KEYS *").await;
        let mut bytes = 0;
        for key in &keys {
            let used: u64 = operator.query(&format!("MEMORY USAGE {key}")).await;
            bytes += used;
        }
        assert!(bytes <= 600, "{layout:?}: {bytes} bytes in {} keys", keys.len());
    }
}

/// Clients that never return leave no keys: a key expires with its window.
#[tokio::test]
async fn keys_expire_with_their_windows() {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    for layout in LAYOUTS {
        let store = store_of(&server, layout).await;
        let limiter = limiter(&store, &[Limit::per_second(10)]);
        let mut last = None;
        for visitor in 0..500 {
            let address = format!("198.51.{}.{}", visitor / 250, visitor % 250);
            last = Some(check(&limiter, &Subject::new(Realm::Ip, &address)).await.at());
        }
        // Redis deletes a key up to a millisecond late, so the test waits until two milliseconds
        // after the end of the window.
        let end = last.unwrap().plus_micros(1_002_000);
        operator.wait_until(end).await;
        let keys: Vec<String> = operator.query("KEYS *").await;
        assert_eq!(keys, [""; 0], "{layout:?}");
    }
}
