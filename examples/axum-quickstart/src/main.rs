//! The smallest axum service with a rate limit.

use std::{env, net::SocketAddr};

use axum::{Router, routing::get};
use rl_core::RedisStore;
use rl_tower::{Limit, RateLimitLayer, RateLimiter};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt::init(); // shows what the limiter logs
    // Five requests in ten seconds and a thousand in an hour, for each client address.
    let mut limiter =
        RateLimiter::builder().limit("5/10seconds".parse()?).limit(Limit::per_hour(1_000));
    // In memory, unless several instances are to count together.
    if let Ok(url) = env::var("RL_REDIS_URL") {
        let store = RedisStore::connect(&url).await;
        limiter = limiter.store(store.map_err(|error| format!("RL_REDIS_URL: {error}"))?);
    }
    let app = Router::new()
        .route("/", get(async || "Hello!\n"))
        .layer(RateLimitLayer::new(limiter.build()?));

    let listen = env::var("RL_LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(&listen)
        .await
        .map_err(|error| format!("{listen}: {error}; RL_LISTEN chooses another"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}, try:\ncurl -i http://{address}/");
    // The limiter counts by address, so axum has to tell it.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
