//! Costs that are only known afterwards, a concurrency limit, waiting, and a limit in shadow.
//!
//! A client has 200 words per minute. A request reserves 20 words, and is charged the words of its
//! response when the body has ended. A client may have two requests in progress; a third one waits
//! for up to five seconds. Failed requests are free.
//!
//! A limit of 500 words per hour is in shadow: a log line and a header report the requests that it
//! would deny.

#![allow(clippy::print_stdout, reason = "an example prints what to try")]

use std::env;
use std::error::Error;
use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::time::Duration;

use axum::{Extension, Router, extract::Path, http::StatusCode, routing::get};
use rl_tower::{Cost, Limit, OverLimit, Permit, RateLimitLayer, RateLimiter};

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
    tracing_subscriber::fmt().with_ansi(stdout().is_terminal()).init();
    let limiter = RateLimiter::builder()
        .limit(Limit::concurrency(2)?.count_requests())
        .limit(Limit::per_minute(200).with_unit("words")?)
        .limit(Limit::per_hour(500).with_unit("words")?.shadow())
        .build()?;
    let layer = RateLimitLayer::new(limiter)
        .cost(|_| Cost::new(20))
        .metered()
        .refund_if(|response| response.status() >= 400)
        .on_over_limit(OverLimit::Wait { at_most: Duration::from_secs(5), queue: 10 });

    let app = Router::new().route("/words/{count}", get(words)).layer(layer);
    let listen = setting("RL_LISTEN").unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(&listen).await;
    let listener = listener.map_err(|error| format!("RL_LISTEN {listen}: {error}"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}, try:");
    println!("curl -i http://{address}/words/90");
    Ok(rl_serve::serve(listener, app).await?)
}

/// Returns the value of an environment variable, or `None` if it is unset or empty.
fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

async fn words(
    Extension(permit): Extension<Permit>,
    Path(count): Path<u64>,
) -> Result<String, (StatusCode, &'static str)> {
    if count > 1_000 {
        return Err((StatusCode::UNPROCESSABLE_ENTITY, "at most 1000 words"));
    }
    permit.set_cost(count);
    Ok("word ".repeat(count as usize) + "\n")
}
