//! A consumer is blocked until a given time, whatever its records allow.

use std::time::Duration;

use rl_admin::Role;
use rl_core::time::Timestamp;
use rl_records::RecordContent;
use rl_tests::web::Answer;
use serde_json::json;

use super::{
    ACTIVE, Bank, CALL_LIMITS, NOW_SECONDS, RATE_LIMITS, active_numbers, in_every_world, message,
    parse, record, token_of,
};

const BLOCK: &str = "/management/consumers/abc/block";

#[tokio::test]
async fn a_block_wins_over_every_limit_until_it_ends() {
    in_every_world(async |bank: Bank| {
        let generous = bank.add([1_000, -1, -1, -1, -1, -1]).await;
        assert_eq!(bank.manage("GET", BLOCK, None).await.status, 404);
        let until = |time: &str| Some(json!({ "until": time }));
        let block = bank.manage("PUT", BLOCK, until("2025-12-31T13:44:00Z")).await;
        assert_eq!(block.status, 200, "{}", block.body);
        let id = parse(&block)["rate_limiting_id"].clone();
        assert_eq!(parse(&block)["blocks"], true);
        let denied = bank.call().await;
        assert_eq!(denied.standing(), "429 0-0-601, retry 601", "its last instant is included");
        let words = "OBP-10018: Too Many Requests. This Consumer is blocked (consumer_id: abc).";
        assert_eq!(message(&denied), words);
        let active = bank.get(ACTIVE).await;
        assert_eq!(active_numbers(&active), [0; 6]);
        assert_eq!(active["considered_rate_limit_ids"], json!([generous, id]));

        // Setting limits must not unblock a consumer by accident.
        assert_eq!(bank.manage("PUT", CALL_LIMITS, Some(record([50; 6]))).await.status, 200);
        let path = format!("{RATE_LIMITS}/{}", id.as_str().unwrap());
        let kept = bank.manage("PUT", &path, Some(record([9; 6]))).await;
        assert_eq!(parse(&kept)["blocks"], true);
        assert_eq!(bank.call().await.status, 429);

        let sooner = bank.manage("PUT", BLOCK, until("2025-12-31T13:35:00Z")).await;
        assert_eq!(parse(&sooner)["rate_limiting_id"], id, "it is the same block");
        assert_eq!(bank.get(BLOCK).await["to_date"], "2025-12-31T13:35:00Z");
        bank.clock.advance(Duration::from_secs(60));
        assert_eq!(bank.call().await.status, 429, "its last instant");
        bank.clock.advance(Duration::from_micros(1));
        assert_eq!(bank.call().await.status, 200);
        assert_eq!(bank.manage("GET", BLOCK, None).await.status, 404);
        assert_eq!(bank.counted().await, [1; 6]);
    })
    .await;
}

#[tokio::test]
async fn a_block_can_be_removed() {
    in_every_world(async |bank: Bank| {
        let until = Some(json!({ "until": "2030-01-01T00:00:00Z" }));
        assert_eq!(bank.manage("PUT", BLOCK, until.clone()).await.status, 200);
        assert_eq!(bank.call().await.status, 429);
        assert_eq!(bank.manage("DELETE", BLOCK, None).await.status, 204);
        assert_eq!(bank.call().await.status, 200);
        assert_eq!(bank.manage("DELETE", BLOCK, None).await.status, 404);
        for (body, field) in [
            (json!({ "until": "2025-12-31T13:34:00Z" }), "until"),
            (json!({ "until": "for ever" }), "until"),
            (json!({}), "until"),
            (json!({ "until": "2030-01-01T00:00:00Z", "why": "x" }), "why"),
        ] {
            let wrong = bank.manage("PUT", BLOCK, Some(body)).await;
            assert_eq!(
                (wrong.status, &parse(&wrong)["field"]),
                (400, &json!(field)),
                "{}",
                wrong.body
            );
        }
        assert_eq!(bank.call().await.status, 200);
        let kinds = bank.get("/management/consumers/abc/history").await;
        assert_eq!(kinds["changes"].as_array().unwrap().len(), 2);
    })
    .await;
}

/// A user who may block cannot unblock by shortening a block. A user who may change records can
/// neither block nor unblock by changing dates.
#[tokio::test]
async fn a_block_is_shortened_only_with_the_role_for_unblocking() {
    in_every_world(async |bank: Bank| {
        let at = |seconds| Timestamp::from_secs(NOW_SECONDS + seconds);
        let mut blocks = Vec::new();
        for seconds in [300, 600] {
            let block = RecordContent::block("abc", at(0), at(seconds));
            blocks.push(bank.records.create(block, "alice").await.unwrap());
        }
        let refused = |answer: Answer, role: Role| {
            assert_eq!(answer.status, 403, "{}", answer.body);
            assert!(message(&answer).ends_with(&role.to_string()), "{}", answer.body);
        };
        let until = |time: &str| Some(json!({ "until": time }));
        let creator = token_of(Role::CanCreateRateLimits);
        let sooner = until("2025-12-31T13:35:00Z");
        let answer = bank.as_who(&creator, "PUT", BLOCK, sooner.clone()).await;
        refused(answer, Role::CanDeleteRateLimits);
        let updater = token_of(Role::CanUpdateRateLimits);
        let path = format!("{RATE_LIMITS}/{}", blocks[1].id);
        for (from, to, role) in [
            ("2025-12-31T13:34:00Z", "2025-12-31T13:35:00Z", Role::CanDeleteRateLimits),
            ("2025-12-31T13:34:00Z", "2030-01-01T00:00:00Z", Role::CanCreateRateLimits),
        ] {
            let body = Some(super::dated([0; 6], from, to));
            refused(bank.as_who(&updater, "PUT", &path, body).await, role);
        }
        for block in &blocks {
            let there = bank.records.read(block.id).await.unwrap();
            assert_eq!(there.as_ref(), Some(block), "nothing was changed");
        }
        let later = bank.as_who(&creator, "PUT", BLOCK, until("2025-12-31T13:50:00Z")).await;
        assert_eq!(later.status, 200, "to block longer is to block: {}", later.body);

        assert_eq!(bank.manage("PUT", BLOCK, sooner).await.status, 200);
        assert_eq!(bank.records.read(blocks[0].id).await.unwrap(), None, "it would go on");
        assert_eq!(bank.get(BLOCK).await["to_date"], "2025-12-31T13:35:00Z");
    })
    .await;
}
