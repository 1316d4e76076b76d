//! Two servers that share one limit through Redis.
//!
//! Stop Redis while it runs: requests pass, and one log line says so. Start it again: the limit
//! holds again, and another line says so.

use std::{env, net::SocketAddr};

use axum::{Router, routing::get};
use rl_core::RedisStore;
use rl_tower::{RateLimitLayer, RateLimiter};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt::init();
    let url = env::var("RL_REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let (first, second) = (Instance::start(&url, 3001).await?, Instance::start(&url, 3002).await?);
    println!("5 requests in 10 seconds, whichever server they reach; try:");
    println!("curl -i http://{}/ http://{}/", first.address, second.address);
    tokio::try_join!(first.server, second.server)?;
    Ok(())
}

/// What would be a process on a machine of its own: it shares nothing with the other but Redis.
struct Instance<F> {
    address: SocketAddr,
    server: F,
}

impl Instance<()> {
    async fn start(
        redis: &str,
        port: u16,
    ) -> Result<Instance<impl Future<Output = std::io::Result<()>>>, Box<dyn std::error::Error>>
    {
        let store = RedisStore::connect(redis).await;
        let store = store.map_err(|error| format!("RL_REDIS_URL: {error}"))?;
        let limiter = RateLimiter::builder().limit("5/10seconds".parse()?).store(store).build()?;
        let app = Router::new()
            .route("/", get(async move || format!("Hello from port {port}!\n")))
            .layer(RateLimitLayer::new(limiter));
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
            .await
            .map_err(|error| format!("127.0.0.1:{port}: {error}"))?;
        let address = listener.local_addr()?;
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        Ok(Instance { address, server: async { axum::serve(listener, app).await } })
    }
}
