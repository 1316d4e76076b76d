//! A consumer is blocked until a time, whatever its records say.

use std::time::Duration;

use serde_json::json;

use super::{
    ACTIVE, Bank, CALL_LIMITS, RATE_LIMITS, active_numbers, in_both_worlds, parse, record,
};

const BLOCK: &str = "/management/consumers/abc/block";

#[tokio::test]
async fn a_block_wins_over_every_limit_until_it_ends() {
    in_both_worlds(async |bank: Bank| {
        let generous = bank.add([1_000, -1, -1, -1, -1, -1]).await;
        assert_eq!(bank.manage("GET", BLOCK, None).await.status, 404);
        let until = |time: &str| Some(json!({ "until": time }));
        let block = bank.manage("PUT", BLOCK, until("2025-12-31T13:44:00Z")).await;
        assert_eq!(block.status, 200, "{}", block.body);
        let id = parse(&block)["rate_limiting_id"].clone();
        assert_eq!(parse(&block)["blocks"], true);
        assert_eq!(bank.call().await.standing(), "429 0-0-1");
        let active = bank.get(ACTIVE).await;
        assert_eq!(active_numbers(&active), [0; 6]);
        assert_eq!(active["considered_rate_limit_ids"], json!([generous, id]));

        // Setting limits does not unblock by accident.
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
async fn a_block_is_taken_back() {
    in_both_worlds(async |bank: Bank| {
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
