//! The smallest axum service with a rate limit.

#![allow(clippy::print_stdout, reason = "an example prints what to try")]

use std::env;
use std::error::Error;
use std::io::{IsTerminal, stdout};
use std::process::ExitCode;

use axum::{Router, routing::get};
use rl_tower::headers::{HeaderFamily, Headers};
use rl_tower::{Limit, RateLimitLayer, RateLimiter, RedisStore};

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

async fn run() -> Result<(), Box<dyn Error>> {
    // Prints the log lines of the limiter.
    tracing_subscriber::fmt().with_ansi(stdout().is_terminal()).init();
    // Five requests in ten seconds and a thousand in an hour, for each client address.
    let mut limiter =
        RateLimiter::builder().limit("5/10seconds".parse()?).limit(Limit::per_hour(1_000));
    // Counters are in memory by default; on Redis all instances share them.
    if let Some(url) = setting("RL_REDIS_URL") {
        let store = RedisStore::connect(&url).await;
        limiter = limiter.store(store.map_err(|error| format!("RL_REDIS_URL: {error}"))?);
    }
    let limiter = limiter.build()?;
    // Without this setting, responses have the fields `X-Rate-Limit-*`.
    let headers = Headers::new(HeaderFamily::IetfDraft11);
    let app = Router::new()
        .route("/", get(async || "Hello!\n"))
        .layer(RateLimitLayer::new(limiter.clone()).headers(headers));

    let listen = setting("RL_LISTEN").unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(&listen).await;
    let listener = listener.map_err(|error| format!("RL_LISTEN {listen}: {error}"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}, try:\ncurl -i http://{address}/");
    rl_serve::serve(listener, app).await?;
    // Returns leased units to Redis.
    if let Err(error) = limiter.close().await {
        eprintln!("warning: {error}");
    }
    Ok(())
}

/// Returns the value of an environment variable, or `None` if it is unset or empty.
fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
