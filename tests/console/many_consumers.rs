//! The time of each page with many consumers: a million in a soak test.

use std::time::Duration;

use rl_admin::console::ConsoleBuilder;
use rl_core::RateLimiter;
use rl_core::time::{Clock, SystemClock};
use rl_records::{Day, RecordSource, Records};
use rl_tests::is_soak;
use rl_tests::web::GIVE_UP;
use sqlx::{AssertSqlSafe, Executor};
use tokio::time::Instant;

use super::{HOUR, House, OWNER};
use crate::records::Database;

/// The longest acceptable time of a page in a soak test.
const LONGEST: Duration = Duration::from_millis(150);

/// The longest acceptable time of a month with all consumers, which adds up all rows of the month:
/// at most 1.4 s with a million consumers on an idle machine.
const LONGEST_MONTH: Duration = Duration::from_secs(3);

/// Creates this number of consumers, each with a record, and with calls of this day and month. A
/// thousandth of them is blocked. The consumer `busy` has calls of 30 days.
async fn fill(database: &Database, count: u64, busy: &str) {
    let mut connection = database.connect_directly().await;
    let numbers = match connection.backend_name() {
        "PostgreSQL" => format!("generate_series(1, {count}) AS numbers (n)"),
        "MySQL" => format!("(SELECT seq AS n FROM seq_1_to_{count}) AS numbers"),
        _ => format!(
            "(WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers \
             WHERE n < {count}) SELECT n FROM numbers) AS numbers"
        ),
    };
    let text = match connection.backend_name() {
        "MySQL" => ("LPAD(n, 12, '0')", "CONCAT('consumer-', LPAD(n, 12, '0'))"),
        "PostgreSQL" => ("LPAD(n::text, 12, '0')", "'consumer-' || LPAD(n::text, 12, '0')"),
        _ => ("printf('%012d', n)", "'consumer-' || printf('%012d', n)"),
    };
    let id = match connection.backend_name() {
        "MySQL" => format!("CONCAT('00000000-0000-4000-8000-', {})", text.0),
        _ => format!("'00000000-0000-4000-8000-' || {}", text.0),
    };
    let now = SystemClock.now().as_micros();
    let (from, to) = (now - HOUR, now + 24 * HOUR);
    let insert = format!(
        "INSERT INTO rl_records (rate_limiting_id, realm, subject_id, limits, from_date, to_date, \
         blocks, created_by, updated_by, created_at, updated_at, revision) \
         SELECT {id}, 'consumer', {}, CASE WHEN n % 1000 = 0 THEN '' ELSE '600/minute' END, {from}, \
         {to}, CASE WHEN n % 1000 = 0 THEN 1 ELSE 0 END, 'olivia', 'olivia', {from}, {from}, 1 \
         FROM {numbers}",
        text.1
    );
    connection.execute(AssertSqlSafe(insert)).await.unwrap();
    let today = Day::of(SystemClock.now());
    let calls = "n % 997, n % 13, 0, n % 997";
    let usage = [
        format!(
            "INSERT INTO rl_usage_months (day, realm, subject_id, rule, allowed, denied, \
             would_be_denied, units) SELECT {}, 'consumer', {}, '', {calls} FROM {numbers}",
            number_of(today.month()),
            text.1
        ),
        format!(
            "INSERT INTO rl_usage_days (day, realm, subject_id, rule, allowed, denied, \
             would_be_denied, units) SELECT {}, 'consumer', {}, '', {calls} FROM {numbers}",
            number_of(today),
            text.1
        ),
    ];
    for insert in usage {
        connection.execute(AssertSqlSafe(insert)).await.unwrap();
    }
    for before in 1..30 {
        let day = number_of(today.plus(-before));
        let insert = format!(
            "INSERT INTO rl_usage_days (day, realm, subject_id, rule, allowed, denied, \
             would_be_denied, units) VALUES ({day}, 'consumer', '{busy}', '', 7, 1, 0, 7)"
        );
        connection.execute(AssertSqlSafe(insert)).await.unwrap();
    }
    let analyze = match connection.backend_name() {
        "MySQL" => "ANALYZE TABLE rl_records, rl_usage_days, rl_usage_months",
        _ => "ANALYZE",
    };
    connection.execute(analyze).await.unwrap();
}

/// Returns the number by which the tables of usage identify a day.
fn number_of(day: Day) -> u64 {
    day.start().as_micros() / (24 * HOUR)
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_quick_with_many_consumers() {
    let count = if is_soak() { 1_000_000 } else { 2_000 };
    let middle = format!("consumer-{:012}", count / 2 + 1);
    let mut slow = Vec::new();
    for database in Database::shared() {
        let records = Records::connect(&database.url).await.unwrap();
        fill(&database, count, &middle).await;
        let source = RecordSource::builder(&records).deadline(GIVE_UP).start();
        let limiter = RateLimiter::builder().policies(source).deadline(GIVE_UP).build().unwrap();
        let house = House::serve(records, limiter, |admin| admin, ConsoleBuilder::without_tls);
        assert_eq!(house.call(&middle).await, 200);
        let visitor = house.log_in(OWNER).await;
        for page in [
            "".to_owned(),
            "/consumers".to_owned(),
            format!("/consumers?after={middle}"),
            format!("/consumers?before={middle}"),
            format!("/consumers?search={middle}"),
            "/consumers?search=consumer-".to_owned(),
            format!("/consumers?search=consumer-&after={middle}"),
            "/consumers?search=nothing-has-this".to_owned(),
            format!("/consumer?id={middle}"),
            format!("/explain?id={middle}"),
            format!("/raise?id={middle}"),
            format!("/block?id={middle}"),
            format!("/record/new?consumer={middle}"),
            format!("/usage?id={middle}"),
            format!("/consumer/export?id={middle}&format=csv"),
            "/months".to_owned(),
            "/months?sort=denied".to_owned(),
            "/months?sort=id".to_owned(),
            format!("/months?search={middle}"),
            "/rules".to_owned(),
            "/tiers".to_owned(),
            "/resources".to_owned(),
            "/blocks".to_owned(),
            "/changes".to_owned(),
            format!("/changes?consumer={middle}"),
            "/store".to_owned(),
            "/last-hour".to_owned(),
        ] {
            // The second of two calls shows the time without the first connection.
            let mut shortest = Duration::MAX;
            for _ in 0..2 {
                let begun = Instant::now();
                let answer = visitor.get(&format!("/console{page}")).await;
                shortest = shortest.min(begun.elapsed());
                assert_eq!(answer.status, 200, "{page}: {}", answer.body);
            }
            let kind = database.url.split(':').next().unwrap_or_default();
            println!("{kind} {page:50} {shortest:?}");
            let is_month = page.starts_with("/months") && !page.contains("search=");
            if shortest > if is_month { LONGEST_MONTH } else { LONGEST } {
                slow.push(format!("{kind} {page}: {shortest:?}"));
            }
        }
    }
    assert!(!is_soak() || slow.is_empty(), "{slow:#?}");
}
