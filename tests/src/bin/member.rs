//! One of several services that share limits and counters: `member DATABASE_URL REDIS_URL`.
//!
//! Prints its address once it accepts connections. It trusts the header `x-consumer`.

#![expect(clippy::print_stdout, reason = "prints its result")]

use std::error::Error;
use std::time::Duration;

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::{Router, routing::get};
use rl_core::key::Identified;
use rl_core::{RateLimiter, RedisStore, Subject};
use rl_records::{RecordSource, Records};
use rl_tower::RateLimitLayer;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [database, redis] = &arguments[..] else {
        return Err("usage: member DATABASE_URL REDIS_URL".into());
    };
    // The timeouts are long. With shorter ones, a decision could be made without the store on a
    // busy machine.
    let patience = Duration::from_secs(30);
    let records = Records::connect(database).await?;
    let limiter = RateLimiter::builder()
        .policies(RecordSource::start(&records))
        .store(RedisStore::builder(redis).connection_wait(patience).connect().await?)
        .deadline(patience)
        .build()?;
    let app = Router::new()
        .route("/", get(async || "hello"))
        .layer(RateLimitLayer::new(limiter).key(Identified))
        .layer(from_fn(async |mut request: Request, next: Next| {
            let consumer = request.headers().get("x-consumer").and_then(|id| id.to_str().ok());
            if let Some(subject) = consumer.map(Subject::consumer) {
                request.extensions_mut().insert(subject);
            }
            next.run(request).await
        }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
