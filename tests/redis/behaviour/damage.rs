//! Keys that another program has changed. A key without an expiry gets one, and a damaged value is
//! never treated as an empty counter.

use rl_core::store::Layout;
use rl_core::{FailureKind, Limit, Origin, RateLimiter, RedisStore, Subject};
use rl_tests::{Bystander, RedisServer};

use super::{check, limiter, store_of, used};

async fn only_key(operator: &mut Bystander) -> String {
    let keys: Vec<String> = operator.query("KEYS *").await;
    let [key] = &keys[..] else { panic!("one key, got {keys:?}") };
    key.clone()
}

/// Empties the server, and creates a limiter that has charged one unit of `alice`. Returns the
/// store, the limiter and the key.
async fn one_call(server: &RedisServer, layout: Layout) -> (RedisStore, RateLimiter, String) {
    let mut operator = Bystander::new(server).await;
    operator.query::<()>("FLUSHALL").await;
    let store = store_of(server, layout).await;
    let limiter = limiter(&store, &[Limit::per_minute(2)]);
    assert!(check(&limiter, &alice()).await.is_allowed());
    let key = only_key(&mut operator).await;
    (store, limiter, key)
}

fn alice() -> Subject {
    Subject::consumer("alice")
}

#[tokio::test]
async fn a_key_that_lost_its_expiry_gets_one_from_the_next_call() {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    for layout in super::LAYOUTS {
        let (store, limiter, key) = one_call(&server, layout).await;
        for (allowed, count) in [(true, 2), (false, 2)] {
            assert!(operator.query::<bool>(&format!("PERSIST {key}")).await);
            let decision = check(&limiter, &alice()).await;
            assert_eq!(decision.is_allowed(), allowed, "{layout:?}");
            assert_eq!(used(&limiter, &alice()).await, [count], "{layout:?}");
            let left: i64 = operator.query(&format!("PTTL {key}")).await;
            assert!((1..=60_000).contains(&left), "{layout:?}: {left}");
        }
        assert!(store.healed() >= 1, "{layout:?}: {}", store.healed());
    }
}

/// Another client has set the counter without an expiry. The store sets the expiry. Otherwise the
/// counter would deny for ever.
#[tokio::test]
async fn a_counter_that_never_had_an_expiry_is_healed_and_counted() {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    let (store, limiter, key) = one_call(&server, Layout::Readable).await;
    for (count, allowed) in [("1", true), ("2", false), ("77", false)] {
        let healed = store.healed();
        operator.query::<()>(&format!("SET {key} {count}")).await;
        assert_eq!(check(&limiter, &alice()).await.is_allowed(), allowed);
        assert_eq!(store.healed(), healed + 1);
        let left: i64 = operator.query(&format!("PTTL {key}")).await;
        assert!((1..=60_000).contains(&left), "{left}");
    }
}

/// A peek writes nothing, so it does not set an expiry either.
#[tokio::test]
async fn a_peek_does_not_set_a_missing_expiry() {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    for layout in super::LAYOUTS {
        let (store, limiter, key) = one_call(&server, layout).await;
        operator.query::<()>(&format!("PERSIST {key}")).await;
        assert_eq!(used(&limiter, &alice()).await, [1]);
        assert_eq!(operator.query::<i64>(&format!("PTTL {key}")).await, -1);
        assert_eq!(store.healed(), 0);
    }
}

/// Asserts that every operation on a key with the content `what` is rejected or fails, and that the
/// key does not change.
async fn assert_denied_and_untouched(
    operator: &mut Bystander,
    limiter: &RateLimiter,
    key: &str,
    what: &str,
) {
    let corrupt = FailureKind::Corrupt;
    let before: Vec<u8> = operator.send(redis::cmd("DUMP").arg(key)).await;
    // The refund below needs a charge whose window is still open.
    let charged = check(limiter, &Subject::consumer(what)).await;
    for decision in [
        limiter.check(&alice(), 1).await,
        limiter.request(&alice()).check_up_to().await,
        limiter.request(&alice()).charge().await,
        limiter.peek(&alice(), 1).await,
    ] {
        assert_eq!(decision.origin(), Origin::FailedClosed(corrupt), "{what}");
        assert!(!decision.is_allowed(), "{what}");
    }
    let error = limiter.usage(&alice()).await.unwrap_err();
    assert_eq!(error.kind(), corrupt, "{what}");
    let error = limiter.request(&alice()).refund(&charged, &[1]).await.unwrap_err();
    assert_eq!(error.kind(), corrupt, "{what}");
    let after: Vec<u8> = operator.send(redis::cmd("DUMP").arg(key)).await;
    assert_eq!(after, before, "{what}");
}

#[tokio::test]
async fn requests_on_a_foreign_or_damaged_packed_state_are_rejected() {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    let (_, limiter, key) = one_call(&server, Layout::Packed).await;
    let state: Vec<u8> = operator.send(redis::cmd("GET").arg(&key)).await;
    let changed = |at: usize, byte: u8| {
        let mut changed = state.clone();
        changed[at] = byte;
        changed
    };
    let ones = |bytes: std::ops::Range<usize>| {
        let mut ones = state.clone();
        ones[bytes].fill(0xff);
        ones
    };
    let mut longer = state.clone();
    longer.push(0);
    let cases = [
        ("an empty value", Vec::new()),
        ("a word", b"garbage".to_vec()),
        ("a number", b"42".to_vec()),
        ("a state cut short", state[..state.len() - 1].to_vec()),
        ("a state cut after its header", state[..2].to_vec()),
        ("a state with a byte too many", longer),
        ("another version", changed(0, 1)),
        ("counts of no bytes", changed(1, 0)),
        ("counts of too many bytes", changed(1, 8)),
        ("more limits than there are", changed(2, 200)),
        ("windows that there are not", changed(2, 0x3f)),
        ("all ones", vec![0xff; state.len()]),
        ("all zeros", vec![0; state.len()]),
        // The values from here on have the right form, but contain numbers that no state can have.
        ("all ones after the header", ones(3..15)),
        ("a time of the last change in a far future", ones(3..10)),
        ("a window that is longer than its period", ones(10..14)),
        ("a period that there is not", [&[6, 1, 0x81, 0x0f], &state[3..]].concat()),
        ("a count beyond the largest", [&[6, 7], &state[2..14], &[0xff; 7]].concat()),
    ];
    for (what, value) in cases {
        let mut set = redis::cmd("SET");
        operator.send::<()>(set.arg(&key).arg(value).arg("KEEPTTL")).await;
        assert_denied_and_untouched(&mut operator, &limiter, &key, what).await;
    }
    operator.query::<()>(&format!("DEL {key}")).await;
    operator.query::<()>(&format!("LPUSH {key} 1")).await;
    assert_denied_and_untouched(&mut operator, &limiter, &key, "a list").await;

    // An operator repairs the subject by deleting the key.
    operator.query::<()>(&format!("DEL {key}")).await;
    assert!(check(&limiter, &alice()).await.is_allowed());
}

#[tokio::test]
async fn requests_on_a_readable_counter_that_is_not_a_number_are_rejected() {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    let store = store_of(&server, Layout::Readable).await;
    let limiter = limiter(&store, &[Limit::per_minute(2), Limit::per_hour(2)]);
    check(&limiter, &alice()).await;
    // The second key is damaged. The script must read it before it charges the first one.
    let (good, bad) = ("alice_PER_MINUTE", "alice_PER_HOUR");
    for value in ["", "garbage", "-5", "4.2", "1e3", " 1", "1 ", "0x10", "1\n"] {
        let mut set = redis::cmd("SET");
        operator.send::<()>(set.arg(bad).arg(value).arg("KEEPTTL")).await;
        assert_denied_and_untouched(&mut operator, &limiter, bad, value).await;
        assert_eq!(operator.query::<String>(&format!("GET {good}")).await, "1");
    }
    operator.query::<()>(&format!("DEL {bad}")).await;
    operator.query::<()>(&format!("LPUSH {bad} 1")).await;
    assert_denied_and_untouched(&mut operator, &limiter, bad, "a list").await;
    assert_eq!(operator.query::<String>(&format!("GET {good}")).await, "1");
}
