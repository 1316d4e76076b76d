//! Measures the duration of queries on 300 000 records.

use std::error::Error;

use fastrand::Rng;
use rl_core::source::PolicySource;
use rl_core::time::{Clock, SystemClock, Timestamp};
use rl_core::{Realm, Subject};
use rl_records::{
    CallLimits, ConsumerQuery, HistoryQuery, RecordCursor, RecordQuery, RecordSource, Records,
    TierContent,
};
use sqlx::sqlite::SqlitePool;

use crate::machine;
use crate::measure::{median, p99, time_async};
use crate::table::Table;

const CONSUMERS: u32 = 100_000;

/// The number of consumers that are looked up, once each.
const LOOK_UPS: usize = 10_000;

/// The number of samples of each query.
const PAGES: usize = 200;

pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    println!("rl-records on SQLite: {CONSUMERS} consumers, three records each\n");
    println!("machine   {}", machine::cores());
    println!("versions  {}, {}", machine::program("rustc"), machine::profile());
    println!("measured  milliseconds for each question, one after the other, in one process\n");
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(measure())
}

async fn measure() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite://{}/limits.db", folder.path().display());
    let records = Records::connect(&url).await?;
    let now = SystemClock.now();
    let limits = CallLimits::from_numbers([10, 100, 1_000, -1, -1, -1])?;
    records.tiers().create(TierContent { name: "gold".into(), limits }, "bench").await?;
    fill(&url, now).await?;

    let mut table = Table::new("milliseconds", ["question", "median", "p99", "bound"]);
    let mut row = |name: &str, samples: &[f64], bound: &str| {
        let text = |millis: f64| format!("{millis:.3}");
        table.row([name.to_owned(), text(median(samples)), text(p99(samples)), bound.to_owned()]);
    };
    row("limits of a consumer, cold", &cold(&records, 1).await?, "1");
    row("limits of a consumer, kept", &kept(&records).await?, "");
    row("tier of a consumer without records, cold", &cold(&records, CONSUMERS + 1).await?, "1");
    let search = |text: &str| RecordQuery { search: Some(text.into()), ..RecordQuery::default() };
    let middle: RecordCursor = cursor(&records).await?;
    for (name, query) in [
        ("first page", RecordQuery::default()),
        ("a page in the middle", RecordQuery { after: Some(middle), ..RecordQuery::default() }),
        (
            "records of a consumer",
            RecordQuery { consumer: Some("consumer-50000".into()), ..RecordQuery::default() },
        ),
        ("active now", RecordQuery { active_at: Some(now), ..RecordQuery::default() }),
        ("search that finds many", search("consumer")),
        ("search that finds the last", search("CONSUMER-99999")),
        ("search that finds none", search("no-such-consumer")),
    ] {
        row(name, &pages(&records, &query).await?, "100");
    }
    for (name, search) in
        [("first page of consumers", None), ("search that finds the last", Some("99999"))]
    {
        let search = search.map(str::to_owned);
        let query = ConsumerQuery { search, ..ConsumerQuery::default() };
        let mut samples = Vec::new();
        for _ in 0..PAGES {
            let (took, page) = time_async(records.consumers(&query, now)).await;
            page?;
            samples.push(took.as_secs_f64() * 1e3);
        }
        row(name, &samples, "100");
    }
    let mut history = Vec::new();
    for page in 0..PAGES {
        let owner = Some(format!("consumer-{page:05}"));
        let query = HistoryQuery { owner, ..HistoryQuery::default() };
        let (took, found) = time_async(records.history(&query)).await;
        assert_eq!(found?.len(), 3, "each record was created");
        history.push(took.as_secs_f64() * 1e3);
    }
    row("history of a consumer", &history, "100");
    println!("{table}");
    Ok(())
}

/// Looks up consumers that are not cached, with numbers from `first` on. Returns the times of the
/// look-ups in milliseconds.
async fn cold(records: &Records, first: u32) -> Result<Vec<f64>, Box<dyn Error>> {
    let source = RecordSource::start(records);
    let mut numbers: Vec<u32> = (first..first + CONSUMERS - 1).collect();
    Rng::with_seed(1).shuffle(&mut numbers);
    let mut samples = Vec::with_capacity(LOOK_UPS);
    for number in &numbers[..LOOK_UPS] {
        let who = Subject::new(Realm::Consumer, &format!("consumer-{number:05}"));
        let (took, policy) = time_async(source.policy(&who)).await;
        assert!(policy?.is_some(), "it has records or a tier");
        samples.push(took.as_secs_f64() * 1e3);
    }
    Ok(samples)
}

/// Looks up one cached consumer many times.
async fn kept(records: &Records) -> Result<Vec<f64>, Box<dyn Error>> {
    let source = RecordSource::start(records);
    let who = Subject::consumer("consumer-00001");
    source.policy(&who).await?;
    let mut samples = Vec::with_capacity(LOOK_UPS);
    for _ in 0..LOOK_UPS {
        let (took, policy) = time_async(source.policy(&who)).await;
        assert!(policy?.is_some(), "it has records");
        samples.push(took.as_secs_f64() * 1e3);
    }
    Ok(samples)
}

async fn pages(records: &Records, query: &RecordQuery) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut samples = Vec::with_capacity(PAGES);
    for _ in 0..PAGES {
        let (took, page) = time_async(records.list(query)).await;
        page?;
        samples.push(took.as_secs_f64() * 1e3);
    }
    Ok(samples)
}

/// Returns a cursor in the middle of the list.
async fn cursor(records: &Records) -> Result<RecordCursor, Box<dyn Error>> {
    let consumer = Some("consumer-50000".into());
    let page = records.list(&RecordQuery { consumer, limit: 1, ..RecordQuery::default() }).await?;
    Ok(page.next.expect("it has three records"))
}

/// Writes all records and their history with two statements, because writing them through the API
/// would take minutes.
async fn fill(url: &str, now: Timestamp) -> Result<(), Box<dyn Error>> {
    let database = SqlitePool::connect(url).await?;
    let now = i64::try_from(now.as_micros())?;
    // One third of the records has expired, one third is active, and one third has not begun.
    sqlx::query(
        "WITH RECURSIVE consumer (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM consumer WHERE n < $1), \
         part (p) AS (VALUES (0), (1), (2)) \
         INSERT INTO rl_records SELECT \
         lower(printf('%s-%s-4%s-8%s-%s', hex(randomblob(4)), hex(randomblob(2)), \
         substr(hex(randomblob(2)), 2), substr(hex(randomblob(2)), 2), hex(randomblob(6)))), \
         printf('consumer-%05d', n), 'getBanks', 'v6.0.0', NULL, 10 + p, 100, 1000, -1, -1, -1, \
         $2 + (p - 1) * 3600000000 - 1800000000, $2 + (p - 1) * 3600000000 + 1799999999, \
         'bench', 'bench', $2, $2, 1, 0 FROM consumer, part ORDER BY random()",
    )
    .bind(i64::from(CONSUMERS) - 1)
    .bind(now)
    .execute(&database)
    .await?;
    sqlx::query(
        "INSERT INTO rl_history SELECT 1000 + row_number() OVER (), 'record', consumer_id, \
         rate_limiting_id, created_at, 'bench', NULL, json_object('consumer_id', consumer_id, \
         'from_date', from_date, 'to_date', to_date, 'per_second_call_limit', 1, \
         'per_minute_call_limit', 1, 'per_hour_call_limit', 1, 'per_day_call_limit', 1, \
         'per_week_call_limit', 1, 'per_month_call_limit', 1) FROM rl_records",
    )
    .execute(&database)
    .await?;
    sqlx::query(
        "WITH RECURSIVE consumer (n) AS (SELECT $1 UNION ALL SELECT n + 1 FROM consumer WHERE n < 2 * $1) \
         INSERT INTO rl_tier_members SELECT 'consumer', printf('consumer-%05d', n), 'gold', 'bench', 0, 1 \
         FROM consumer",
    )
    .bind(i64::from(CONSUMERS))
    .execute(&database)
    .await?;
    sqlx::query("UPDATE rl_changes SET change = 1000000").execute(&database).await?;
    database.close().await;
    Ok(())
}
