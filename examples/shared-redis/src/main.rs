//! Two servers that share one limit through Redis.
//!
//! Stop Redis while the example runs: requests are allowed, and a log line reports the outage.
//! Start Redis again: the limit is enforced again, and another log line reports the recovery.

#![allow(clippy::print_stdout, reason = "an example prints what to try")]

use std::error::Error;
use std::io::{self, IsTerminal, stdout};
use std::net::SocketAddr;
use std::process::ExitCode;

use axum::{Router, routing::get};
use rl_tower::{RateLimitLayer, RateLimiter, RedisStore};
use tokio::net::TcpListener;

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
    let url = setting("RL_REDIS_URL").unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let listen =
        setting("RL_LISTEN").unwrap_or_else(|| "127.0.0.1:3001, 127.0.0.1:3002".to_owned());
    let (first, second) = listen.split_once(',').ok_or_else(|| {
        format!("RL_LISTEN {listen}: expected two addresses with a comma between")
    })?;
    let first = Instance::start(&url, first.trim()).await?;
    let second = Instance::start(&url, second.trim()).await?;
    println!("5 requests in 10 seconds on both servers together; try:");
    println!("curl -i http://{}/ http://{}/", first.address, second.address);
    tokio::try_join!(first.serve(), second.serve())?;
    Ok(())
}

/// Returns the value of an environment variable, or `None` if it is unset or empty.
fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A server. It could also be a process on another machine, because the two share nothing but
/// Redis.
struct Instance {
    address: SocketAddr,
    listener: TcpListener,
    app: Router,
    limiter: RateLimiter,
}

impl Instance {
    async fn start(redis: &str, listen: &str) -> Result<Self, Box<dyn Error>> {
        let store = RedisStore::connect(redis).await;
        let store = store.map_err(|error| format!("RL_REDIS_URL: {error}"))?;
        let limiter = RateLimiter::builder().limit("5/10seconds".parse()?).store(store).build()?;
        let listener = TcpListener::bind(listen).await;
        let listener = listener.map_err(|error| format!("RL_LISTEN {listen}: {error}"))?;
        let address = listener.local_addr()?;
        let app = Router::new()
            .route("/", get(async move || format!("Hello from {address}!\n")))
            .layer(RateLimitLayer::new(limiter.clone()));
        Ok(Self { address, listener, app, limiter })
    }

    async fn serve(self) -> io::Result<()> {
        rl_serve::serve(self.listener, self.app).await?;
        // Returns leased units to Redis.
        if let Err(error) = self.limiter.close().await {
            eprintln!("warning: {error}");
        }
        Ok(())
    }
}
