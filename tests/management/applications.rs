//! Lists and reports for an actor of some applications.

use std::time::Duration;

use rl_core::rules::{Rule, Rules};
use rl_core::{RateLimiter, Realm};
use rl_records::{RecordSource, Records};
use rl_tests::web::{Fetch, axum};
use rl_tower::MissingKey;
use rl_tower::key::Header;
use serde_json::{Value, json};

use super::{Bank, OWNER_OF_SHOP, in_every_world, message, parse, record, tokens};

/// Calls the management as the owner of `shop`.
async fn owner(bank: &Bank, path: &str) -> Value {
    let answer = bank.as_who(OWNER_OF_SHOP, "GET", path, None).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    parse(&answer)
}

/// Creates an object as an administrator.
async fn put(bank: &Bank, method: &str, path: &str, body: Value) -> Value {
    let answer = bank.manage(method, path, Some(body)).await;
    assert!([200, 201].contains(&answer.status), "{method} {path}: {}", answer.body);
    parse(&answer)
}

fn resource(name: &str, apps: &[&str]) -> Value {
    json!({ "name": name, "apps": apps, "max_permits": 3, "rate": 1 })
}

/// Creates three objects of each kind for `shop`, and more of other applications around them.
async fn fill(bank: &Bank) {
    for (number, app) in ["ooo", "shop", "sho", "shop", "shop2", "shop", "zzz"].iter().enumerate() {
        let records = format!("/management/consumers/{app}/consumer/rate-limits");
        put(bank, "POST", &records, record([1, -1, -1, -1, -1, -1])).await;
        let tier = format!("{number}-{app}");
        let limits = json!({ "per_minute_call_limit": 5 });
        put(bank, "POST", &format!("/management/tiers/{tier}"), limits).await;
        let body = json!({ "consumer_id": app, "tier": tier, "from_date": "2025-06-01T00:00:00Z" });
        put(bank, "POST", "/management/subscriptions", body).await;
        let body = resource(&format!("{number}-{app}"), &["wallet", app]);
        put(bank, "POST", "/management/resources", body).await;
    }
}

#[tokio::test]
async fn lists_hold_only_objects_of_the_own_applications_in_full_pages() {
    in_every_world(async |bank: Bank| {
        fill(&bank).await;
        for (path, list, cursor, count) in [
            ("/management/rate-limits", "limits", "after", 3),
            ("/management/limits", "limits", "after", 3),
            ("/management/consumers", "consumers", "after", 1),
            ("/management/tiers", "tiers", "after", 3),
            ("/management/subscriptions", "subscriptions", "after", 3),
            ("/management/resources", "resources", "after", 3),
            ("/management/applications/shop/resources", "resources", "after", 3),
            ("/management/history", "changes", "before", 6),
        ] {
            let (mut sizes, mut next) = (Vec::new(), String::new());
            loop {
                let page = owner(&bank, &format!("{path}?limit=2{next}")).await;
                let text = page.to_string();
                for other in ["ooo", "sho\"", "shop2", "zzz", "wallet"] {
                    assert!(!text.contains(other), "{path}: {other}: {text}");
                }
                assert!(page[list][0].is_null() || text.contains("shop"), "{path}: {text}");
                sizes.push(page[list].as_array().unwrap().len());
                let Some(after) = page.get("next").filter(|next| !next.is_null()) else { break };
                let after = after.to_string().replace('"', "");
                next = format!("&{cursor}={after}");
            }
            let last = sizes.pop().unwrap();
            assert!(sizes.iter().all(|size| *size == 2) && last <= 2, "{path}: {sizes:?} {last}");
            assert_eq!(sizes.iter().sum::<usize>() + last, count, "{path}");
            let all = bank.get(path).await;
            assert!(list != "limits" || all[list].as_array().unwrap().len() == 7, "{path}: {all}");
        }
        for filter in ["rate-limits?search=ooo", "limits?subject=ooo", "limits?realm=ip"] {
            let found = owner(&bank, &format!("/management/{filter}")).await;
            assert_eq!(found["limits"], json!([]), "{filter}");
        }
        let found = owner(&bank, "/management/subscriptions?consumer=ooo").await;
        assert_eq!(found["subscriptions"], json!([]));
        let found = owner(&bank, "/management/consumers?search=sho").await;
        assert_eq!(found["consumers"].as_array().unwrap().len(), 1);
    })
    .await;
}

/// A resource that several applications share is shown with the own ones only.
#[tokio::test]
async fn a_shared_resource_names_no_other_application_and_is_not_edited() {
    in_every_world(async |bank: Bank| {
        let path = "/management/resources/payments";
        put(&bank, "POST", "/management/resources", resource("payments", &["wallet"])).await;
        let apps = |apps: &[&str]| json!({ "apps": apps, "max_permits": 5, "rate": 1 });
        put(&bank, "PUT", path, apps(&["wallet", "zoo"])).await;
        put(&bank, "PUT", path, apps(&["wallet", "shop"])).await;
        put(&bank, "PUT", path, apps(&["shop", "zoo"])).await;
        assert_eq!(owner(&bank, path).await["apps"], json!(["shop"]));
        for (method, body) in [("PUT", Some(apps(&["shop"]))), ("DELETE", None)] {
            let answer = bank.as_who(OWNER_OF_SHOP, method, path, body).await;
            assert_eq!(answer.status, 403, "{method}");
            assert!(message(&answer).contains("lists no application of other users"));
        }
        let page = owner(&bank, &format!("{path}/history?limit=1")).await;
        let rest = format!("{path}/history?limit=50&before={}", page["next"]);
        let rest = owner(&bank, &rest).await;
        let (newest, older) = (&page["changes"][0], rest["changes"].as_array().unwrap());
        assert_eq!(
            (&newest["before"]["apps"], &newest["after"]["apps"]),
            (&json!(["shop"]), &json!(["shop"]))
        );
        assert_eq!(older.len(), 1, "the changes before it listed the shop: {rest}");
        assert_eq!((&older[0]["before"], &rest["next"]), (&Value::Null, &Value::Null));
        assert_eq!(
            bank.get(&format!("{path}/history")).await["changes"].as_array().unwrap().len(),
            4
        );

        // Without the own application, the resource is not there, and neither is its history.
        put(&bank, "PUT", path, apps(&["zoo"])).await;
        for path in [path, &format!("{path}/history"), &format!("{path}/usage")] {
            assert_eq!(bank.as_who(OWNER_OF_SHOP, "GET", path, None).await.status, 404, "{path}");
        }
    })
    .await;
}

#[tokio::test]
async fn top_subjects_are_those_of_the_own_applications() {
    let bank = Bank::embedded().await;
    for app in ["ooo", "shop", "zzz"] {
        let records = format!("/management/consumers/{app}/consumer/rate-limits");
        put(&bank, "POST", &records, record([-1, -1, -1, 1, -1, -1])).await;
        for expected in [200, 429, 429] {
            // The clock advances, because only one decision in each millisecond is recorded.
            bank.clock.advance(Duration::from_millis(2));
            let call = bank.site.get("/banks").header("x-consumer", app);
            assert_eq!(call.fetch().await.status, expected);
        }
    }
    for by in ["denied", "used"] {
        let path = format!("/management/top-subjects?by={by}");
        for path in [&path, &format!("{path}&limit=1")] {
            let found = owner(&bank, path).await;
            assert_eq!(found["subjects"].as_array().unwrap().len(), 1, "{path}: {found}");
            assert_eq!(found["subjects"][0]["subject"], "consumer/shop", "{path}");
        }
        let all = bank.get(&path).await;
        assert_eq!(all["subjects"].as_array().unwrap().len(), 3, "{by}");
    }
}

/// The rules for all requests and for addresses count other applications too.
#[tokio::test]
async fn an_explanation_shows_no_use_of_other_subjects() {
    let records = Records::connect("sqlite::memory:").await.unwrap();
    let source = RecordSource::start(&records);
    let consumer = Header::new("x-consumer", Realm::Consumer).unwrap();
    let consumers = Rule::named("consumers").per(consumer).on_missing_key(MissingKey::Allow);
    let fleet = Rule::named("fleet").limit("5000/second".parse().unwrap());
    let rules = Rules::new().rule(consumers.policies(source)).rule(fleet);
    let limiter = RateLimiter::builder().rules(rules).build().unwrap();
    let admin = rl_admin::Admin::builder(records, limiter).authorize(tokens()).build();
    let site = axum::serve(admin.router());
    let explain = async |token: &str, query: &str| {
        let path = format!("/management/consumers/shop/explain{query}");
        let answer = site.get(&path).bearer_auth(token).fetch().await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let explained = parse(&answer);
        let rules = explained["rules"].as_array().unwrap().iter();
        let rules: Vec<String> =
            rules.map(|rule| rule["rule"].as_str().unwrap().to_owned()).collect();
        (rules, explained["other_rules"].clone())
    };
    for query in ["", "?path=/"] {
        let both = ["consumers", "fleet"].map(ToOwned::to_owned).to_vec();
        assert_eq!(explain(super::ALICE, query).await, (both, json!([])), "{query}");
        let own = vec!["consumers".to_owned()];
        assert_eq!(explain(OWNER_OF_SHOP, query).await, (own, json!(["fleet"])), "{query}");
    }
}
