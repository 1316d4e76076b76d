//! Counters: reading them charges nothing, and they can be reset.

use std::time::Duration;

use rl_core::{Realm, Subject};
use serde_json::{Value, json};

use super::{ALICE, Bank, CALL_LIMITS, in_every_world, only_rule, parse};

const COUNTERS: &str = "/management/consumers/abc/call-counters";

#[tokio::test]
async fn counters_are_shown_for_every_period() {
    in_every_world(async |bank: Bank| {
        let none = json!({ "calls_made": 0, "reset_in_seconds": 0, "status": "NO_COUNTER" });
        assert_eq!(bank.get(COUNTERS).await["per_second"], none);
        bank.add([-1, 100, -1, -1, -1, -1]).await;
        for _ in 0..3 {
            bank.call().await;
        }
        bank.clock.advance(Duration::from_millis(22_500));
        let counters = bank.get(COUNTERS).await;
        assert_eq!(counters["per_second"], none, "its window has ended");
        let minute = json!({ "calls_made": 3, "reset_in_seconds": 38, "status": "ACTIVE" });
        assert_eq!(counters["per_minute"], minute);
        assert_eq!(counters["per_week"]["reset_in_seconds"], 604_778);

        let overview = bank.get("/management/consumers/abc").await;
        assert_eq!(overview["call_counters"], counters);
        assert_eq!(overview["active_rate_limits"], bank.get(super::ACTIVE).await);
    })
    .await;
}

/// Reads the counters many times, through every endpoint that shows them. The next request must be
/// decided as if nothing had been read.
#[tokio::test]
async fn reading_counters_charges_nothing_and_opens_no_window() {
    in_every_world(async |bank: Bank| {
        bank.add([-1, 3, -1, -1, -1, -1]).await;
        let looks = [
            COUNTERS,
            CALL_LIMITS,
            "/management/consumers/abc",
            "/management/consumers/abc/explain?cost=3",
            "/management/subjects/consumer/abc/usage",
            "/management/subjects/consumer/abc/explain",
            "/management/rate-limiting",
        ];
        for path in looks {
            bank.get(path).await;
        }
        bank.clock.advance(Duration::from_secs(30));
        assert_eq!(bank.call().await.standing(), "200 3-2-60", "the window begins with the call");
        let before: Vec<Value> = {
            let mut all = Vec::new();
            for path in looks {
                all.push(bank.get(path).await)
            }
            all
        };
        for (path, before) in looks.into_iter().zip(before) {
            assert_eq!(bank.get(path).await, before, "{path}");
        }
        assert_eq!(bank.call().await.standing(), "200 3-1-60");
        assert_eq!(bank.call().await.standing(), "200 3-0-60");
        assert_eq!(bank.call().await.status, 429);
    })
    .await;
}

#[tokio::test]
async fn one_counter_or_all_are_reset() {
    in_every_world(async |bank: Bank| {
        bank.add([-1, 2, 5, -1, -1, -1]).await;
        for _ in 0..2 {
            assert_eq!(bank.call().await.status, 200);
        }
        assert_eq!(bank.call().await.status, 429);
        let minute = bank.manage("DELETE", &format!("{COUNTERS}/per_minute"), None).await;
        assert_eq!((minute.status, &*minute.body), (204, ""));
        assert_eq!(bank.counted().await, [2, 0, 2, 2, 2, 2]);
        assert_eq!(bank.call().await.standing(), "200 2-1-60");
        assert_eq!(bank.manage("DELETE", COUNTERS, None).await.status, 204);
        assert_eq!(bank.counted().await, [0; 6]);
        let wrong = bank.manage("DELETE", &format!("{COUNTERS}/per_year"), None).await;
        assert_eq!((wrong.status, &parse(&wrong)["field"]), (400, &json!("PERIOD")));
    })
    .await;
}

/// Anonymous addresses have no records, but their counters can be read and reset too.
#[tokio::test]
async fn any_subject_is_shown_and_reset() {
    in_every_world(async |bank: Bank| {
        for _ in 0..2 {
            let anonymous = bank.site.get("/banks").send().await.unwrap();
            assert_eq!(anonymous.status(), 200);
        }
        let path = "/management/subjects/ip/127.0.0.1/usage";
        let usage = bank.get(path).await;
        assert_eq!(only_rule(&usage)["policy"], "hour=1000/hour");
        let hour = &only_rule(&usage)["limits"][0];
        assert_eq!(
            (&hour["name"], &hour["used"], &hour["remaining"]),
            (&json!("hour"), &json!(2), &json!(998))
        );
        assert_eq!(bank.manage("DELETE", &format!("{path}/minute"), None).await.status, 404);
        assert_eq!(bank.manage("DELETE", &format!("{path}/hour"), None).await.status, 204);
        assert_eq!(only_rule(&bank.get(path).await)["limits"][0]["used"], 0);
        assert_eq!(bank.manage("DELETE", path, None).await.status, 204);
        let colons = bank.get("/management/subjects/ip/2001:db8::%2F64/usage").await;
        assert_eq!(only_rule(&colons)["policy"], "hour=1000/hour");
        assert_eq!(Subject::new(Realm::Ip, "127.0.0.1"), Subject::ip([127, 0, 0, 1]));
    })
    .await;
}

/// While the store is down, reports say so, and still contain the data that needs no store.
#[tokio::test]
async fn reports_say_that_redis_is_down() {
    let mut bank = Bank::impatient(Duration::from_secs(1)).await;
    bank.add([-1, 100, -1, -1, -1, -1]).await;
    let health = bank.get("/health/redis").await;
    assert_eq!((&health["redis_ready"], &health["url"]), (&json!(true), &json!("127.0.0.1")));
    assert!(health["port"].as_u64().unwrap() > 1_024);
    let info = bank.get("/management/rate-limiting").await;
    let on = json!({
        "enabled": true, "technology": "REDIS", "service_available": true,
        "currently_active": true, "is_active": true,
    });
    assert_eq!(info, on);

    bank.redis.as_mut().unwrap().stop();
    let counters = bank.get(COUNTERS).await;
    let away =
        json!({ "calls_made": null, "reset_in_seconds": null, "status": "REDIS_UNAVAILABLE" });
    assert_eq!(counters["per_minute"], away);
    let limits = bank.get(CALL_LIMITS).await;
    assert_eq!(
        (&limits["per_minute_call_limit"], &limits["current_state"]),
        (&json!("100"), &json!(null))
    );
    let info = bank.get("/management/rate-limiting").await;
    assert_eq!((&info["service_available"], &info["is_active"]), (&json!(false), &json!(false)));
    let health = bank.manage("GET", "/health/redis", None).await;
    assert_eq!((health.status, &parse(&health)["redis_ready"]), (503, &json!(false)));
    let usage = bank.as_who(ALICE, "GET", "/management/subjects/consumer/abc/usage", None).await;
    assert_eq!(usage.status, 503);
    let explained = bank.get("/management/consumers/abc/explain").await;
    assert_eq!(
        (&explained["allowed"], &only_rule(&explained)["decided_by"]),
        (&json!(false), &json!("failed_closed"))
    );
    assert_eq!(bank.manage("DELETE", COUNTERS, None).await.status, 503, "not said to be done");

    bank.redis.as_mut().unwrap().restart();
    super::until(async || bank.get(COUNTERS).await["per_minute"]["status"] == "NO_COUNTER").await;
}

/// A service with counters in memory has no Redis, and reports that.
#[tokio::test]
async fn counters_in_memory_are_not_reported_as_redis() {
    let bank = Bank::embedded().await;
    let health = bank.manage("GET", "/health/redis", None).await;
    assert_eq!(health.status, 503);
    assert_eq!(parse(&health), json!({ "redis_ready": false, "url": "", "port": 0 }));
    assert_eq!(bank.get("/management/rate-limiting").await["technology"], "MEMORY");
}
