//! A client that sends thirty calls at once, and keeps to the limit of each host.
//!
//! `cargo run -p outgoing -- http://127.0.0.1:3000/` calls the `axum-quickstart`, which denies most
//! of the calls. Its responses ask for pauses, so that later calls wait longer.

#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use std::env;
use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::Duration;

use futures::future::join_all;
use http::Request;
use reqwest::{Body, Client};
use rl_tower::client::{BoxError, ThrottleLayer, Throttled};
use rl_tower::{OnFailure, RateLimiter, RedisStore};
use tower::{Layer, ServiceExt, service_fn};

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), BoxError> {
    // Prints the log lines of the limiter.
    tracing_subscriber::fmt().with_ansi(stdout().is_terminal()).init();
    let url = env::args().nth(1).ok_or("no URL: expected one, such as http://127.0.0.1:3000/")?;
    // Evenly spaced calls: a burst of 1 keeps to ten in any second.
    let mut limiter = RateLimiter::builder()
        .namespace("outgoing")
        .limit("10/second:gcra:burst=1".parse()?)
        .on_store_failure(OnFailure::Reject);
    // On Redis, all instances together keep to the limit.
    if let Some(url) = env::var("RL_REDIS_URL").ok().filter(|url| !url.is_empty()) {
        let store = RedisStore::connect(&url).await;
        limiter = limiter.store(store.map_err(|error| format!("RL_REDIS_URL: {error}"))?);
    }
    let limiter = limiter.build()?;
    let throttle = ThrottleLayer::new(limiter.clone()).wait(Duration::from_secs(5), 100).adaptive();
    let client = Client::new();
    let send = service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move { Ok::<_, BoxError>(client.execute(request.try_into()?).await?) }
    });
    let paced = throttle.layer(send.map_response(http::Response::from));

    let calls = (1..=30).map(async |call| {
        let request = Request::get(&url).body(Body::default())?;
        match paced.clone().oneshot(request).await {
            Ok(response) => println!("call {call}: {}", response.status()),
            // The error of the layer, which has not sent the call.
            Err(error) if error.is::<Throttled>() => println!("call {call}: {error}"),
            Err(error) => return Err(error),
        }
        Ok::<_, BoxError>(())
    });
    join_all(calls).await.into_iter().collect::<Result<(), _>>()?;
    // Returns leased units to Redis.
    limiter.close().await?;
    Ok(())
}
