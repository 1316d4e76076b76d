//! Changes with and without `If-Match`, including concurrent ones.

use futures::future::join_all;
use reqwest::Method;
use rl_tests::web::{Answer, Fetch};
use serde_json::{Value, json};

use super::{
    ALICE, Bank, CALL_LIMITS, PREFIX, RATE_LIMITS, in_every_world, message, parse, record,
};

const BLOCK: &str = "/management/consumers/abc/block";
const GOLD: &str = "/management/tiers/gold";
const MEMBER: &str = "/management/subjects/consumer/abc/tier";
const PAYMENTS: &str = "/management/resources/payments";

async fn send(bank: &Bank, method: &str, path: &str, tag: &str, body: Value) -> Answer {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let request = bank.site.request(method, &format!("{PREFIX}{path}")).bearer_auth(ALICE);
    request.header("if-match", tag).json(&body).fetch().await
}

/// Returns the JSON of a tier with this number of calls per minute.
fn per_minute(calls: i64) -> Value {
    json!({ "per_minute_call_limit": calls })
}

/// Fault: some of several concurrent changes were answered with 412, although they had no
/// precondition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_changes_without_if_match_all_succeed() {
    in_every_world(async |bank: Bank| {
        let id = bank.add([1, -1, -1, -1, -1, -1]).await;
        let resource = json!({ "name": "payments", "apps": ["shop"], "max_permits": 1, "rate": 1 });
        assert_eq!(bank.manage("POST", "/management/resources", Some(resource)).await.status, 201);
        assert_eq!(bank.manage("POST", GOLD, Some(per_minute(1))).await.status, 201);
        assert_eq!(
            bank.manage("POST", "/management/tiers/free", Some(json!({}))).await.status,
            201
        );
        let one = format!("{RATE_LIMITS}/{id}");
        let until = |number: i64| json!({ "until": format!("2030-01-01T00:00:{number:02}Z") });
        let changes: [(&str, &dyn Fn(i64) -> Value); 6] = [
            (&one, &|number| record([number; 6])),
            (CALL_LIMITS, &|number| record([number; 6])),
            (GOLD, &per_minute),
            (MEMBER, &|number| json!({ "tier": if number % 2 == 0 { "gold" } else { "free" } })),
            (PAYMENTS, &|number| json!({ "apps": ["shop"], "max_permits": number, "rate": 1 })),
            (BLOCK, &until),
        ];
        for (path, body) in changes {
            let put = async |number: i64| bank.manage("PUT", path, Some(body(number))).await.status;
            assert_eq!(join_all((1..9).map(put)).await, [200; 8], "{path}");
        }
        // The changes also succeed for a user who may edit only the limits of some applications.
        let put = async |number: i64| {
            let body = json!({ "apps": ["shop"], "max_permits": number, "rate": 1 });
            bank.as_who(super::OWNER_OF_SHOP, "PUT", PAYMENTS, Some(body)).await.status
        };
        assert_eq!(join_all((1..9).map(put)).await, [200; 8]);
    })
    .await;
}

/// Fault: each of several concurrent requests created its own block, and the longest block applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_of_many_concurrent_blocks_decides() {
    in_every_world(async |bank: Bank| {
        let block = async |minute: i64| {
            let until = json!({ "until": format!("2030-01-01T00:{minute:02}:00Z") });
            bank.manage("PUT", BLOCK, Some(until)).await.status
        };
        assert_eq!(join_all((10..18).map(block)).await, [200; 8]);
        let records = bank.get(RATE_LIMITS).await;
        assert_eq!(records["limits"].as_array().unwrap().len(), 1, "{records}");
        let history = bank.get("/management/consumers/abc/history").await;
        let last = &history["changes"][0]["after"]["to_date"];
        assert_eq!(&bank.get(BLOCK).await["to_date"], last);
        assert_eq!(bank.manage("DELETE", BLOCK, None).await.status, 204);
        assert_eq!(bank.call().await.status, 200);
    })
    .await;
}

/// Fault: with `If-Match: *`, some endpoints created an object, and others responded with 404.
#[tokio::test]
async fn if_match_is_412_at_every_endpoint_when_there_is_nothing_to_change() {
    in_every_world(async |bank: Bank| {
        let id = format!("{RATE_LIMITS}/00000000-0000-4000-8000-000000000000");
        for (method, path, body) in [
            ("PUT", &*id, record([1; 6])),
            ("DELETE", &*id, json!(null)),
            ("PUT", CALL_LIMITS, record([1; 6])),
            ("PUT", GOLD, per_minute(1)),
            ("DELETE", GOLD, json!(null)),
            ("DELETE", MEMBER, json!(null)),
            ("PUT", PAYMENTS, json!({ "apps": [], "max_permits": 1, "rate": 1 })),
            ("DELETE", PAYMENTS, json!(null)),
            ("PUT", BLOCK, json!({ "until": "2030-01-01T00:00:00Z" })),
            ("DELETE", BLOCK, json!(null)),
        ] {
            for tag in ["*", "\"1\""] {
                let answer = send(&bank, method, path, tag, body.clone()).await;
                assert_eq!(answer.status, 412, "{method} {path} {tag}: {}", answer.body);
                assert!(message(&answer).contains("there is nothing"), "{}", answer.body);
            }
            for tag in ["", "1", "\"1", "\"1\" \"2\"", "\"1\"2\""] {
                let answer = send(&bank, method, path, tag, body.clone()).await;
                let field = parse(&answer)["field"].clone();
                assert_eq!(
                    (answer.status, field),
                    (400, json!("If-Match")),
                    "{method} {path} {tag}"
                );
            }
        }
        assert_eq!(super::stored(&bank.records).await, 0);
    })
    .await;
}

/// Fault: `If-Match` contained an unknown tag. The response said that the record had been changed
/// in the meantime.
#[tokio::test]
async fn an_unknown_tag_is_not_reported_as_a_change() {
    in_every_world(async |bank: Bank| {
        let path = format!("{RATE_LIMITS}/{}", bank.add([1; 6]).await);
        for tag in ["\"abc\"", "\"\"", "\"7\"", "W/\"1\""] {
            let answer = send(&bank, "PUT", &path, tag, record([2; 6])).await;
            assert_eq!((answer.status, answer.header("etag")), (412, Some("\"1\"")), "{tag}");
            let text = message(&answer);
            assert!(text.starts_with("If-Match does not name the current revision"), "{text}");
            assert!(!text.contains("changed"), "{text}");
        }
    })
    .await;
}

/// Fault: blocks ignored `If-Match`.
#[tokio::test]
async fn blocks_respect_if_match() {
    in_every_world(async |bank: Bank| {
        let until = |time: &str| json!({ "until": time });
        let first = bank.manage("PUT", BLOCK, Some(until("2030-01-01T00:00:00Z"))).await;
        assert_eq!((first.status, first.header("etag")), (200, Some("\"1\"")));
        let later = until("2031-01-01T00:00:00Z");
        assert_eq!(send(&bank, "PUT", BLOCK, "\"2\"", later.clone()).await.status, 412);
        assert_eq!(send(&bank, "DELETE", BLOCK, "\"2\"", json!(null)).await.status, 412);
        assert_eq!(bank.get(BLOCK).await["to_date"], json!("2030-01-01T00:00:00Z"));
        let second = send(&bank, "PUT", BLOCK, "\"1\"", later).await;
        assert_eq!((second.status, second.header("etag")), (200, Some("\"2\"")));
        assert_eq!(send(&bank, "DELETE", BLOCK, "\"2\"", json!(null)).await.status, 204);
    })
    .await;
}

/// The setting that requires `If-Match` applies to blocks as to all other changes.
#[tokio::test]
async fn a_change_without_if_match_is_428_when_it_is_required() {
    let records = rl_records::Records::connect("sqlite::memory:").await.unwrap();
    let source = rl_records::RecordSource::start(&records);
    let limiter = rl_core::RateLimiter::builder().policies(source.clone()).build().unwrap();
    let admin = rl_admin::Admin::builder(records, limiter);
    let admin = admin.authorize(super::tokens()).require_if_match(true).build();
    let site = rl_tests::web::axum::serve(admin.router());
    let call = async |method: &str, path: &str, body: Value| {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        site.request(method, path).bearer_auth(ALICE).json(&body).fetch().await.status
    };
    let resource = json!({ "name": "payments", "apps": [], "max_permits": 1, "rate": 1 });
    assert_eq!(call("POST", "/management/resources", resource).await, 201);
    assert_eq!(call("POST", GOLD, per_minute(1)).await, 201);
    let changes = [
        (GOLD, per_minute(2), 428),
        (MEMBER, json!({ "tier": "gold" }), 200),
        (PAYMENTS, json!({ "apps": [], "max_permits": 2, "rate": 1 }), 428),
        (BLOCK, json!({ "until": "2900-01-01T00:00:00Z" }), 200),
        (CALL_LIMITS, record([1; 6]), 200),
    ];
    for (path, body, first) in changes {
        assert_eq!(call("PUT", path, body.clone()).await, first, "{path}");
        assert_eq!(call("PUT", path, body).await, 428, "{path}");
        if path != CALL_LIMITS {
            assert_eq!(call("DELETE", path, json!(null)).await, 428, "{path}");
        }
    }
}
