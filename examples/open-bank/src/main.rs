//! An open banking API: consumers by bearer token, everybody else by address.
//!
//! The limiter runs after authentication. Consumers have six periods, anonymous addresses 1 000
//! requests per hour; headers and messages are those of the Open Bank Project. On Redis
//! (`RL_REDIS_URL`) its counters can be read with `redis-cli`:
//! `GET consumer_abc123_PER_MINUTE`.

use std::{env, net::SocketAddr};

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::get};
use rl_core::Gate;
use rl_core::key::{ClientAddress, Identified, KeyExtractor};
use rl_core::source::Preset;
use rl_core::store::redis::{Layout, RedisStore};
use rl_tower::{RateLimitLayer, RateLimiter, Subject};

/// Who holds which token; a real service would ask its database.
const CONSUMERS: [(&str, &str); 2] =
    [("token-of-abc", "consumer_abc123"), ("token-of-xyz", "consumer_xyz789")];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt::init();
    let mut limiter = RateLimiter::builder().policies(Preset::OpenBank);
    if let Ok(url) = env::var("RL_REDIS_URL") {
        let store = RedisStore::builder(&url).layout(Layout::Readable).connect().await;
        limiter = limiter.store(store.map_err(|error| format!("RL_REDIS_URL: {error}"))?);
    }
    let gate = Gate::new(limiter.build()?).key(Identified.or(ClientAddress::default()));

    let app = Router::new()
        .route("/obp/v6.0.0/banks", get(async || "{\"banks\":[]}\n"))
        // The layer that is added last runs first.
        .layer(RateLimitLayer::new(gate))
        .layer(from_fn(authenticate));

    let listen = env::var("RL_LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(&listen)
        .await
        .map_err(|error| format!("{listen}: {error}; RL_LISTEN chooses another"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}, try:");
    println!("curl -i http://{address}/obp/v6.0.0/banks");
    println!("curl -i http://{address}/obp/v6.0.0/banks -H 'Authorization: Bearer token-of-abc'");
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// Puts the consumer into the request's extensions, where the limiter finds it. A token that nobody
/// holds is refused; no token is an anonymous call.
async fn authenticate(mut request: Request, next: Next) -> Response {
    if let Some(value) = request.headers().get(header::AUTHORIZATION) {
        let token = value.to_str().ok().and_then(|value| value.strip_prefix("Bearer "));
        let consumer = CONSUMERS.iter().find(|(known, _)| Some(*known) == token);
        let Some((_, consumer)) = consumer else {
            return (StatusCode::UNAUTHORIZED, "OBP-20001: User not logged in.\n").into_response();
        };
        request.extensions_mut().insert(Subject::consumer(consumer));
    }
    next.run(request).await
}
