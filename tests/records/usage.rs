//! The calls of subjects, added up by day.

use std::sync::Arc;
use std::time::Duration;

use rl_core::rules::{Rule, Rules};
use rl_core::time::{Clock, ManualClock, SystemClock, Timestamp};
use rl_core::{Limit, OnFailure, RateLimiter, Realm, RedisStore, Subject};
use rl_records::{Day, MonthQuery, Records, RecordsOptions, UsageOrder, UsageQuery, UsageRecorder};
use rl_tests::{RedisServer, on_every_server};
use sqlx::{Executor, Row};

use super::{Database, GIVE_UP, NEVER, on_every_database};

/// The last day of a month.
const TODAY: &str = "2026-11-30";

/// Noon on that day.
const NOON: u64 = 1_796_040_000;

fn day(text: &str) -> Day {
    text.parse().unwrap()
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Timestamp::from_secs(NOON)))
}

/// Connects to a database with this clock.
async fn connect(url: &str, clock: &Arc<ManualClock>) -> Records {
    Records::connect_with(RecordsOptions::new(url).clock(clock.clone())).await.unwrap()
}

/// Starts a recorder that writes only when a test says so.
fn recorder(records: &Records) -> UsageRecorder {
    UsageRecorder::builder().write_every(NEVER).start(records)
}

fn limiter(recorder: &UsageRecorder, limit: &str) -> RateLimiter {
    let limit: Limit = limit.parse().unwrap();
    RateLimiter::builder().limit(limit).observer(recorder.clone()).build().unwrap()
}

/// Returns the rows of all consumers from the day before `TODAY` to the day after it, each as
/// `day consumer rule allowed denied would_be_denied units`.
async fn rows(records: &Records) -> Vec<String> {
    rows_of(records, &UsageQuery::new(day("2026-11-29"), day("2026-12-01"))).await
}

async fn rows_of(records: &Records, query: &UsageQuery) -> Vec<String> {
    let page = records.usage().days(query).await.unwrap();
    let row = |row: &rl_records::UsageRow| {
        let (subject, rule) = (row.subject.as_deref(), row.rule.as_deref());
        let counts = row.counts;
        format!(
            "{} {} {} {} {} {} {}",
            row.day,
            subject.unwrap_or("-"),
            rule.unwrap_or("-"),
            counts.allowed,
            counts.denied,
            counts.would_be_denied,
            counts.units
        )
    };
    page.rows.iter().map(row).collect()
}

#[tokio::test]
async fn calls_are_added_up_for_each_consumer_rule_and_day() {
    on_every_database(async |database: Database| {
        let records = connect(&database.url, &clock()).await;
        let recorder = recorder(&records);
        let per_consumer = rl_core::key::Identified;
        let rules = Rules::new()
            .rule(Rule::named("calls").per(per_consumer).limit(Limit::per_hour(2)))
            .rule(Rule::named("tokens").per(per_consumer).limit(Limit::per_hour(1_000)))
            .rule(Rule::named("trial").per(per_consumer).limit(Limit::per_hour(1)).shadow());
        let limiter =
            RateLimiter::builder().rules(rules).observer(recorder.clone()).build().unwrap();
        for rule in ["calls", "tokens", "trial"] {
            for consumer in [Subject::consumer("abc"), Subject::ip([192, 0, 2, 7])] {
                for _ in 0..3 {
                    limiter.rule(rule).of(&consumer).cost(40).check().await;
                }
                limiter.rule(rule).of(&consumer).peek().await;
            }
        }
        recorder.write().await.unwrap();
        assert_eq!(
            rows(&records).await,
            [
                "2026-11-30 abc calls 0 3 0 0",
                "2026-11-30 abc tokens 3 0 0 120",
                "2026-11-30 abc trial 3 0 3 0",
            ],
        );
        // Nothing is written twice.
        recorder.write().await.unwrap();
        assert_eq!(rows(&records).await.len(), 3);
    })
    .await;
}

#[tokio::test]
async fn units_follow_the_final_cost_and_refunds() {
    let records = connect("sqlite::memory:", &clock()).await;
    let recorder = recorder(&records);
    let limiter = limiter(&recorder, "1000/day");
    let consumer = Subject::consumer("abc");
    let permit = limiter.acquire(&consumer, 400).await;
    permit.set_cost(150);
    permit.settle().await.unwrap();
    let permit = limiter.acquire(&consumer, 10).await;
    permit.set_cost(70);
    drop(permit);
    let decision = limiter.check(&consumer, 100).await;
    limiter.request(&consumer).refund(&decision, &[30]).await.unwrap();
    limiter.request(&consumer).cost(5).charge().await;
    recorder.write().await.unwrap();
    // 150 + 70 + 70 + 5 units, of three calls. The charge for finished work is no call.
    assert_eq!(rows(&records).await, ["2026-11-30 abc - 3 0 0 295"]);
}

#[tokio::test]
async fn a_day_ends_at_midnight_in_utc_and_a_month_with_its_last_day() {
    on_every_database(async |database: Database| {
        let clock = clock();
        let records = connect(&database.url, &clock).await;
        let recorder = recorder(&records);
        let limiter = limiter(&recorder, "100/day");
        let consumer = Subject::consumer("abc");
        limiter.check(&consumer, 1).await;
        clock.advance(Duration::from_secs(12 * 3_600 - 1));
        limiter.check(&consumer, 1).await;
        clock.advance(Duration::from_secs(1));
        limiter.check(&consumer, 1).await;
        recorder.write().await.unwrap();
        assert_eq!(rows(&records).await, ["2026-11-30 abc - 2 0 0 2", "2026-12-01 abc - 1 0 0 1"],);
        for (month, allowed) in [(TODAY, 2), ("2026-12-31", 1)] {
            let query = MonthQuery::new(day(month));
            let page = records.usage().month(&query).await.unwrap();
            assert_eq!(page.rows[0].counts.allowed, allowed, "{month}");
            assert_eq!(records.usage().sum_of_month(&query).await.unwrap().allowed, allowed);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_add_to_the_same_day() {
    for database in Database::shared() {
        let clock = clock();
        let mut writers = Vec::new();
        for _ in 0..2 {
            let records = connect(&database.url, &clock).await;
            let recorder = recorder(&records);
            let limiter = limiter(&recorder, "1/day");
            writers.push(tokio::spawn(async move {
                for _ in 0..20 {
                    for number in 0..50 {
                        let consumer = Subject::consumer(&format!("c{number:02}"));
                        limiter.check(&consumer, 1).await;
                    }
                    let written = async {
                        // Two transactions that wait for each other's rows may both be refused.
                        while recorder.write().await.is_err() {}
                    };
                    tokio::time::timeout(GIVE_UP, written).await.unwrap();
                }
                records
            }));
        }
        let mut all = Vec::new();
        for writer in writers {
            all.push(writer.await.unwrap());
        }
        let rows = rows(&all[0]).await;
        assert_eq!(rows.len(), 50);
        assert_eq!(rows[0], "2026-11-30 c00 - 2 38 0 2", "{}", database.url);
        assert_eq!(rows[49], "2026-11-30 c49 - 2 38 0 2", "{}", database.url);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sums_wait_for_the_database_and_are_added_once() {
    on_every_server(async |mut server| {
        let clock = clock();
        let records = connect(&server.url(), &clock).await;
        let recorder = recorder(&records);
        let limiter = limiter(&recorder, "1000/day");
        let consumer = Subject::consumer("abc");
        for _ in 0..3 {
            limiter.check(&consumer, 1).await;
        }
        server.stop();
        assert!(recorder.write().await.is_err());
        for _ in 0..4 {
            limiter.check(&consumer, 1).await;
        }
        assert!(recorder.write().await.is_err());
        server.restart();
        let recovered = async { while recorder.write().await.is_err() {} };
        tokio::time::timeout(GIVE_UP, recovered).await.unwrap();
        assert_eq!(rows(&records).await, ["2026-11-30 abc - 7 0 0 7"]);

        // A restarted process adds to the rows.
        drop((recorder, limiter, records));
        let records = connect(&server.url(), &clock).await;
        let recorder = self::recorder(&records);
        self::limiter(&recorder, "1000/day").check(&consumer, 1).await;
        recorder.write().await.unwrap();
        assert_eq!(rows(&records).await, ["2026-11-30 abc - 8 0 0 8"]);
    })
    .await;
}

/// A write may be committed although its caller gets an error. The database then reports the
/// number of this write, so its repetition adds nothing.
#[tokio::test]
async fn a_write_that_was_committed_is_not_repeated() {
    on_every_database(async |database: Database| {
        if database.url.contains("memory") {
            return;
        }
        let records = connect(&database.url, &clock()).await;
        let recorder = recorder(&records);
        let limiter = limiter(&recorder, "1000/day");
        limiter.check(&Subject::consumer("abc"), 1).await;
        recorder.write().await.unwrap();
        let mut direct = database.connect_directly().await;
        // The database takes the next write for one that it has committed.
        direct.execute("UPDATE rl_usage_writers SET last_write = last_write + 1").await.unwrap();
        limiter.check(&Subject::consumer("abc"), 1).await;
        recorder.write().await.unwrap();
        assert_eq!(rows(&records).await, ["2026-11-30 abc - 1 0 0 1"]);
        limiter.check(&Subject::consumer("abc"), 1).await;
        recorder.write().await.unwrap();
        assert_eq!(rows(&records).await, ["2026-11-30 abc - 2 0 0 2"]);
    })
    .await;
}

#[tokio::test]
async fn consumers_beyond_the_bound_and_ids_that_no_table_holds_are_counted_together() {
    on_every_database(async |database: Database| {
        let records = connect(&database.url, &clock()).await;
        let recorder = UsageRecorder::builder().max_entries(2).write_every(NEVER).start(&records);
        let limiter = limiter(&recorder, "1000/day");
        for id in ["a", "b", "c", "a", "d", "e\n", &"f".repeat(251)] {
            limiter.check(&Subject::consumer(id), 1).await;
        }
        recorder.write().await.unwrap();
        let expected =
            ["2026-11-30 - - 4 0 0 4", "2026-11-30 a - 2 0 0 2", "2026-11-30 b - 1 0 0 1"];
        assert_eq!(rows(&records).await, expected);
        // After a write, there is room for others.
        limiter.check(&Subject::consumer("c"), 1).await;
        recorder.write().await.unwrap();
        assert_eq!(rows(&records).await[3], "2026-11-30 c - 1 0 0 1");
    })
    .await;
}

/// A client that invents ids must not fill the database.
#[tokio::test]
async fn consumers_beyond_the_rows_of_a_day_are_counted_together_until_midnight() {
    let clock = clock();
    let records = connect("sqlite::memory:", &clock).await;
    let recorder = UsageRecorder::builder().max_rows_per_day(2).write_every(NEVER).start(&records);
    let limiter = limiter(&recorder, "1000/day");
    for round in [["a", "b"], ["a", "c"], ["d", "b"]] {
        for id in round {
            limiter.check(&Subject::consumer(id), 1).await;
        }
        recorder.write().await.unwrap();
    }
    let expected = ["2026-11-30 - - 2 0 0 2", "2026-11-30 a - 2 0 0 2", "2026-11-30 b - 2 0 0 2"];
    assert_eq!(rows(&records).await, expected);
    clock.advance(Duration::from_secs(86_400));
    limiter.check(&Subject::consumer("d"), 1).await;
    recorder.write().await.unwrap();
    assert_eq!(rows(&records).await[3], "2026-12-01 d - 1 0 0 1");
}

/// The decision server begins to decide before it is connected to the database.
#[tokio::test]
async fn calls_before_the_database_is_known_are_written_later() {
    let recorder = UsageRecorder::builder().write_every(NEVER).build();
    let limiter = limiter(&recorder, "1000/day");
    limiter.check(&Subject::consumer("abc"), 1).await;
    assert!(recorder.write().await.is_err());
    let records = Records::connect("sqlite::memory:").await.unwrap();
    recorder.attach(&records);
    recorder.write().await.unwrap();
    let today = Day::of(SystemClock.now());
    // The day may change during the test.
    let query = UsageQuery::new(today.plus(-1), today);
    let page = records.usage().days(&query).await.unwrap();
    assert_eq!((page.rows.len(), page.rows[0].counts.allowed), (1, 1));
}

#[tokio::test]
async fn other_realms_are_counted_on_request() {
    let records = connect("sqlite::memory:", &clock()).await;
    let recorder = UsageRecorder::builder()
        .realms([Realm::Consumer, Realm::Ip])
        .write_every(NEVER)
        .start(&records);
    let limiter = limiter(&recorder, "1000/day");
    limiter.check(&Subject::ip([192, 0, 2, 7]), 1).await;
    limiter.check(&Subject::user("alice"), 1).await;
    recorder.write().await.unwrap();
    assert_eq!(rows(&records).await, [""; 0]);
    let query = UsageQuery::new(day(TODAY), day(TODAY));
    let of_realm = |realm| UsageQuery { realm, ..query.clone() };
    assert_eq!(rows_of(&records, &of_realm(Realm::Ip)).await, ["2026-11-30 192.0.2.7 - 1 0 0 1"],);
    assert_eq!(rows_of(&records, &of_realm(Realm::User)).await, [""; 0]);
}

#[tokio::test]
async fn calls_that_the_failure_policy_decides_count_without_units() {
    let records = connect("sqlite::memory:", &clock()).await;
    let recorder = recorder(&records);
    let consumer = Subject::consumer("abc");
    let mut server = RedisServer::start();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    server.stop();
    for (action, calls) in [(OnFailure::Allow, 1), (OnFailure::Reject, 2)] {
        let limiter = RateLimiter::builder()
            .limit(Limit::per_day(1_000))
            .store(store.clone())
            .on_store_failure(action)
            .observer(recorder.clone())
            .build()
            .unwrap();
        for _ in 0..calls {
            limiter.check(&consumer, 1).await;
        }
    }
    recorder.write().await.unwrap();
    assert_eq!(rows(&records).await, ["2026-11-30 abc - 1 2 0 0"]);
}

#[tokio::test]
async fn pages_hold_each_row_once_in_both_directions() {
    on_every_database(async |database: Database| {
        let clock = clock();
        let records = connect(&database.url, &clock).await;
        let recorder = recorder(&records);
        let rule = |name: &str| Rule::named(name).per(rl_core::key::Identified);
        let limit: Limit = Limit::per_day(1_000);
        let rules = Rules::new().rule(rule("a").limit(limit)).rule(rule("b").limit(limit));
        let limiter =
            RateLimiter::builder().rules(rules).observer(recorder.clone()).build().unwrap();
        for _ in 0..3 {
            for id in ["!x", "abc", "a%c", "ABC", "äöü", "x!y"] {
                for name in ["a", "b"] {
                    limiter.rule(name).of(&Subject::consumer(id)).check().await;
                }
            }
            clock.advance(Duration::from_secs(86_400));
        }
        recorder.write().await.unwrap();
        let whole = UsageQuery::new(day("2026-11-01"), day("2027-01-01"));
        let all = rows_of(&records, &UsageQuery { limit: 1_000, ..whole.clone() }).await;
        assert_eq!(all.len(), 36);
        for size in [1, 5, 7, 36] {
            let mut query = UsageQuery { limit: size, ..whole.clone() };
            let (mut forward, mut backward) = (Vec::new(), Vec::new());
            let last = loop {
                let page = records.usage().days(&query).await.unwrap();
                forward.extend(rows_of(&records, &query).await);
                let Some(next) = page.next else { break page };
                query.after = Some(next.to_string().parse().unwrap());
            };
            backward.extend(rows_of(&records, &query).await.into_iter().rev());
            query.after = None;
            let mut previous = last.previous;
            while let Some(cursor) = previous {
                query.before = Some(cursor);
                backward.extend(rows_of(&records, &query).await.into_iter().rev());
                previous = records.usage().days(&query).await.unwrap().previous;
            }
            backward.reverse();
            assert_eq!((&forward, &backward), (&all, &all), "{size} in {}", database.url);
        }
        let filtered = UsageQuery {
            subject: Some("abc".into()),
            rule: Some("b".into()),
            from: day("2026-12-01"),
            ..whole
        };
        assert_eq!(
            rows_of(&records, &filtered).await,
            ["2026-12-01 abc b 1 0 0 1", "2026-12-02 abc b 1 0 0 1"],
        );
    })
    .await;
}

#[tokio::test]
async fn consumers_of_a_month_are_sorted_by_their_sums_in_both_directions() {
    on_every_database(async |database: Database| {
        let records = connect(&database.url, &clock()).await;
        let recorder = recorder(&records);
        let rule = |name: &str| Rule::named(name).per(rl_core::key::Identified);
        let rules = Rules::new()
            .rule(rule("a").limit(Limit::per_day(1_000)))
            .rule(rule("b").limit(Limit::per_day(2)));
        let limiter =
            RateLimiter::builder().rules(rules).observer(recorder.clone()).build().unwrap();
        for number in 0..10_u64 {
            let consumer = Subject::consumer(&format!("c{number}"));
            for _ in 0..=number % 4 {
                limiter.rule("a").of(&consumer).cost(number + 1).check().await;
                limiter.rule("b").of(&consumer).check().await;
            }
        }
        recorder.write().await.unwrap();
        let ids = |rows: &[rl_records::MonthRow]| {
            let ids: Vec<String> = rows.iter().map(|row| row.subject.clone().unwrap()).collect();
            ids.join(" ")
        };
        for (order, expected) in [
            (UsageOrder::Subject, "c0 c1 c2 c3 c4 c5 c6 c7 c8 c9"),
            (UsageOrder::Allowed, "c3 c7 c2 c6 c1 c5 c9 c0 c4 c8"),
            (UsageOrder::Denied, "c3 c7 c2 c6 c0 c1 c4 c5 c8 c9"),
            (UsageOrder::Units, "c7 c6 c9 c3 c5 c2 c8 c1 c4 c0"),
        ] {
            let mut query = MonthQuery { order, limit: 3, ..MonthQuery::new(day(TODAY)) };
            let (mut forward, mut backward) = (Vec::new(), Vec::new());
            let last = loop {
                let page = records.usage().month(&query).await.unwrap();
                forward.extend(page.rows.clone());
                let Some(next) = page.next.clone() else { break page };
                query.after = Some(next.to_string().parse().unwrap());
            };
            backward.extend(last.rows.iter().rev().cloned());
            query.after = None;
            let mut previous = last.previous;
            while let Some(cursor) = previous {
                query.before = Some(cursor);
                let page = records.usage().month(&query).await.unwrap();
                backward.extend(page.rows.iter().rev().cloned());
                previous = page.previous;
            }
            backward.reverse();
            assert_eq!(ids(&forward), expected, "{order:?}");
            assert_eq!(backward, forward, "{order:?}");
        }
        let query = MonthQuery { rule: Some("b".into()), ..MonthQuery::new(day(TODAY)) };
        let sum = records.usage().sum_of_month(&query).await.unwrap();
        assert_eq!((sum.allowed, sum.denied), (17, 6));
        let query = MonthQuery { search: Some("c7".into()), ..MonthQuery::new(day(TODAY)) };
        assert_eq!(ids(&records.usage().month(&query).await.unwrap().rows), "c7");
        let own = Some(vec!["c1".to_owned(), "none".to_owned()]);
        let query = MonthQuery { subjects: own, ..MonthQuery::new(day(TODAY)) };
        assert_eq!(ids(&records.usage().month(&query).await.unwrap().rows), "c1");
    })
    .await;
}

#[tokio::test]
async fn rows_older_than_the_retention_are_deleted() {
    on_every_database(async |database: Database| {
        let clock = clock();
        let records = connect(&database.url, &clock).await;
        let recorder = UsageRecorder::builder()
            .keep_days(30)
            .write_every(Duration::from_millis(5))
            .start(&records);
        let limiter = limiter(&recorder, "1000/day");
        let consumer = Subject::consumer("abc");
        limiter.check(&consumer, 1).await;
        recorder.write().await.unwrap();
        clock.advance(Duration::from_secs(30 * 86_400));
        limiter.check(&consumer, 1).await;
        recorder.write().await.unwrap();
        let all = UsageQuery::new(day("2026-01-01"), day("2027-12-31"));
        // The first day is the last that is kept.
        assert_eq!(rows_of(&records, &all).await.len(), 2);
        clock.advance(Duration::from_secs(86_400));
        let mut looks = tokio::time::interval(Duration::from_millis(5));
        let deleted = async {
            while rows_of(&records, &all).await != ["2026-12-30 abc - 1 0 0 1"] {
                looks.tick().await;
            }
            let november = MonthQuery::new(day(TODAY));
            while !records.usage().month(&november).await.unwrap().rows.is_empty() {
                looks.tick().await;
            }
        };
        tokio::time::timeout(GIVE_UP, deleted).await.unwrap();
        let december = MonthQuery::new(day("2026-12-01"));
        assert_eq!(records.usage().month(&december).await.unwrap().rows.len(), 1);
    })
    .await;
}

/// A table of a million consumers must not be read for a day or a consumer.
#[tokio::test]
async fn days_and_consumers_are_found_by_an_index() {
    let database = Database::file();
    let records = connect(&database.url, &clock()).await;
    let mut direct = database.connect_directly().await;
    for (query, index) in [
        (
            "SELECT rule FROM rl_usage_days WHERE realm = 'consumer' AND day >= 1 AND day <= 9 \
             AND subject_id = 'abc' ORDER BY day, realm, subject_id, rule LIMIT 9",
            "(subject_id=? AND realm=? AND day>? AND day<?)",
        ),
        (
            "SELECT rule FROM rl_usage_days WHERE realm = 'consumer' AND day >= 1 AND day <= 9 \
             ORDER BY day, realm, subject_id, rule LIMIT 9",
            "rl_usage_days_in_order (realm=? AND day>? AND day<?)",
        ),
        (
            "SELECT rule FROM rl_usage_days WHERE realm = 'consumer' AND day = 1 \
             AND subject_id > 'abc' ORDER BY day, realm, subject_id, rule LIMIT 9",
            "rl_usage_days_in_order (realm=? AND day=? AND subject_id>?)",
        ),
        (
            "SELECT SUM(allowed) FROM rl_usage_months WHERE day = 1 AND realm = 'consumer' \
             AND subject_id > 'abc' GROUP BY subject_id ORDER BY subject_id LIMIT 9",
            "(day=? AND realm=? AND subject_id>?)",
        ),
    ] {
        let plan = direct.fetch_all(sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {query}")));
        let plan = plan.await.unwrap();
        let steps: Vec<String> = plan.iter().map(|row| row.get("detail")).collect();
        assert!(steps[0].contains(index), "{query}: {steps:?}");
        assert_eq!(steps.len(), 1, "no sorting: {query}: {steps:?}");
    }
    records.close().await;
}
