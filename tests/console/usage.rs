//! The calls of consumers in the last days, and in a month.

use std::time::Duration;

use rl_core::key::Identified;
use rl_core::rules::{Rule, Rules};
use rl_core::{Limit, RateLimiter, Subject};
use rl_records::{Records, UsageRecorder};

use super::{House, OWNER};

/// Records three calls of each consumer today, of which one is denied.
pub(super) async fn record(records: &Records, consumers: &[&str]) {
    let recorder = UsageRecorder::builder().write_every(Duration::from_secs(86_400)).start(records);
    let rule = Rule::named("calls").per(Identified).limit(Limit::per_day(2));
    let limiter = RateLimiter::builder().rules(Rules::new().rule(rule)).observer(recorder.clone());
    let limiter = limiter.build().unwrap();
    for id in consumers {
        for _ in 0..3 {
            limiter.rule("calls").of(&Subject::consumer(id)).check().await;
        }
    }
    recorder.write().await.unwrap();
}

#[tokio::test]
async fn the_calls_of_a_consumer_are_shown_and_exported() {
    let house = House::new().await;
    let hostile = "=1+<b>\"x\"</b>";
    record(&house.records, &["abc", hostile]).await;
    let owner = house.log_in(OWNER).await;
    let page = owner.get("/console/consumer?id=abc").await.body;
    for words in ["Last 30 days", "Rule calls", "2 calls allowed, 1 denied", "Numbers of each day"]
    {
        assert!(page.contains(words), "{words}: {page}");
    }
    let unknown = owner.get("/console/consumer?id=unknown").await.body;
    assert!(unknown.contains("No calls are recorded in these days."), "{unknown}");

    let csv = owner.get("/console/consumer/export?id=abc&format=csv").await;
    assert_eq!(csv.header("content-type"), Some("text/csv; charset=utf-8"));
    assert!(csv.body.ends_with(",consumer,abc,calls,2,1,0,2\r\n"), "{}", csv.body);
    let json = owner.get("/console/consumer/export?id=abc&format=json").await.body;
    let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((rows.as_array().unwrap().len(), &rows[0]["denied"]), (1, &1.into()));
    let none = owner.get("/console/consumer/export?id=unknown&format=json").await.body;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&none).unwrap(), serde_json::json!([]));
    assert_eq!(owner.get("/console/consumer/export?id=abc&format=xml").await.status, 404);

    let month = owner.get("/console/months").await.body;
    for words in ["4 calls allowed, 2 denied", "=1+&lt;b&gt;&quot;x&quot;&lt;/b&gt;", "Export CSV"]
    {
        assert!(month.contains(words), "{words}: {month}");
    }
    let found = owner.get("/console/months?search=ab&sort=id").await.body;
    assert!(found.contains("2 calls allowed, 1 denied") && !found.contains("=1+"), "{found}");
    let empty = owner.get("/console/months?month=2020-01").await.body;
    assert!(empty.contains("No calls of consumers are recorded in this month."), "{empty}");
    let csv = owner.get("/console/months/export?format=csv&sort=id").await.body;
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[1].contains(",consumer,\"'=1+<b>\"\"x\"\"</b>\",,2,1,0,2"), "{csv}");
    assert!(lines[2].contains(",consumer,abc,,2,1,0,2"), "{csv}");
}
