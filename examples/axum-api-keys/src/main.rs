//! Tiers for API keys, and a handler that reads the decision.
//!
//! Each key that was sold belongs to a tier, and has its own counters. Requests without a key, or
//! with an unknown key, are counted by address, so a client that invents keys gains nothing. A
//! request with two keys is rejected with 400.
//!
//! Keys are hashed with a secret first, so neither the store nor the map of tiers contains a key in
//! plain text.

#![allow(clippy::print_stdout, reason = "an example prints what to try")]

use std::collections::{HashMap, HashSet};
use std::env;
use std::error::Error;
use std::process::ExitCode;

use axum::{Extension, Router, routing::get};
use rl_tower::headers::{HeaderFamily, Headers};
use rl_tower::key::{ApiKey, ClientAddress, KeyExtractor, KeySecret};
use rl_tower::{Decision, Limit, Policy, RateLimitLayer, RateLimiter, Realm, Subject};

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
    let anonymous = Policy::new([Limit::per_minute(3)])?;
    let basic = Policy::new([Limit::per_second(2), Limit::per_day(1_000)])?;
    let premium = Policy::new([Limit::per_second(50), Limit::per_day(100_000)])?;

    // All instances need the same secret, because the counters belong to the hashes of the keys.
    let secret = KeySecret::new(b"a secret from your configuration")?;
    let tiers: HashMap<Subject, Policy> = [("key-of-bob", basic), ("key-of-alice", premium)]
        .into_iter()
        .map(|(key, policy)| (secret.subject(Realm::Key, key.as_bytes()), policy))
        .collect();
    let sold: HashSet<Subject> = tiers.keys().cloned().collect();
    let limiter = RateLimiter::builder()
        // If a key is counted in a pair, as with `.and(Route)`, the owner of the pair is still the
        // key. So the map needs no entries for pairs.
        .policies(move |subject: &Subject| {
            Some(tiers.get(subject.owner()).unwrap_or(&anonymous).clone())
        })
        .build()?;
    let key = ApiKey::header("x-api-key", secret)?
        .known(move |key| sold.contains(key))
        .or(ClientAddress::default());
    let layer =
        RateLimitLayer::new(limiter).key(key).headers(Headers::new(HeaderFamily::IetfDraft11));

    let app = Router::new().route("/", get(show)).layer(layer);
    let listen = setting("RL_LISTEN").unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(&listen).await;
    let listener = listener.map_err(|error| format!("RL_LISTEN {listen}: {error}"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}, try:");
    println!("curl -i http://{address}/ -H 'X-Api-Key: key-of-alice'");
    Ok(rl_serve::serve(listener, app).await?)
}

/// Returns the value of an environment variable, or `None` if it is unset or empty.
fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

async fn show(Extension(decision): Extension<Decision>) -> String {
    let limits = decision
        .limits()
        .map(|limit| format!("{}: {} of {} left\n", limit.name(), limit.remaining(), limit.max()));
    limits.collect()
}
