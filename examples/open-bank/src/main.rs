//! An open banking API, whole: the service, the limits of its consumers in a database, and the management
//! of both.
//!
//! Consumers come by bearer token, everybody else by address. The limiter runs after authentication.
//! What a consumer may do is what its records add up to; anonymous addresses have 1 000 requests per
//! hour. Headers and messages are those of the Open Bank Project.
//!
//! Nothing has to be installed: records are in SQLite in memory, counters in the memory of this
//! process. `DATABASE_URL` (`sqlite://open-bank.db`, `postgres://…`) keeps the records, `RL_REDIS_URL`
//! shares the counters with other instances; on Redis they can be read with `redis-cli`:
//! `GET consumer_abc123_PER_MINUTE`.

mod management;

use std::{env, net::SocketAddr};

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::get};
use rl_admin::Backend;
use rl_admin::console::Console;
use rl_core::Gate;
use rl_core::denial::DenialBody;
use rl_core::headers::{HeaderFamily, Headers};
use rl_core::key::{ClientAddress, Identified, KeyExtractor};
use rl_core::store::redis::{Layout, RedisStore};
use rl_records::{RecordSource, Records};
use rl_tower::{RateLimitLayer, RateLimiter, Subject};

/// Who holds which token; a real service would ask its database.
const CONSUMERS: [(&str, &str); 2] =
    [("token-of-abc", "consumer_abc123"), ("token-of-xyz", "consumer_xyz789")];

const PREFIX: &str = "/obp/v6.0.0";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt::init();
    let database = env::var("DATABASE_URL").unwrap_or_else(|_| "sqlite::memory:".to_owned());
    let records = Records::connect(&database).await;
    let records = records.map_err(|error| format!("DATABASE_URL: {error}"))?;
    management::first_records(&records, CONSUMERS[0].1).await?;

    // Periods without a limit are counted too: the management shows what is used in all six.
    let source = RecordSource::builder(&records).count_unlimited(true).start();
    let mut limiter = RateLimiter::builder().policies(source.clone());
    let mut backend = Backend::Memory;
    if let Ok(url) = env::var("RL_REDIS_URL") {
        let store = RedisStore::builder(&url).layout(Layout::Readable).connect().await;
        limiter = limiter.store(store.map_err(|error| format!("RL_REDIS_URL: {error}"))?);
        backend = Backend::redis(&url);
    }
    let limiter = limiter.build()?;
    let (admin, token) = management::admin(records, source, limiter.clone(), backend)?;

    // Pages for people. The cookie needs TLS unless it is said that there is none.
    let console = Console::builder(admin.clone()).without_tls().build();
    let app = service(limiter).nest(PREFIX, admin.router()).merge(console.router());
    let listen = env::var("RL_LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(&listen)
        .await
        .map_err(|error| format!("{listen}: {error}; RL_LISTEN chooses another"))?;
    let api = format!("http://{}{PREFIX}", listener.local_addr()?);
    println!("listening on {api}, try:");
    println!("curl -i {api}/banks");
    println!("curl -i {api}/banks -H 'Authorization: Bearer {}'", CONSUMERS[0].0);
    management::print_help(&api, token.as_deref(), CONSUMERS[0].1);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// What is limited. Management is not: it would be out of reach just when it is needed.
fn service(limiter: RateLimiter) -> Router {
    let gate = Gate::new(limiter)
        .key(Identified.or(ClientAddress::default()))
        .headers(Headers::new(HeaderFamily::OpenBank).tell_unlimited(true))
        .denial_body(DenialBody::open_bank().prefix("OBP-10018: "));
    Router::new()
        .route(&format!("{PREFIX}/banks"), get(async || "{\"banks\":[]}\n"))
        // The layer that is added last runs first.
        .layer(RateLimitLayer::new(gate))
        .layer(from_fn(authenticate))
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
