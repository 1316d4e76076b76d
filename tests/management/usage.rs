//! The calls of consumers, added up by day and by month.

use std::time::Duration;

use rl_core::rules::{Rule, Rules};
use rl_core::{Limit, RateLimiter, Realm, Subject};
use rl_records::UsageRecorder;
use serde_json::{Value, json};

use super::{Bank, OWNER_OF_SHOP, in_every_world, message, parse};

const DAY: Duration = Duration::from_secs(86_400);

/// Ids that a spreadsheet would take for formulas, or that end a cell.
const HOSTILE: [&str; 4] = ["=HYPERLINK(\"http://x\")", "+1", "a,\"b\"", "@SUM(A1)"];

/// Records three calls of each consumer on the last two days of the year, of which one is denied.
async fn record(bank: &Bank, consumers: &[&str]) {
    let recorder = UsageRecorder::builder().write_every(DAY).start(&bank.records);
    let rule = Rule::named("calls").per(rl_core::key::Identified).limit(Limit::per_hour(2));
    let limiter = RateLimiter::builder()
        .rules(Rules::new().rule(rule))
        .observer(recorder.clone())
        .build()
        .unwrap();
    for id in consumers {
        for _ in 0..3 {
            limiter.rule("calls").of(&Subject::consumer(id)).check().await;
        }
    }
    recorder.write().await.unwrap();
    bank.clock.advance(DAY);
    for id in consumers {
        limiter.rule("calls").of(&Subject::consumer(id)).check().await;
    }
    recorder.write().await.unwrap();
}

#[tokio::test]
async fn the_calls_of_days_are_listed_filtered_and_paged_both_ways() {
    in_every_world(async |bank: Bank| {
        record(&bank, &["abc", "shop", "xyz"]).await;
        let days = async |query: &str| -> Vec<Value> {
            let found = bank.get(&format!("/management/usage{query}")).await;
            found["days"].as_array().unwrap().clone()
        };
        let all = days("").await;
        assert_eq!(all.len(), 6, "{all:?}");
        let first = json!({
            "day": "2025-12-31", "realm": "consumer", "subject": "abc", "rule": "calls",
            "allowed": 2, "denied": 1, "would_be_denied": 0, "units": 2,
        });
        assert_eq!(all[0], first);
        for (query, count) in [
            ("?from=2026-01-01", 3),
            ("?from=2025-12-31&to=2025-12-31", 3),
            ("?from=2025-12-01&to=2025-12-30", 0),
            ("?consumer=abc", 2),
            ("?subject=abc&rule=calls", 2),
            ("?rule=others", 0),
            ("?realm=ip", 0),
        ] {
            assert_eq!(days(query).await.len(), count, "{query}");
        }
        let (mut cursor, mut forward) = (String::new(), Vec::new());
        let last = loop {
            let page = bank.get(&format!("/management/usage?limit=4{cursor}")).await;
            forward.extend(page["days"].as_array().unwrap().clone());
            let Some(next) = page["next"].as_str() else { break page };
            cursor = format!("&after={next}");
        };
        assert_eq!(forward, all);
        let before = last["previous"].as_str().unwrap();
        assert_eq!(days(&format!("?limit=4&before={before}")).await, all[..4]);

        for (query, error) in [
            ("?from=2026-01-02&to=2026-01-01", "to: expected a day that is not before from"),
            ("?from=yesterday", "from: expected a day from 1970-01-01 to 9999-12-31"),
            ("?after=x", "after: expected the \"next\" of an earlier response"),
            ("?format=xml", "format: "),
            ("?sort=denied", "sort: "),
        ] {
            let answer = bank.manage("GET", &format!("/management/usage{query}"), None).await;
            assert_eq!(answer.status, 400, "{query}");
            let message = message(&answer);
            assert!(message.contains(error.trim_end_matches(": ")), "{query}: {message}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_month_lists_consumers_with_their_sums_in_each_order() {
    in_every_world(async |bank: Bank| {
        record(&bank, &["abc", "shop"]).await;
        record(&bank, &["shop", "xyz"]).await;
        let month = async |query: &str| bank.get(&format!("/management/usage/{query}")).await;
        let ids = |found: &Value| -> Vec<String> {
            let subjects = found["subjects"].as_array().unwrap().iter();
            subjects.map(|one| one["subject"].as_str().unwrap().to_owned()).collect()
        };
        let january = month("2026-01").await;
        assert_eq!(ids(&january), ["abc", "shop", "xyz"]);
        let shop = json!({
            "month": "2026-01", "realm": "consumer", "subject": "shop", "rule": null,
            "allowed": 2, "denied": 3, "would_be_denied": 0, "units": 2,
        });
        assert_eq!(january["subjects"][1], shop);
        assert_eq!(ids(&month("2025-12").await), ["abc", "shop"]);
        assert_eq!(ids(&month("2026-01?by=denied").await), ["shop", "xyz", "abc"]);
        assert_eq!(ids(&month("2026-01?search=sh").await), ["shop"]);
        assert_eq!(ids(&month("2026-01?rule=none").await), [""; 0]);
        let page = month("2026-01?by=denied&limit=2").await;
        let next = page["next"].as_str().unwrap();
        let rest = month(&format!("2026-01?by=denied&limit=2&after={next}")).await;
        assert_eq!((ids(&rest), &rest["next"]), (vec!["abc".to_owned()], &Value::Null));
        let answer = bank.manage("GET", "/management/usage/2026-13", None).await;
        assert_eq!(answer.status, 400);
        assert!(message(&answer).contains("MONTH: expected a month such as 2026-11"));
    })
    .await;
}

#[tokio::test]
async fn spreadsheets_run_no_formula_from_the_id_of_a_consumer() {
    in_every_world(async |bank: Bank| {
        record(&bank, &HOSTILE).await;
        let path = "/management/usage?from=2025-12-31&to=2025-12-31&format=csv";
        let answer = bank.manage("GET", path, None).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("text/csv; charset=utf-8"));
        assert_eq!(
            answer.header("content-disposition"),
            Some("attachment; filename=\"usage-2025-12-31-to-2025-12-31.csv\"")
        );
        let lines: Vec<&str> = answer.body.split("\r\n").collect();
        assert_eq!(
            lines,
            [
                "day,realm,subject,rule,allowed,denied,would_be_denied,units",
                "2025-12-31,consumer,'+1,calls,2,1,0,2",
                "2025-12-31,consumer,\"'=HYPERLINK(\"\"http://x\"\")\",calls,2,1,0,2",
                "2025-12-31,consumer,'@SUM(A1),calls,2,1,0,2",
                "2025-12-31,consumer,\"a,\"\"b\"\"\",calls,2,1,0,2",
                "",
            ],
        );
        let month = bank.manage("GET", "/management/usage/2025-12?format=csv", None).await;
        assert!(month.body.starts_with("month,realm,subject,rule,allowed"), "{}", month.body);
        assert!(month.body.contains("\r\n2025-12,consumer,'+1,,2,1,0,2\r\n"), "{}", month.body);
    })
    .await;
}

/// An export reads a thousand rows at a time.
#[tokio::test]
async fn an_export_has_each_row_once() {
    in_every_world(async |bank: Bank| {
        let ids: Vec<String> = (0..2_345).map(|number| format!("c{number:04}")).collect();
        let names: Vec<&str> = ids.iter().map(String::as_str).collect();
        record(&bank, &names).await;
        for path in [
            "/management/usage?from=2025-12-31&to=2025-12-31&format=csv",
            "/management/usage/2025-12?format=csv",
            "/management/usage/2025-12?by=denied&format=csv&limit=10",
        ] {
            let answer = bank.manage("GET", path, None).await;
            let lines = answer.body.lines().skip(1);
            let found: Vec<&str> = lines.map(|line| line.split(',').nth(2).unwrap()).collect();
            assert_eq!(found, names, "{path}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_actor_of_some_applications_sees_only_their_calls() {
    in_every_world(async |bank: Bank| {
        record(&bank, &["sho", "shop", "shop2"]).await;
        // A subject of another realm may have the name of an application.
        let recorder =
            UsageRecorder::builder().realms([Realm::User]).write_every(DAY).start(&bank.records);
        let limiter = RateLimiter::builder().limit(Limit::per_hour(2)).observer(recorder.clone());
        limiter.build().unwrap().check(&Subject::user("shop"), 1).await;
        recorder.write().await.unwrap();
        let get = async |path: &str| {
            let answer = bank.as_who(OWNER_OF_SHOP, "GET", path, None).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            answer
        };
        for (path, count) in [
            ("/management/usage?", 2),
            ("/management/usage?consumer=shop&", 2),
            ("/management/usage?consumer=shop2&", 0),
            ("/management/usage?realm=user&subject=shop&", 0),
            ("/management/usage/2025-12?", 1),
            ("/management/usage/2025-12?search=shop&by=denied&", 1),
            ("/management/usage/2025-12?realm=user&", 0),
        ] {
            let found = parse(&get(path).await);
            let rows = found.get("days").or(found.get("subjects")).unwrap().as_array().unwrap();
            assert_eq!(rows.len(), count, "{path}: {found}");
            assert!(rows.iter().all(|row| row["subject"] == "shop"), "{path}: {found}");
            let csv = get(&format!("{path}format=csv")).await.body;
            assert_eq!(csv.lines().count(), 1 + count, "{path}: {csv}");
            assert!(!csv.contains("shop2") && !csv.contains("sho,"), "{path}: {csv}");
        }
        assert_eq!(bank.get("/management/usage?realm=user").await["days"][0]["subject"], "shop");
    })
    .await;
}
