//! Subscriptions: their status, their dates, and the role of a billing system.

use reqwest::Method;
use rl_admin::Role;
use rl_tests::web::Fetch;
use serde_json::{Value, json};

use super::{ALICE, Bank, PREFIX, in_every_world, message, parse, token_of};

const ALL: &str = "/management/subscriptions";
const GOLD: &str = "/management/tiers/gold";

/// Creates the tier `gold`, and returns the path of a subscription of consumer `abc` to it.
pub(super) async fn subscribe(bank: &Bank, status: &str) -> String {
    let limits = json!({ "per_minute_call_limit": 5 });
    assert_eq!(bank.manage("POST", GOLD, Some(limits)).await.status, 201);
    let body = json!({
        "consumer_id": "abc", "tier": "gold", "status": status,
        "from_date": "2025-06-01T00:00:00Z",
    });
    let created = bank.manage("POST", ALL, Some(body)).await;
    assert_eq!(created.status, 201, "{}", created.body);
    let created_body = parse(&created);
    assert_eq!((created.header("etag"), &created_body["revision"]), (Some("\"1\""), &json!(1)));
    assert_eq!((&created_body["status"], &created_body["to_date"]), (&json!(status), &json!(null)));
    format!("{ALL}/{}", created_body["subscription_id"].as_str().unwrap())
}

fn status(status: &str) -> Option<Value> {
    Some(json!({ "status": status }))
}

#[tokio::test]
async fn a_billing_system_changes_the_status_and_nothing_else() {
    in_every_world(async |bank: Bank| {
        let path = subscribe(&bank, "requested").await;
        bank.add([-1, 2, -1, -1, -1, -1]).await;
        assert_eq!(bank.call().await.standing(), "200 2-1-60");
        let billing = token_of(Role::CanSetSubscriptionStatus);
        let set = async |to: &str| {
            let path = format!("{path}/status");
            bank.as_who(&billing, "PUT", &path, status(to)).await
        };
        let active = set("active").await;
        assert_eq!((active.status, active.header("etag")), (200, Some("\"2\"")), "{}", active.body);
        assert_eq!(bank.call().await.standing(), "200 7-5-60");
        let record = parse(&active)["rate_limiting_id"].as_str().unwrap().to_owned();
        let record = format!("{}/{record}", super::RATE_LIMITS);
        assert_eq!(bank.get(&record).await["per_minute_call_limit"], "5");

        assert_eq!(set("past_due").await.status, 200);
        assert_eq!(bank.call().await.standing(), "200 7-4-60", "a period of grace");
        let again = set("past_due").await;
        assert_eq!((again.status, again.header("etag")), (200, Some("\"3\"")), "nothing changes");
        assert_eq!(set("suspended").await.status, 200);
        assert_eq!(bank.call().await.status, 429, "three calls, of two that the record grants");
        let wrong = set("past_due").await;
        let words =
            "status \"past_due\": expected active or cancelled, because the status is suspended";
        assert_eq!((wrong.status, &*message(&wrong)), (409, words));
        assert_eq!(set("unknown").await.status, 400);
        assert_eq!(set("active").await.status, 200);
        assert_eq!(bank.call().await.standing(), "200 7-3-60");

        for (method, path, body) in [
            ("GET", path.clone(), None),
            ("PUT", format!("{path}/dates"), Some(json!({ "from_date": "2025-06-01T00:00:00Z" }))),
            ("PUT", GOLD.to_owned(), Some(json!({}))),
            ("DELETE", record.clone(), None),
        ] {
            assert_eq!(bank.as_who(&billing, method, &path, body).await.status, 403, "{path}");
        }
        let by_hand = bank.manage("DELETE", &record, None).await;
        assert!(message(&by_hand).contains("change the subscription instead"), "{}", by_hand.body);
        let taken = bank.manage("DELETE", GOLD, None).await;
        assert_eq!(taken.status, 409);
        assert!(message(&taken).contains("without subscriptions"), "{}", taken.body);

        assert_eq!(set("cancelled").await.status, 200);
        assert_eq!(bank.manage("GET", &record, None).await.status, 404);
        let final_status = set("active").await;
        assert_eq!(final_status.status, 409);
        assert!(message(&final_status).contains("which is final"), "{}", final_status.body);
        assert_eq!(bank.manage("DELETE", GOLD, None).await.status, 204);

        let history = bank.get(&format!("{path}/history")).await;
        let history = history["changes"].as_array().unwrap();
        let steps: Vec<_> = history.iter().rev().map(|entry| &entry["after"]["status"]).collect();
        let expected = ["requested", "active", "past_due", "suspended", "active", "cancelled"];
        assert_eq!(steps, expected.map(Value::from).iter().collect::<Vec<_>>());
        assert!(history.iter().all(|entry| entry["about"] == "subscription"));
        assert_eq!(history[0]["by"], Role::CanSetSubscriptionStatus.as_str());
        assert_eq!(history[0]["subject"], "consumer/abc");
        let of_abc = bank.get("/management/consumers/abc/history?limit=1000").await;
        let of_abc = of_abc["changes"].as_array().unwrap();
        let about = |name: &str| of_abc.iter().filter(|entry| entry["about"] == name).count();
        assert_eq!(about("subscription"), 6);
        assert_eq!(about("record"), 1 + 4, "one by hand; created, ended, restored, deleted");
    })
    .await;
}

#[tokio::test]
async fn a_change_of_a_seen_revision_that_is_not_the_current_one_is_412() {
    in_every_world(async |bank: Bank| {
        let path = subscribe(&bank, "active").await;
        let dates = Some(json!({
            "from_date": "2025-06-01T00:00:00Z", "to_date": "2025-07-01T00:00:00Z", "billing_day": 15,
        }));
        let changed = bank.manage("PUT", &format!("{path}/dates"), dates.clone()).await;
        assert_eq!(changed.status, 200, "{}", changed.body);
        assert_eq!(parse(&changed)["to_date"], "2025-07-01T00:00:00Z");
        assert_eq!(parse(&changed)["billing_day"], 15);
        let wrong = json!({ "from_date": "2025-06-01T00:00:00Z", "billing_day": 31 });
        let wrong = bank.manage("PUT", &format!("{path}/dates"), Some(wrong)).await;
        assert_eq!(wrong.status, 400);
        assert!(message(&wrong).contains("a day of the month from 1 to 28"), "{}", wrong.body);
        assert_eq!(bank.call().await.status, 200);
        for (end, body) in [("status", status("suspended")), ("dates", dates)] {
            let late = bank.site.request(Method::PUT, &format!("{PREFIX}{path}/{end}"));
            let late = late.bearer_auth(ALICE).header("if-match", "\"1\"").json(&body);
            let late = late.fetch().await;
            assert_eq!((late.status, late.header("etag")), (412, Some("\"2\"")), "{}", late.body);
        }
        let missing = format!("{ALL}/00000000-0000-4000-8000-000000000000");
        assert_eq!(bank.manage("GET", &missing, None).await.status, 404);
        let set = bank.manage("PUT", &format!("{missing}/status"), status("active")).await;
        assert_eq!(set.status, 404);
    })
    .await;
}

#[tokio::test]
async fn subscriptions_are_listed_by_consumer_tier_and_status() {
    in_every_world(async |bank: Bank| {
        subscribe(&bank, "active").await;
        for consumer in ["a", "b"] {
            let body = json!({
                "consumer_id": consumer, "tier": "gold", "from_date": "2025-06-01T00:00:00Z",
            });
            assert_eq!(bank.manage("POST", ALL, Some(body)).await.status, 201);
        }
        for (query, count) in [
            ("", 3),
            ("consumer=abc", 1),
            ("tier=gold", 3),
            ("tier=free", 0),
            ("status=requested", 2),
            ("status=requested&consumer=b", 1),
        ] {
            let page = bank.get(&format!("{ALL}?{query}")).await;
            assert_eq!(page["subscriptions"].as_array().unwrap().len(), count, "{query}");
            assert_eq!(page["next"], json!(null));
        }
        let first = bank.get(&format!("{ALL}?limit=2")).await;
        let next = first["next"].as_str().unwrap();
        let rest = bank.get(&format!("{ALL}?limit=2&after={next}")).await;
        assert_eq!(
            (rest["subscriptions"].as_array().unwrap().len(), &rest["next"]),
            (1, &json!(null))
        );
        assert_eq!(bank.manage("GET", &format!("{ALL}?after=x"), None).await.status, 400);
        assert_eq!(bank.manage("GET", &format!("{ALL}?status=x"), None).await.status, 400);
    })
    .await;
}

/// Without defaults, a suspended subscription leaves its consumer without a limit.
#[tokio::test]
async fn a_consumer_that_has_no_limit_after_its_subscription_is_reported() {
    let bank = Bank::embedded().await;
    let path = subscribe(&bank, "active").await;
    let suspended = bank.manage("PUT", &format!("{path}/status"), status("suspended")).await;
    let warning = parse(&suspended)["warning"].as_str().unwrap().to_owned();
    assert!(warning.starts_with("the consumer has no limit now"), "{warning}");
    bank.add([-1, 2, -1, -1, -1, -1]).await;
    let cancelled = bank.manage("PUT", &format!("{path}/status"), status("cancelled")).await;
    assert!(parse(&cancelled)["warning"].is_null(), "{}", cancelled.body);
}
