//! The smallest actix-web service with a rate limit.

use std::env;

use actix_web::{App, HttpServer, web};
use rl_actix::{Limit, RateLimit, RateLimiter};
use rl_core::RedisStore;

#[actix_web::main]
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
    let limiter = limiter.build()?;

    // The closure runs once for each worker; clones of the limiter count together.
    let server = HttpServer::new(move || {
        App::new()
            .wrap(RateLimit::new(limiter.clone()))
            .route("/", web::get().to(async || "Hello!\n"))
    });
    let listen = env::var("RL_LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let server = server
        .bind(&listen)
        .map_err(|error| format!("{listen}: {error}; RL_LISTEN chooses another"))?;
    let address = server.addrs()[0];
    println!("listening on http://{address}, try:\ncurl -i http://{address}/");
    server.run().await?;
    Ok(())
}
