//! A service whose decisions Prometheus reads, and a demonstration with a load.
//!
//! `observability` serves at `RL_LISTEN`, with counters on `RL_REDIS_URL` if it is set.
//! `observability demo` also sends requests to itself and runs a Prometheus server, until Ctrl-C.
//! `observability demo 20` ends 20 seconds after the first numbers.

#![allow(clippy::print_stdout, reason = "an example prints what to try")]

mod demo;

use std::env;
use std::error::Error;
use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use rl_metrics::Metrics;
use rl_tower::key::Header;
use rl_tower::{Limit, RateLimitLayer, RateLimiter, Realm, RedisStore};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_ansi(stdout().is_terminal()).init();
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match *arguments {
        [] => serve().await,
        ["demo"] => demo::run(app(), None).await,
        ["demo", seconds] => match seconds.parse() {
            Ok(seconds) => demo::run(app(), Some(Duration::from_secs(seconds))).await,
            Err(_) => Err(format!("demo {seconds:?}: expected a number of seconds").into()),
        },
        _ => Err("expected no argument, or demo, or demo and a number of seconds".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the service: 10 requests in a second and 2 000 in an hour for each client.
///
/// `/metrics` is outside the limiter, so that Prometheus can read it whatever the load.
async fn app() -> Result<Router, Box<dyn Error>> {
    let limiter = RateLimiter::builder()
        .namespace("shop")
        .limit(Limit::per_second(10))
        .limit(Limit::per_hour(2_000));
    let limiter = match setting("RL_REDIS_URL") {
        Some(url) => {
            let store = RedisStore::connect(&url).await;
            limiter.store(store.map_err(|error| format!("RL_REDIS_URL: {error}"))?)
        }
        None => limiter,
    };
    let limiter = limiter.build()?;
    let metrics = Metrics::new().limiter(&limiter);
    let client = Header::new("x-client", Realm::Consumer)?;
    Ok(Router::new()
        .route("/", get(async || "hello\n"))
        .layer(RateLimitLayer::new(limiter).key(client))
        .route("/metrics", rl_metrics::axum::handler(&metrics)))
}

async fn serve() -> Result<(), Box<dyn Error>> {
    let app = app().await?;
    let listen = setting("RL_LISTEN").unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(&listen).await;
    let listener = listener.map_err(|error| format!("RL_LISTEN {listen}: {error}"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}, try:");
    println!("curl -i -H 'x-client: alice' http://{address}/");
    Ok(rl_serve::serve(listener, app).await?)
}

/// Returns the value of an environment variable, or `None` if it is unset or empty.
fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
