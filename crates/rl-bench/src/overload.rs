//! Measures a flood beyond capacity: clients invent a subject for each request, while one address is denied.

#![expect(clippy::disallowed_methods, reason = "clients pause in real time")]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rl_core::store::RedisStore;
use rl_core::{Limit, Origin, RateLimiter, Subject};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::machine;
use crate::redis::Server;
use crate::table::Table;

/// The numbers of clients, measured one after the other.
const CLIENTS: [u64; 3] = [4_000, 10_000, 20_000];

/// The pause of a client of the flood after each answer.
const PAUSE: Duration = Duration::from_millis(20);

/// The pause of the denied address.
const DENIED_PAUSE: Duration = Duration::from_millis(5);

const SECONDS: u64 = 5;

/// The least share of decided requests at the most clients, relative to the fewest clients.
const LEAST: f64 = 0.8;

pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    println!(
        "clients that invent a subject for each request, {SECONDS} s for each number of them\n"
    );
    println!("machine   {}", machine::cores());
    println!("versions  {}, {}", machine::program("redis-server"), machine::profile());
    println!(
        "measured  in one process with its clients, without HTTP, on a Redis server of its own\n"
    );
    Builder::new_multi_thread().enable_all().build()?.block_on(measure())
}

async fn measure() -> Result<(), Box<dyn Error>> {
    let mut table = Table::new(
        "requests per second",
        ["clients", "decided", "503", "open", "of the denied", "passed"],
    );
    let mut decided = Vec::new();
    for clients in CLIENTS {
        let server = Server::start()?;
        let store = RedisStore::connect(&server.url(0)).await?;
        let limiter = RateLimiter::builder().limit(Limit::per_minute(5)).store(store).build()?;
        let found = Arc::new(Found::default());
        let denied = flood(&limiter, clients, &found).await;
        let each_second = |count: &AtomicU64| count.load(Ordering::Relaxed) / SECONDS;
        decided.push(each_second(&found.decided));
        let counts = [&found.decided, &found.rejected, &found.open].map(each_second);
        let row = [clients].into_iter().chain(counts).chain([denied.asked, denied.passed]);
        table.row(row.map(|number| number.to_string()));
    }
    println!("{table}");
    println!(
        "`of the denied`: requests of one address that is denied, and those of them that passed: 0 are wanted"
    );
    let part = decided[CLIENTS.len() - 1] as f64 / decided[0] as f64;
    println!(
        "decided at most clients: {:.0} % of those at fewest; at least {:.0} % are wanted",
        part * 100.0,
        LEAST * 100.0
    );
    Ok(())
}

/// The outcomes of the flood's requests.
#[derive(Debug, Default)]
struct Found {
    decided: AtomicU64,
    rejected: AtomicU64,
    open: AtomicU64,
}

/// The requests of the address that is denied.
#[derive(Debug, Default)]
struct Denied {
    asked: u64,
    passed: u64,
}

async fn flood(limiter: &RateLimiter, clients: u64, found: &Arc<Found>) -> Denied {
    let guesser = Subject::ip("192.0.2.7");
    while limiter.check(&guesser, 1).await.is_allowed() {}
    let has_ended = Arc::new(AtomicBool::new(false));
    let mut flood = JoinSet::new();
    for client in 0..clients {
        let (limiter, found, has_ended) =
            (limiter.clone(), Arc::clone(found), Arc::clone(&has_ended));
        flood.spawn(async move {
            // The clients start spread over one pause, not all at once.
            sleep(PAUSE.mul_f64(client as f64 / clients as f64)).await;
            let mut request = 0_u64;
            while !has_ended.load(Ordering::Relaxed) {
                let subject = Subject::consumer(&format!("{client}-{request}"));
                let decision = limiter.check(&subject, 1).await;
                let count = match decision.origin() {
                    Origin::FailedOpen(_) => &found.open,
                    Origin::FailedClosed(_) => &found.rejected,
                    _ => &found.decided,
                };
                count.fetch_add(1, Ordering::Relaxed);
                request += 1;
                sleep(PAUSE).await;
            }
        });
    }
    let (end, mut denied) = (Instant::now() + Duration::from_secs(SECONDS), Denied::default());
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
