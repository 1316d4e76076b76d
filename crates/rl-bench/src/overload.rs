//! Measures a flood that exceeds the capacity: clients invent a subject for each request, while one
//! address is denied.
//!
//! Clients, limiter and Redis share the processors, so the clients must be cheap: they have neither
//! tasks nor timers of their own. One task for each core keeps its idle clients in a queue. All
//! pauses have the same length, so the queue is in the order in which the pauses end.

#![expect(clippy::disallowed_methods, reason = "the denied address pauses in real time")]

mod clients;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clients::{Clients, Found};
use rl_core::{Limit, RateLimiter, RedisStore, Subject};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::measure::{cores, process_time};
use crate::redis::Server;
use crate::report::{Report, Table};

/// The numbers of clients, which are measured one after the other.
const CLIENTS: [usize; 3] = [4_000, 10_000, 20_000];
/// The pause between two requests of the denied address.
const DENIED_PAUSE: Duration = Duration::from_millis(5);
const SECONDS: usize = 5;

/// Measures the flood with each number of clients.
pub(crate) fn run(report: &mut Report) -> Result {
    Builder::new_multi_thread().enable_all().build()?.block_on(measure(report))
}

async fn measure(report: &mut Report) -> Result {
    let lasts = Duration::from_secs(report.size(SECONDS, 1) as u64);
    let columns = [
        "clients",
        "decided",
        "503",
        "open",
        "limiter and clients",
        "Redis",
        "requests of the denied",
        "passed",
    ];
    let title = "requests per second, and processors in use; in one process, without HTTP";
    let mut table = Table::new(title, columns);
    let (mut decided, mut all_passed) = (Vec::new(), 0);
    for clients in CLIENTS {
        let server = Server::start()?;
        let store = RedisStore::connect(&server.url(0)).await?;
        let limiter = RateLimiter::builder().limit(Limit::per_minute(5)).store(store).build()?;
        let mut monitor = server.monitor().await?;
        let found = Arc::new(Found::default());
        let before = (process_time(), monitor.processor_time().await?);
        let (asked, passed) = flood(&limiter, clients, &found, lasts).await;
        let process = process_time() - before.0;
        let redis = monitor.processor_time().await? - before.1;
        let each_second = |count: &AtomicU64| {
            (count.load(Ordering::Relaxed) as f64 / lasts.as_secs_f64()).round()
        };
        let counts = [&found.decided, &found.rejected, &found.open].map(each_second);
        let cores = [process, redis].map(|time| time.as_secs_f64() / lasts.as_secs_f64());
        table.row(clients, counts.into_iter().chain(cores).chain([asked as f64, passed as f64]));
        decided.push(counts[0]);
        all_passed += passed;
    }
    report.table(table);
    report.at_most("a flood: times that the denied address passes", 0.0, all_passed as f64);
    let what = "a flood: decided with 20 000 clients beside 4 000";
    report.at_least(what, 0.8, decided[CLIENTS.len() - 1] / decided[0]);
    Ok(())
}

/// Makes requests of all clients, and of a denied address. Returns how many requests the address
/// has made, and how many of them were allowed.
async fn flood(
    limiter: &RateLimiter,
    clients: usize,
    found: &Arc<Found>,
    lasts: Duration,
) -> (u64, u64) {
    let guesser = Subject::ip([192, 0, 2, 7]);
    while limiter.check(&guesser, 1).await.is_allowed() {}
    let has_ended = Arc::new(AtomicBool::new(false));
    let (mut flood, tasks) = (JoinSet::new(), cores());
    for task in 0..tasks {
        let clients = Clients::new(task, clients, tasks);
        flood.spawn(clients.request(limiter.clone(), Arc::clone(found), Arc::clone(&has_ended)));
    }
    let (end, mut asked, mut passed) = (Instant::now() + lasts, 0, 0);
    while Instant::now() < end {
        asked += 1;
        passed += u64::from(limiter.check(&guesser, 1).await.is_allowed());
        sleep(DENIED_PAUSE).await;
    }
    has_ended.store(true, Ordering::Relaxed);
    while flood.join_next().await.is_some() {}
    (asked, passed)
}
