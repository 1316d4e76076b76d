//! Tiers for API keys, and the decision shown to the handler.
//!
//! Each key that was sold belongs to a tier and counts as itself. Requests without a key, or with a key
//! that was never sold, count by address, so a client that invents keys gains nothing. A request with two
//! keys is rejected with 400.
//!
//! Keys are hashed with a secret before anything is done with them, so that neither the store nor
//! the map of tiers holds a key in clear.

#![allow(clippy::print_stdout, reason = "an example prints what to try")]

#[path = "../../serve.rs"]
mod serve;

use std::collections::{HashMap, HashSet};
use std::env;
use std::error::Error;
use std::process::ExitCode;

use axum::{Extension, Router, routing::get};
use rl_core::headers::{HeaderFamily, Headers};
use rl_core::key::{ApiKey, ClientAddress, KeyExtractor, KeySecret};
use rl_core::{Gate, Realm};
use rl_tower::{Decision, Limit, Policy, RateLimitLayer, RateLimiter, Subject};

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

    // Share the secret between instances: it decides under which names they count.
    let secret = KeySecret::new(b"a secret from your configuration")?;
    let tiers: HashMap<Subject, Policy> = [("key-of-bob", basic), ("key-of-alice", premium)]
        .into_iter()
        .map(|(key, policy)| (secret.subject(Realm::Key, key.as_bytes()), policy))
        .collect();
    let sold: HashSet<Subject> = tiers.keys().cloned().collect();
    let limiter = RateLimiter::builder()
        // The owner is the key itself, even if it is counted in a pair, as by `.and(Route)`. The map has
        // no pairs.
        .policies(move |subject: &Subject| {
            Some(tiers.get(subject.owner()).unwrap_or(&anonymous).clone())
        })
        .build()?;
    let key = ApiKey::header("x-api-key", secret)?
        .known(move |key| sold.contains(key))
        .or(ClientAddress::default());
    let gate = Gate::new(limiter).key(key).headers(Headers::new(HeaderFamily::Ietf));

    let app = Router::new().route("/", get(show)).layer(RateLimitLayer::new(gate));
    let listen = setting("RL_LISTEN").unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(&listen).await;
    let listener = listener.map_err(|error| format!("RL_LISTEN {listen}: {error}"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}, try:");
    println!("curl -i http://{address}/ -H 'X-Api-Key: key-of-alice'");
    Ok(serve::serve(listener, app).await?)
}

/// Returns an environment variable. An empty one counts as unset.
fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

async fn show(Extension(decision): Extension<Decision>) -> String {
    let limits = decision
        .limits()
        .map(|limit| format!("{}: {} of {} left\n", limit.name(), limit.remaining(), limit.max()));
    limits.collect()
}
