//! The notes that instances publish for each other.

use rl_core::store::{Layout, Namespace, Store};
use rl_core::{FailureKind, Limit, MemoryStore, RateLimiter};
use rl_tests::{Bystander, RedisServer};

use super::{LAYOUTS, PATIENCE, limiter, store_of};

const KEY: &str = "rl:6:default:instances";

async fn sorted(limiter: &RateLimiter) -> Vec<String> {
    let mut notes = limiter.read_notes().await.unwrap();
    notes.sort();
    notes
}

#[tokio::test]
async fn instances_of_a_namespace_read_the_last_note_of_each() {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    for layout in LAYOUTS {
        operator.query::<()>("FLUSHALL").await;
        let one = limiter(&store_of(&server, layout).await, &[Limit::per_minute(1)]);
        let two = limiter(&store_of(&server, layout).await, &[Limit::per_minute(2)]);
        let store = store_of(&server, layout).await;
        let elsewhere = RateLimiter::builder().namespace("other").limit(Limit::per_minute(1));
        let elsewhere = elsewhere.store(store).deadline(PATIENCE).build().unwrap();
        assert_eq!(sorted(&one).await, [""; 0]);
        one.publish_note("one", "first").await.unwrap();
        two.publish_note("two", "ä | b").await.unwrap();
        one.publish_note("one", "second").await.unwrap();
        elsewhere.publish_note("three", "third").await.unwrap();
        for limiter in [&one, &two] {
            assert_eq!(sorted(limiter).await, ["second", "ä | b"], "{layout:?}");
        }
        assert_eq!(sorted(&elsewhere).await, ["third"]);
        let expiry = operator.query::<i64>(&format!("PTTL {KEY}")).await;
        assert!((1..=20_000).contains(&expiry), "{expiry}");
        assert_eq!(operator.keys_without_expiry().await, [""; 0]);
    }
}

#[tokio::test]
async fn old_and_foreign_notes_are_removed_and_their_number_is_bounded() {
    let server = RedisServer::start();
    let mut operator = Bystander::new(&server).await;
    let limiter = limiter(&store_of(&server, Layout::Packed).await, &[Limit::per_minute(1)]);
    for (field, value) in
        [("old", "1769947200000000gone"), ("ahead", "9999999999999999gone"), ("foreign", "text")]
    {
        operator.query::<()>(&format!("HSET {KEY} {field} {value}")).await;
    }
    limiter.publish_note("own", "mine").await.unwrap();
    assert_eq!(sorted(&limiter).await, ["mine", "text"]);
    assert_eq!(sorted(&limiter).await, ["mine"], "the foreign text is returned once");
    assert_eq!(operator.query::<i64>(&format!("HLEN {KEY}")).await, 1);

    // Without a reader, a publisher removes what is too much.
    for number in 0..300 {
        limiter.publish_note(&format!("instance-{number}"), "x").await.unwrap();
        assert!(operator.query::<i64>(&format!("HLEN {KEY}")).await <= 256, "{number}");
    }
    assert_eq!(limiter.read_notes().await.unwrap().len(), 256);
    let long = "x".repeat(70_000);
    limiter.publish_note("instance-0", &long).await.unwrap();
    assert!(limiter.read_notes().await.unwrap().iter().all(|note| note.len() < 70_000));
}

#[tokio::test]
async fn notes_that_cannot_be_kept_are_refused() {
    let server = RedisServer::start();
    let store = store_of(&server, Layout::Packed).await;
    let namespace = Namespace::default();
    for (instance, note) in [("", "text"), ("one", "two\nlines")] {
        let refused = store.publish_note(&namespace, instance, note).await.unwrap_err();
        assert_eq!(refused.kind(), FailureKind::Unsupported, "{instance} {note}");
    }
    assert_eq!(store.read_notes(&namespace).await.unwrap(), [""; 0]);
    let memory = MemoryStore::new();
    let refused = memory.publish_note(&namespace, "one", "text").await.unwrap_err();
    assert_eq!(refused.kind(), FailureKind::Unsupported);
    assert_eq!(memory.read_notes(&namespace).await.unwrap_err().kind(), FailureKind::Unsupported);
}
