//! Measures a flood that exceeds the capacity: clients invent a subject for each request, while one
//! address is denied.
//!
//! Clients, limiter and Redis share the processors, so the clients must be cheap: they have neither
//! tasks nor timers of their own. One task for each core keeps its idle clients in a queue. All
//! pauses have the same length, so the queue is in the order in which the pauses end.

#![expect(clippy::disallowed_methods, reason = "the denied address pauses in real time")]

mod clients;

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use clients::{Clients, Found};
use rl_core::{Limit, RateLimiter, RedisStore, Subject};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::measure::process_time;
use crate::redis::Server;
use crate::report::Bound::{AtLeast, AtMost};
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
    let seconds = report.size(SECONDS, 1) as f64;
    let columns =
        ["clients", "decided", "503", "open", "of the denied", "passed", "processors", "of Redis"];
    let title =
        "requests per second; one process with its clients, without HTTP; processors in use";
    let mut table = Table::new(title, columns);
    let (mut decided, mut passed) = (Vec::new(), 0);
    for clients in CLIENTS {
        let server = Server::start()?;
        let store = RedisStore::connect(&server.url(0)).await?;
        let limiter = RateLimiter::builder().limit(Limit::per_minute(5)).store(store).build()?;
        let mut monitor = server.monitor().await?;
        let found = Arc::new(Found::default());
        let before = (process_time(), monitor.processor_time().await?);
        let denied = flood(&limiter, clients, &found, Duration::from_secs_f64(seconds)).await;
        let spent = [process_time() - before.0, monitor.processor_time().await? - before.1];
        let cores = spent.map(|time| time.as_secs_f64() / seconds);
        let counts = [&found.decided, &found.rejected, &found.open];
        let counts = counts.map(|count| (count.load(Ordering::Relaxed) as f64 / seconds).round());
        decided.push(counts[0]);
        passed += denied.passed;
        let counts = counts.into_iter().chain([denied.asked as f64, denied.passed as f64]);
        table.row([clients.into()].into_iter().chain(counts.chain(cores).map(Into::into)));
    }
    report.table(table);
    let what = "a flood: the denied address passes";
    report.goal(what, AtMost(0.0), passed as f64);
    let share = decided[CLIENTS.len() - 1] / decided[0];
    report.goal("a flood: decided with 20 000 clients beside 4 000", AtLeast(0.8), share);
    Ok(())
}

fn processors() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

async fn flood(
    limiter: &RateLimiter,
    clients: usize,
    found: &Arc<Found>,
    lasts: Duration,
) -> Denied {
    let guesser = Subject::ip([192, 0, 2, 7]);
    while limiter.check(&guesser, 1).await.is_allowed() {}
    let has_ended = Arc::new(AtomicBool::new(false));
    let (mut flood, tasks) = (JoinSet::new(), processors());
    for task in 0..tasks {
        let clients = Clients::new(task, clients, tasks);
        flood.spawn(clients.request(limiter.clone(), Arc::clone(found), Arc::clone(&has_ended)));
    }
    let (end, mut denied) = (Instant::now() + lasts, Denied::default());
    while Instant::now() < end {
        let decision = limiter.check(&guesser, 1).await;
        denied.asked += 1;
        denied.passed += u64::from(decision.is_allowed());
        sleep(DENIED_PAUSE).await;
    }
    has_ended.store(true, Ordering::Relaxed);
    while flood.join_next().await.is_some() {}
    denied
}

/// The results of the requests from the denied address.
#[derive(Debug, Default)]
struct Denied {
    asked: u64,
    passed: u64,
}
