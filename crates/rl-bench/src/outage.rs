//! Measures the latency of requests at a constant rate through axum while Redis is down. A service
//! without limits is compared with one whose limits are on an unreachable server.

use std::error::Error;
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use axum::routing::{Router, get};
use rl_core::key::Constant;
use rl_core::{Limit, RateLimiter, RedisStore};
use rl_tower::RateLimitLayer;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tower::ServiceExt;

use crate::machine;
use crate::measure::{quantile, sorted, time_async};
use crate::table::Table;

/// The number of requests per second.
const RATE: usize = 2_000;

const SECONDS: usize = 10;

/// The number of requests that start at the same time.
const AT_ONCE: usize = 10;

pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    println!(
        "requests through axum while Redis is down and the breaker open: {RATE} requests per second for {SECONDS} s\n"
    );
    println!("machine   {}", machine::cores());
    println!("versions  {}, {}", machine::library("axum"), machine::profile());
    println!("measured  in the process, from the call of the router to its response\n");
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let limited = runtime.block_on(limited())?;
    // These requests take a second. The circuit breaker opens after 0.3 s, so it is open before the
    // measurement begins.
    runtime.block_on(latencies(limited.clone(), RATE));
    let mut table = Table::new("microseconds", ["", "p50", "p99", "p99.9", "slowest"]);
    let plain = runtime.block_on(latencies(router(), RATE * SECONDS));
    let down = runtime.block_on(latencies(limited, RATE * SECONDS));
    let mut quantiles = Vec::new();
    for (name, latencies) in [("no limits", plain), ("limits, Redis down", down)] {
        let of = [0.5, 0.99, 0.999, 1.0].map(|q| quantile(&latencies, q));
        table.row([name.to_owned()].into_iter().chain(of.map(|micros| format!("{micros:.0}"))));
        quantiles.push(of);
    }
    println!("{table}");
    let added = quantiles[1][1] - quantiles[0][1];
    println!("added at p99: {added:.0} µs; at most 1000 are wanted");
    Ok(())
}

fn router() -> Router {
    Router::new().route("/", get(async || "hello"))
}

/// Returns a service with limits on a Redis server that does not exist.
async fn limited() -> Result<Router, Box<dyn Error>> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let store = RedisStore::connect(&format!("redis://127.0.0.1:{port}/")).await?;
    let limiter = RateLimiter::builder().limit(Limit::per_second(100)).limit(Limit::per_day(5_000));
    let limiter = limiter.store(store).build()?;
    Ok(router().layer(RateLimitLayer::new(limiter).key(Constant)))
}

/// Sends requests at a constant rate. Returns their latencies in µs, in ascending order.
async fn latencies(router: Router, requests: usize) -> Vec<f64> {
    let mut ticks = interval(Duration::from_secs(1) / (RATE / AT_ONCE) as u32);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut asking = JoinSet::new();
    for _ in 0..requests / AT_ONCE {
        ticks.tick().await;
        for _ in 0..AT_ONCE {
            let router = router.clone();
            asking.spawn(async move {
                let (took, _) = time_async(router.oneshot(Request::new(Body::empty()))).await;
                took.as_secs_f64() * 1e6
            });
        }
    }
    sorted(&asking.join_all().await)
}
