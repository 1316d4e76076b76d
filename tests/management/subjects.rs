//! Paths name subjects as the limiter counts them.

use std::net::IpAddr;
use std::sync::Arc;

use rl_admin::{Admin, Backend};
use rl_core::client_ip::ClientIp;
use rl_core::store::Layout;
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{MemoryStore, RateLimiter, Realm, RedisStore, Subject};
use rl_records::{RecordSource, Records};
use rl_tests::Bystander;
use rl_tests::web::Fetch;
use rl_tests::{RedisServer, web};
use serde_json::{Value, json};

use super::{ALICE, Bank, NOW_SECONDS, PATIENCE, in_every_world, message, only_rule, parse};

/// Fault: an address in another notation was reported as a subject without usage.
#[tokio::test]
async fn counters_of_an_ipv6_client_are_found_by_any_spelling_of_its_address() {
    let records = Records::connect("sqlite::memory:").await.unwrap();
    let source = RecordSource::start(&records);
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(NOW_SECONDS)));
    let store = MemoryStore::builder().clock(clock).build();
    let limiter = RateLimiter::builder().policies(source.clone()).store(store).build().unwrap();
    let rule = ClientIp::peer().ipv6_prefix(56).unwrap();
    let client: IpAddr = "2001:db8::7".parse().unwrap();
    let counted = rule.resolve(Some(client), &[]).unwrap().to_string();
    let client = Subject::new(Realm::Ip, &counted);
    let admin = Admin::builder(records, limiter.clone()).client_ip(rule);
    let admin = admin.authorize(super::tokens()).build();
    let site = web::axum::serve(admin.router());
    let call = async |method: &str, path: &str| {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        site.request(method, path).bearer_auth(ALICE).fetch().await
    };
    for spelling in [
        "2001:db8::7",
        "2001:0DB8:0:0:0:0:0:7",
        "2001:db8:0:1::",
        "2001:db8::%2F56",
        "2001:db8::7%2f56",
    ] {
        let path = format!("/management/subjects/ip/{spelling}");
        limiter.check(&client, 3).await;
        let usage = parse(&call("GET", &format!("{path}/usage")).await);
        assert_eq!(usage["subject"], json!("ip/2001:db8::/56"), "{spelling}");
        assert_eq!(only_rule(&usage)["limits"][0]["used"], json!(3), "{spelling}");
        let explained = parse(&call("GET", &format!("{path}/explain")).await);
        assert_eq!(only_rule(&explained)["limits"][0]["used"], json!(3), "{spelling}");
        assert_eq!(call("DELETE", &format!("{path}/usage")).await.status, 204);
        let usage = limiter.usage(&client).await.unwrap();
        assert_eq!(usage.limits().next().unwrap().used(), 0, "{spelling}");
    }
}

/// Fault: the response contained usage for an invalid address, and for a realm that is never
/// counted.
#[tokio::test]
async fn subjects_that_nothing_counts_are_rejected_with_their_value() {
    in_every_world(async |bank: Bank| {
        for (subject, field, words) in [
            ("ip/999.1.1.1", "SUBJECT_ID", "\"999.1.1.1\": expected an address such as"),
            ("ip/::1%2F128", "SUBJECT_ID", "\"::1/128\": expected an address, or a network of /64"),
            ("ip/localhost", "SUBJECT_ID", "expected an address such as"),
            ("global/all", "SUBJECT_ID", "expected -"),
            ("bogus/x", "REALM", "\"bogus\": expected one of ip, key, consumer, user"),
        ] {
            for (method, rest) in [
                ("GET", "usage"),
                ("GET", "explain"),
                ("DELETE", "usage"),
                ("DELETE", "usage/minute"),
                ("GET", "tier"),
                ("PUT", "tier"),
                ("DELETE", "tier"),
            ] {
                let body = (method == "PUT").then(|| json!({ "tier": "gold" }));
                let path = format!("/management/subjects/{subject}/{rest}");
                let answer = bank.manage(method, &path, body).await;
                assert_eq!(answer.status, 400, "{method} {path}");
                assert_eq!(parse(&answer)["field"], json!(field), "{method} {path}");
                assert!(message(&answer).contains(words), "{method} {path}: {}", answer.body);
            }
        }
        for path in ["global/-", "unknown/-", "resource/payments", "user/alice"] {
            bank.get(&format!("/management/subjects/{path}/usage")).await;
        }
    })
    .await;
}

/// Fault: periods without a limit were shown as limits in shadow, because the store counts them
/// like limits in shadow.
#[tokio::test]
async fn periods_without_a_limit_are_shown_as_unlimited() {
    in_every_world(async |bank: Bank| {
        assert_eq!(bank.call().await.status, 200);
        for path in ["subjects/consumer/abc/usage", "subjects/consumer/abc/explain"] {
            let explanation = bank.get(&format!("/management/{path}")).await;
            let rule = only_rule(&explanation);
            assert_eq!(rule["policy"], json!("unlimited"), "{path}");
            for limit in rule["limits"].as_array().unwrap() {
                assert_eq!(limit["limit"], json!("unlimited"), "{limit}");
                let numbers = (&limit["max"], &limit["remaining"], &limit["used"]);
                assert_eq!(numbers, (&json!(null), &json!(null), &json!(1)), "{limit}");
                assert_eq!(limit["is_shadow"], json!(false), "{limit}");
            }
        }
        let explained = bank.get("/management/consumers/abc/explain").await;
        let reason = "there are no own limits now, and the defaults have no limit";
        assert_eq!(explained["reason"], json!(reason));
        bank.add([-1, 3, -1, -1, -1, -1]).await;
        let explained = bank.get("/management/consumers/abc/explain").await;
        assert_eq!(only_rule(&explained)["policy"], json!("minute=3/minute"));
        assert_eq!(explained["policies_of"], json!("service"));
    })
    .await;
}

/// Fault: one endpoint accepted only `minute`, another one only `per_minute`.
#[tokio::test]
async fn limits_and_counters_are_reset_by_both_names_of_a_period() {
    in_every_world(async |bank: Bank| {
        for path in [
            "subjects/consumer/abc/usage/minute",
            "subjects/consumer/abc/usage/per_minute",
            "consumers/abc/call-counters/minute",
            "consumers/abc/call-counters/per_minute",
        ] {
            assert_eq!(bank.call().await.status, 200);
            let reset = bank.manage("DELETE", &format!("/management/{path}"), None).await;
            assert_eq!(reset.status, 204, "{path}: {}", reset.body);
            assert_eq!(bank.counted().await[1], 0, "{path}");
        }
    })
    .await;
}

/// Damages counters on Redis, and checks the responses. Returns the counters as the API reports
/// them.
async fn with_damage(layout: Layout, damage: impl AsyncFn(&mut Bystander)) -> Value {
    let server = RedisServer::start();
    let records = Records::connect("sqlite::memory:").await.unwrap();
    let source = RecordSource::builder(&records).count_unlimited(true).deadline(PATIENCE).start();
    let store = RedisStore::builder(&server.url()).layout(layout).connection_wait(PATIENCE);
    let store = store.response_timeout(PATIENCE).connect().await.unwrap();
    let limiter = RateLimiter::builder().policies(source.clone()).store(store);
    let limiter = limiter.deadline(PATIENCE).build().unwrap();
    let admin = Admin::builder(records, limiter.clone()).authorize(super::tokens());
    let admin = admin.backend(Backend::redis(&server.url())).build();
    let site = web::axum::serve(admin.router());
    assert!(limiter.check(&Subject::new(Realm::Consumer, "abc"), 1).await.is_allowed());
    damage(&mut Bystander::new(&server).await).await;
    let path = "/management/consumers/abc/call-counters";
    let counters = parse(&site.get(path).bearer_auth(ALICE).fetch().await);
    let usage = "/management/subjects/consumer/abc/usage";
    let usage = site.get(usage).bearer_auth(ALICE).fetch().await;
    assert_eq!(usage.status, 503);
    assert!(message(&usage).contains("are damaged"), "{}", usage.body);

    let healed = site.request(reqwest::Method::DELETE, path).bearer_auth(ALICE).fetch().await;
    assert_eq!(healed.status, 204, "{}", healed.body);
    let whole = parse(&site.get(path).bearer_auth(ALICE).fetch().await);
    assert_eq!(whole["per_minute"]["status"], json!("NO_COUNTER"), "{whole}");
    counters
}

/// Fault: all six counters were reported as unavailable because one was damaged.
#[tokio::test]
async fn a_damaged_counter_is_reported_as_damaged_and_the_others_are_shown() {
    let counters = with_damage(Layout::Readable, async |redis| {
        redis.query::<()>("DEL abc_PER_MINUTE").await;
        redis.query::<()>("RPUSH abc_PER_MINUTE x").await;
    })
    .await;
    assert_eq!(counters["per_minute"]["status"], json!("COUNTER_DAMAGED"), "{counters}");
    for period in ["per_hour", "per_day", "per_week", "per_month"] {
        assert_eq!(counters[period]["status"], json!("ACTIVE"), "{counters}");
        assert_eq!(counters[period]["calls_made"], json!(1), "{counters}");
    }
}

#[tokio::test]
async fn counters_that_are_stored_together_are_damaged_together() {
    let counters = with_damage(Layout::Packed, async |redis| {
        for key in redis.query::<Vec<String>>("KEYS *").await {
            redis.query::<()>(&format!("DEL {key}")).await;
            redis.query::<()>(&format!("RPUSH {key} x")).await;
        }
    })
    .await;
    for period in ["per_second", "per_minute", "per_hour", "per_day", "per_week", "per_month"] {
        assert_eq!(counters[period]["status"], json!("COUNTER_DAMAGED"), "{counters}");
        assert_eq!(counters[period]["calls_made"], json!(null), "{counters}");
    }
}
