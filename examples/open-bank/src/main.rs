//! A complete open banking API: the service, the limits of its consumers in a database, and their
//! management.
//!
//! Requests with a bearer token are counted by consumer, others by address. The limiter runs after
//! authentication. Before authentication, wrong tokens and sign-ups are limited by address. The
//! limits of a consumer are the sums of its records; anonymous addresses have 1 000 requests per
//! hour. Headers and messages have the form of the Open Bank Project.
//!
//! Nothing has to be installed: records are in SQLite in memory, and counters in the memory of the
//! process. `DATABASE_URL` (`sqlite://open-bank.db`, `postgres://…`, `mysql://…`) stores the records
//! permanently. `RL_REDIS_URL` shares the counters with other instances; `redis-cli` can read them:
//! `GET consumer_abc123_PER_MINUTE`. `RL_PROXIES` lists the proxies whose `X-Forwarded-For` is
//! trusted.

#![allow(clippy::print_stdout, reason = "an example prints what to try")]

mod access;
mod management;
mod self_service;
use std::env;
use std::error::Error;
use std::io::{IsTerminal, stdout};
use std::process::ExitCode;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::Redirect;
use axum::{Router, routing};
use rl_admin::Backend;
use rl_admin::console::Console;
use rl_records::{RecordSource, Records, UsageRecorder};
use rl_tower::client_ip::{ClientIp, TrustedProxies};
use rl_tower::key::{ClientAddress, Identified, KeyExtractor};
use rl_tower::store::{Layout, Store};
use rl_tower::{Limit, MemoryStore, RateLimitLayer, RateLimiter, RedisStore};

use access::{Access, answer_json, authenticate, sign_up};
use self_service::{Mode, SelfService};

/// The tokens of consumers. A real service would store them in its database.
const CONSUMERS: [(&str, &str); 2] =
    [("token-of-abc", "consumer_abc123"), ("token-of-xyz", "consumer_xyz789")];

const PREFIX: &str = "/obp/v6.0.0";

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
    let database = setting("DATABASE_URL").unwrap_or_else(|| "sqlite::memory:".to_owned());
    let records = Records::connect(&database).await;
    let records = records.map_err(|error| format!("DATABASE_URL: {error}"))?;
    management::first_records(&records, CONSUMERS[0].1).await?;
    let proxies: Result<TrustedProxies, _> = setting("RL_PROXIES").unwrap_or_default().parse();
    let client_ip =
        ClientIp::with_proxies(proxies.map_err(|error| format!("RL_PROXIES: {error}"))?);

    // Periods without a limit are counted too, because the management shows the usage of all six
    // periods.
    let source = RecordSource::builder(&records).count_unlimited(true).start();
    let usage = UsageRecorder::start(&records);
    let mut limiter = RateLimiter::builder().policies(source).observer(usage.clone());
    let mut store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut backend = Backend::Memory;
    if let Some(url) = setting("RL_REDIS_URL") {
        let redis = RedisStore::builder(&url).layout(Layout::Readable).connect().await;
        let redis = redis.map_err(|error| format!("RL_REDIS_URL: {error}"))?;
        limiter = limiter.store(redis.clone());
        store = Arc::new(redis);
        backend = Backend::redis(&url);
    }
    let limiter = limiter.build()?;
    let access = access(client_ip.clone(), &store)?;
    let (admin, token) = management::admin(records, limiter.clone(), backend, client_ip)?;

    // The session cookie normally requires TLS, which this example does not use.
    let console = Console::builder(admin.clone()).without_tls().build();
    let app = service(limiter.clone(), access).nest(PREFIX, admin.router()).merge(console.router());
    let listen = setting("RL_LISTEN").unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(&listen).await;
    let listener = listener.map_err(|error| format!("RL_LISTEN {listen}: {error}"))?;
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        tracing::warn!("tokens sent in clear over the network: put a proxy with TLS in front");
    }
    let api = format!("http://{address}{PREFIX}");
    println!("listening on {api}, try:");
    println!("curl -i {api}/banks");
    println!("curl -i {api}/banks -H 'Authorization: Bearer {}'", CONSUMERS[0].0);
    println!("curl -i -X POST {api}/users");
    let console = format!("http://{address}/console");
    management::print_help(&console, &api, token.as_deref(), CONSUMERS[0].1);
    rl_serve::serve(listener, app).await?;
    // Returns leased units to Redis.
    if let Err(error) = limiter.close().await {
        eprintln!("warning: {error}");
    }
    if let Err(error) = usage.write().await {
        eprintln!("warning: calls of the last minute not recorded: {error}");
    }
    Ok(())
}

/// Returns the value of an environment variable, or `None` if it is unset or empty.
fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Reads a mode from an environment variable.
fn mode(name: &str, default: Mode) -> Result<Mode, String> {
    let Some(text) = setting(name) else { return Ok(default) };
    text.parse().map_err(|error| format!("{name} {text:?}: {error}"))
}

/// Returns the limiters for requests before authentication.
fn access(client_ip: ClientIp, store: &Arc<dyn Store>) -> Result<Arc<Access>, Box<dyn Error>> {
    let failures = mode("RL_AUTHENTICATION", Mode::Enforce)?;
    let failures = RateLimiter::builder()
        .limit(Limit::per_minute(10))
        .limit(Limit::per_hour(100))
        .namespace("authentication")
        .enabled(failures != Mode::Off)
        .shadow(failures == Mode::Shadow)
        .store(store.clone())
        .build()?;
    let self_service = mode("RL_SELF_SERVICE", Mode::Shadow)?;
    let limits = self_service::limits("signup", setting)?;
    let signup = SelfService::new("signup", self_service, limits, store)?;
    Ok(Arc::new(Access { client_ip, failures, signup }))
}

/// Returns the part of the service that is limited. The management is not limited, so it stays
/// reachable.
fn service(limiter: RateLimiter, access: Arc<Access>) -> Router {
    let address = ClientAddress::new(access.client_ip.clone());
    let layer = RateLimitLayer::new(limiter).key(Identified.or(address)).open_bank();
    let banks = async || answer_json(StatusCode::OK, "{\"banks\":[]}\n".to_owned());
    Router::new()
        .route(&format!("{PREFIX}/banks"), routing::get(banks))
        // The layer that is added last runs first, so clients are authenticated before they are
        // limited.
        .layer(layer)
        .layer(from_fn_with_state(access.clone(), authenticate))
        // The layers do not apply to routes that are added after them.
        .route(&format!("{PREFIX}/users"), routing::post(sign_up).with_state(access))
        .route("/", routing::get(async || Redirect::to("/console")))
}
