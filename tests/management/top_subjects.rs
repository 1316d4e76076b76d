//! The subjects with the most denials and units.

use std::time::Duration;

use rl_admin::Role;
use serde_json::{Value, json};

use super::{Bank, in_every_world, message, parse, token_of};

const TOP: &str = "/management/top-subjects";

#[tokio::test]
async fn top_subjects_are_listed_by_denials_and_by_units() {
    in_every_world(async |bank: Bank| {
        assert_eq!(bank.get(TOP).await, json!({ "by": "denied", "subjects": [] }));
        bank.add([-1, -1, -1, 2, -1, -1]).await;
        for expected in [200, 200, 429, 429, 429] {
            // The clock advances, because only one decision in each millisecond is recorded.
            bank.clock.advance(Duration::from_millis(2));
            assert_eq!(bank.call().await.status, expected);
        }
        let denied = bank.get(TOP).await;
        let used = bank.get(&format!("{TOP}?by=used&limit=1")).await;
        for (list, by, count) in [(&denied, "denied", 3), (&used, "used", 2)] {
            let first = &list["subjects"][0];
            assert_eq!(list["by"], by);
            assert_eq!(
                (&first["realm"], &first["subject"]),
                (&json!("consumer"), &json!("consumer/abc"))
            );
            assert_eq!(
                (&first["count"], &first["last_hour"]),
                (&json!(count), &json!(count)),
                "{list}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn ids_of_top_subjects_are_hashed_for_actors_without_the_role() {
    let bank = Bank::embedded().await;
    bank.add([-1, -1, -1, 1, -1, -1]).await;
    for expected in [200, 429] {
        assert_eq!(bank.call().await.status, expected);
    }
    let answer = bank.as_who(&token_of(Role::CanGetRateLimits), "GET", TOP, None).await;
    assert!(!answer.body.contains("abc"), "{}", answer.body);
    let reader = parse(&answer);
    let owner = bank.get(TOP).await;
    let hash = reader["subjects"][0]["hash"].as_str().unwrap();
    assert!(hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hash}");
    assert_eq!(owner["subjects"][0]["hash"], hash, "both see the same hash");
    assert_eq!(reader["subjects"][0]["subject"], Value::Null);
    assert_eq!(owner["subjects"][0]["subject"], "consumer/abc");
}

#[tokio::test]
async fn parameters_of_top_subjects_are_checked() {
    let bank = Bank::embedded().await;
    for (query, expected) in [
        ("limit=0", "limit: expected 1 to 32"),
        ("limit=33", "limit: expected 1 to 32"),
        ("by=name", "denied"),
        ("after=1", "unknown field: after"),
    ] {
        let answer = bank.manage("GET", &format!("{TOP}?{query}"), None).await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
        assert!(message(&answer).contains(expected), "{query}: {}", answer.body);
    }
}
