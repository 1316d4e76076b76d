//! Measures a flood that exceeds the capacity: clients invent a subject for each request, while one
//! address is denied.
//!
//! Clients, limiter and Redis share the processors, so the clients must be cheap: they have neither
//! tasks nor timers of their own. One task for each core keeps its idle clients in a queue. All
//! pauses have the same length, so the queue is in the order in which the pauses end. The processor
//! time of the clients is measured separately.

#![expect(clippy::disallowed_methods, reason = "the denied address pauses in real time")]

mod clients;

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use clients::{Clients, Found, PAUSE};
use rl_core::{Limit, MaybeReady, Origin, RateLimiter, RedisStore, Subject};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::measure::{Estimate, process_time, time_on_processor};
use crate::redis::Server;
use crate::report::{Bound, Report, Table};

/// The numbers of clients, which are measured one after the other.
const CLIENTS: [usize; 3] = [4_000, 10_000, 20_000];

/// The pause between two requests of the denied address.
const DENIED_PAUSE: Duration = Duration::from_millis(5);

const SECONDS: usize = 5;

/// The number of requests over which the cost of a request is averaged.
const COUNTED: u32 = 1_000_000;

/// Measures the flood with each number of clients.
pub(crate) fn run(report: &mut Report) -> Result {
    Builder::new_multi_thread().enable_all().build()?.block_on(measure(report))
}

async fn measure(report: &mut Report) -> Result {
    let (own, rejected) = (cost_of_clients(), cost_of_rejections().await?);
    println!(
        "processor time of one request: its client {own:.0} ns, a rejection {rejected:.0} ns\n"
    );
    let seconds = report.size(SECONDS, 1) as u64;
    let columns = [
        "clients",
        "decided",
        "503",
        "open",
        "of the denied",
        "passed",
        "by clients",
        "by rejections",
        "by decisions",
        "by Redis",
    ];
    let title =
        "requests per second, and processors in use; one process with its clients, without HTTP";
    let mut table = Table::new(title, columns);
    let (mut decided, mut by_processor, mut passed) = (Vec::new(), Vec::new(), 0);
    for clients in CLIENTS {
        let server = Server::start()?;
        let store = RedisStore::connect(&server.url(0)).await?;
        let limiter = RateLimiter::builder().limit(Limit::per_minute(5)).store(store).build()?;
        let mut monitor = server.monitor().await?;
        let found = Arc::new(Found::default());
        let before = (process_time(), monitor.processor_time().await?);
        let denied = flood(&limiter, clients, &found, Duration::from_secs(seconds)).await;
        let cores = |time: Duration| time.as_secs_f64() / seconds as f64;
        let process = cores(process_time() - before.0);
        let redis = cores(monitor.processor_time().await? - before.1);
        let each_second = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / seconds as f64;
        let counts = [&found.decided, &found.rejected, &found.open].map(each_second);
        let by_clients = counts.iter().sum::<f64>() * own * 1e-9;
        let by_rejections = counts[1] * rejected * 1e-9;
        decided.push(counts[0]);
        by_processor.push(counts[0] / (processors() as f64 - by_clients));
        passed += denied.passed;
        let counts =
            counts.map(f64::round).into_iter().chain([denied.asked as f64, denied.passed as f64]);
        let cores = [by_clients, by_rejections, process - by_clients - by_rejections, redis];
        table.row([clients.into()].into_iter().chain(counts.chain(cores).map(Into::into)));
    }
    report.table(table);
    let share = |of: &[f64]| Estimate::exact(of[CLIENTS.len() - 1] / of[0]);
    report.goal(
        "a flood: the denied address passes",
        Bound::AtMost(0.0),
        "times",
        Estimate::exact(passed as f64),
    );
    let what = "a flood: decided with 20 000 clients beside 4 000";
    report.goal(what, Bound::AtLeast(0.8), "times", share(&decided));
    report.goal(
        &format!("{what}, by the processors that clients leave"),
        Bound::AtLeast(0.8),
        "times",
        share(&by_processor),
    );
    Ok(())
}

fn processors() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// Measures the processor time in nanoseconds that a client takes for a request, without the
/// limiter.
fn cost_of_clients() -> f64 {
    cost(|_| Origin::Disabled)
}

/// Measures the processor time in nanoseconds that the limiter takes to reject a request.
///
/// A request to a server that does not respond stays in flight. The limiter permits no second one,
/// so it rejects all other requests.
async fn cost_of_rejections() -> Result<f64> {
    let server = Server::start()?;
    let store = RedisStore::connect(&server.url(0)).await?;
    let limiter = RateLimiter::builder().limit(Limit::per_minute(5)).store(store);
    let limiter = limiter.max_in_flight(1).deadline(Duration::from_secs(60)).build()?;
    limiter.check(&Subject::global(), 1).await;
    server.monitor().await?.ask("CLIENT PAUSE 60000 ALL").await?;
    let waiting = limiter.clone();
    let waiting = tokio::spawn(async move { waiting.check(&Subject::global(), 1).await });
    while limiter.stats().in_flight == 0 {
        sleep(DENIED_PAUSE).await;
    }
    let with = cost(|subject| match limiter.check(subject, 1) {
        MaybeReady::Ready(Some(decision)) => decision.origin(),
        answer => panic!("the limiter is full: {answer:?}"),
    });
    waiting.abort();
    Ok(with - cost_of_clients())
}

/// Returns the processor time in nanoseconds of a request. `ask` makes the request, and returns
/// without waiting.
fn cost(mut ask: impl FnMut(&Subject) -> Origin) -> f64 {
    let found = Found::default();
    let mut clients = Clients::new(0, CLIENTS[2], 1);
    let start = Instant::now();
    let mut requests = || {
        for _ in 0..COUNTED {
            let Some(client) = clients.next(start + PAUSE * COUNTED) else { break };
            found.note(ask(&clients.subject(client)));
            clients.pause(client, start);
        }
    };
    requests();
    let (elapsed, ()) = time_on_processor(requests);
    elapsed.as_secs_f64() * 1e9 / f64::from(COUNTED)
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
