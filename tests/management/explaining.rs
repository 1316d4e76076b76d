//! Explanations of why a request would be allowed or denied.

use serde_json::{Value, json};

use super::{Bank, in_every_world, only_rule, parse};

async fn explain(bank: &Bank, cost: u64) -> Value {
    bank.get(&format!("/management/consumers/abc/explain?cost={cost}")).await
}

#[tokio::test]
async fn an_explanation_names_policy_source_records_and_use() {
    in_every_world(async |bank: Bank| {
        let none = explain(&bank, 1).await;
        assert_eq!((&none["allowed"], &none["source"]), (&json!(true), &json!("defaults")));
        assert_eq!(none["considered"], json!([]));

        let (one, two) =
            (bank.add([-1, 2, 10, -1, -1, -1]).await, bank.add([-1, 1, -1, -1, -1, -1]).await);
        for _ in 0..3 {
            assert_eq!(bank.call().await.status, 200);
        }
        let denied = explain(&bank, 1).await;
        assert_eq!((&denied["allowed"], &denied["source"]), (&json!(false), &json!("records")));
        assert_eq!(
            (&only_rule(&denied)["decided_by"], &denied["retry_in_seconds"]),
            (&json!("store"), &json!(60))
        );
        assert_eq!(denied["reason"], "minute: 3 of 3 used, allowed again in 60 s");
        let mut ids: Vec<&str> = denied["considered"]
            .as_array()
            .unwrap()
            .iter()
            .map(|record| record["rate_limiting_id"].as_str().unwrap())
            .collect();
        ids.sort_unstable();
        let mut expected = [&*one, &*two];
        expected.sort_unstable();
        assert_eq!(ids, expected);
        let standing = |name: &str| {
            let limits = only_rule(&denied)["limits"].as_array().unwrap();
            limits.iter().find(|limit| limit["name"] == name).unwrap().clone()
        };
        assert_eq!(
            (&standing("minute")["denies"], &standing("hour")["denies"]),
            (&json!(true), &json!(false))
        );
        assert_eq!((&standing("hour")["used"], &standing("hour")["max"]), (&json!(3), &json!(10)));
        let policy = only_rule(&denied)["policy"].as_str().unwrap();
        assert!(policy.contains("minute=3/minute, hour=10/hour"));

        let never = explain(&bank, 11).await;
        assert_eq!(never["retry_in_seconds"], json!(null), "no wait helps");
        assert_eq!(bank.call().await.status, 429, "as it was explained");
    })
    .await;
}

#[tokio::test]
async fn an_explanation_distinguishes_a_block_from_a_limit() {
    in_every_world(async |bank: Bank| {
        let zero = bank.add([0, -1, -1, -1, -1, -1]).await;
        let explained = explain(&bank, 1).await;
        assert_eq!(
            (&explained["source"], &explained["retry_in_seconds"]),
            (&json!("records"), &json!(null))
        );
        assert_eq!(only_rule(&explained)["decided_by"], "policy");
        assert_eq!(explained["reason"], "second: the limit is 0, so every request is rejected");
        bank.remove(&zero).await;
        let until = Some(json!({ "until": "2030-01-01T00:00:00Z" }));
        bank.manage("PUT", "/management/consumers/abc/block", until).await;
        let explained = explain(&bank, 1).await;
        assert_eq!(
            (&explained["source"], &explained["reason"]),
            (&json!("block"), &json!("the subject is blocked"))
        );

        let address = bank.get("/management/subjects/ip/192.0.2.7/explain").await;
        assert_eq!((&address["source"], &address["allowed"]), (&json!("service"), &json!(true)));
        for cost in ["0", "-1", "1.5", "9007199254740992", "'"] {
            let path = format!("/management/consumers/abc/explain?cost={cost}");
            let wrong = bank.manage("GET", &path, None).await;
            assert_eq!((wrong.status, &parse(&wrong)["field"]), (400, &json!("cost")), "{cost}");
        }
    })
    .await;
}

/// Fault: some denials need no counter. Their explanations reported `used` 0, whatever had been
/// used.
#[tokio::test]
async fn an_explanation_shows_what_is_used_although_the_policy_alone_denies() {
    in_every_world(async |bank: Bank| {
        let path = "/management/subjects/consumer/abc/usage";
        let hour = |answer: &Value| {
            let limits = only_rule(answer)["limits"].as_array().unwrap();
            let hour = limits.iter().find(|limit| limit["name"] == "hour").unwrap();
            (hour["used"].clone(), hour["denies"].clone())
        };
        let limited = bank.add([-1, -1, 10, -1, -1, -1]).await;
        for _ in 0..3 {
            assert_eq!(bank.call().await.status, 200);
        }
        // First case: a cost that is never granted.
        let costly = explain(&bank, 11).await;
        assert_eq!(
            (&only_rule(&costly)["decided_by"], hour(&costly)),
            (&json!("policy"), (json!(3), json!(true)))
        );
        assert_eq!(costly["reason"], "hour: 3 of 10 used, and the cost exceeds the capacity");

        // Second case: a limit of 0 together with a limit that has units left.
        let zero = bank.add([0, -1, -1, -1, -1, -1]).await;
        let denied = explain(&bank, 1).await;
        assert_eq!(
            (&denied["allowed"], &only_rule(&denied)["decided_by"]),
            (&json!(false), &json!("policy"))
        );
        assert_eq!(hour(&denied), (json!(3), json!(false)));
        assert_eq!(hour(&bank.get(path).await).0, json!(3));
        bank.remove(&zero).await;

        // Third case: a block.
        let until = Some(json!({ "until": "2030-01-01T00:00:00Z" }));
        let block = "/management/consumers/abc/block";
        assert_eq!(bank.manage("PUT", block, until).await.status, 200);
        let blocked = explain(&bank, 1).await;
        assert_eq!(
            (&only_rule(&blocked)["decided_by"], &blocked["source"]),
            (&json!("policy"), &json!("block"))
        );
        assert_eq!(hour(&blocked), (json!(3), json!(true)));
        assert_eq!(hour(&bank.get(path).await).0, json!(3));
        bank.remove(&limited).await;
    })
    .await;
}
