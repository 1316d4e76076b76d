//! The client address behind a reverse proxy.
//!
//! Any client can send an `X-Forwarded-For`. The limiter reads it only if the peer is a trusted
//! proxy, and uses only the entries that trusted proxies have appended.

#![allow(clippy::print_stdout, reason = "an example prints what to try")]

use std::env;
use std::error::Error;
use std::process::ExitCode;

use axum::{Router, routing::get};
use rl_tower::client_ip::{ClientIp, TrustedProxies};
use rl_tower::key::ClientAddress;
use rl_tower::{Limit, RateLimitLayer, RateLimiter};

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
    // By default, the proxy is on this machine: `curl` takes its role.
    let proxies = setting("RL_PROXIES").unwrap_or_else(|| "127.0.0.0/8, ::1".to_owned());
    let proxies: TrustedProxies =
        proxies.parse().map_err(|error| format!("RL_PROXIES: {error}"))?;

    let limiter = RateLimiter::builder().limit(Limit::per_minute(3)).build()?;
    let key = ClientAddress::new(ClientIp::with_proxies(proxies));

    let app = Router::new()
        .route("/", get(async || "Hello!\n"))
        .layer(RateLimitLayer::new(limiter).key(key));
    let listen = setting("RL_LISTEN").unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(&listen).await;
    let listener = listener.map_err(|error| format!("RL_LISTEN {listen}: {error}"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}, try:");
    println!("curl -i http://{address}/ -H 'X-Forwarded-For: 203.0.113.9'");
    Ok(rl_serve::serve(listener, app).await?)
}

/// Returns the value of an environment variable, or `None` if it is unset or empty.
fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
