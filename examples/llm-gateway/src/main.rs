//! A gateway to a language model, which counts requests, tokens and concurrent streams.
//!
//! A request is decided under four rules in one step: it is charged under all of them, or under
//! none. The tokens of a request are known only at its end. The gateway therefore charges an
//! estimate, the prompt and `max_tokens`, and corrects it while the answer arrives (`metering.rs`).
//! A client that disconnects pays for the tokens that it has received.

#![allow(clippy::print_stdout, reason = "an example prints what to try")]

mod completion;
mod metering;
mod model;
use std::env;
use std::error::Error;
use std::io::{IsTerminal, stdout};
use std::process::ExitCode;

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use completion::{COMPLETIONS, Completion, error, json};
use rl_tower::denial::{Denial, DenialBody, DenialReason};
use rl_tower::rules::{Rule, Rules};
use rl_tower::{
    Cost, Permit, RateLimitLayer, RateLimiter, Realm, RedisStore, RequestExt, Subject,
    from_extension,
};
use serde_json::{Map, Value};

/// The owner of an API key.
#[derive(Clone, Copy)]
struct Account {
    key: &'static str,
    user: &'static str,
    organisation: &'static str,
}

const ACCOUNTS: [Account; 3] = [
    Account { key: "sk-alice", user: "alice", organisation: "acme" },
    Account { key: "sk-bob", user: "bob", organisation: "acme" },
    Account { key: "sk-carol", user: "carol", organisation: "globex" },
];

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_ansi(stdout().is_terminal()).init();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let mut limiter = RateLimiter::builder().rules(rules()?);
    // Counters are in memory by default; on Redis all instances share them.
    if let Some(url) = setting("RL_REDIS_URL") {
        let store = RedisStore::connect(&url).await;
        limiter = limiter.store(store.map_err(|error| format!("RL_REDIS_URL: {error}"))?);
    }
    let limiter = limiter.build()?;
    let layer = RateLimitLayer::new(limiter.clone())
        // Rules without a cost of their own charge this estimate. These are `tokens` and
        // `organisation`.
        .cost(|request| request.extension::<Completion>().map_or(Cost::ONE, Completion::estimate))
        .metered()
        .denial_body(DenialBody::text())
        .deny_with(deny);

    let app = Router::new()
        .route(COMPLETIONS, post(complete))
        .route("/v1/usage", get(usage))
        .with_state(limiter)
        .layer(layer)
        .layer(from_fn(completion::read))
        .layer(from_fn(authenticate))
        .route("/health", get(async || "healthy\n"));
    let listen = setting("RL_LISTEN").unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(&listen).await;
    let listener = listener.map_err(|error| format!("RL_LISTEN {listen}: {error}"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}, try:");
    println!(
        "curl -N http://{address}{COMPLETIONS} -H 'authorization: Bearer sk-alice' -d \
         '{{\"stream\":true,\"max_tokens\":9,\"messages\":[{{\"content\":\"count to nine\"}}]}}'"
    );
    Ok(rl_serve::serve(listener, app).await?)
}

/// Returns the value of an environment variable, or `None` if it is unset or empty.
fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn rules() -> Result<Rules, Box<dyn Error>> {
    let organisation = Realm::custom("organisation")?;
    let rule = |name| Rule::named(name).on("POST", COMPLETIONS);
    let per_user = |name| rule(name).per(from_extension(Account::user));
    let requests = per_user("requests").limit("20/minute".parse()?).cost(1);
    let streams = per_user("streams").limit("2:concurrency".parse()?).cost(1);
    let tokens = per_user("tokens").limit("1000/minute:unit=tokens".parse()?);
    let shared = rule("organisation")
        .per(from_extension(move |account: &Account| account.organisation(&organisation)))
        .limit("1500/minute:unit=tokens".parse()?);
    Ok(Rules::new().rule(requests).rule(streams).rule(tokens).rule(shared))
}

impl Account {
    fn user(&self) -> Subject {
        Subject::user(self.user)
    }

    fn organisation(&self, realm: &Realm) -> Subject {
        Subject::new(realm.clone(), self.organisation)
    }
}

/// Puts the account of the API key into the extensions of the request. Rejects a request without a
/// known key.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, Response> {
    let account = account(request.headers()).ok_or_else(|| {
        let error = error("invalid_request_error", "invalid_api_key", "The API key is unknown.");
        json(StatusCode::UNAUTHORIZED, error)
    })?;
    request.extensions_mut().insert(account);
    Ok(next.run(request).await)
}

fn account(headers: &HeaderMap) -> Option<Account> {
    let key = headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")?;
    ACCOUNTS.into_iter().find(|account| account.key == key)
}

async fn complete(
    Extension(permit): Extension<Permit>,
    Extension(completion): Extension<Completion>,
) -> Response {
    let Completion { prompt_tokens, max_tokens, .. } = completion;
    let answer = model::answer(prompt_tokens, max_tokens);
    let answer = metering::metered(answer, permit, prompt_tokens);
    if completion.is_stream {
        completion::stream(answer, completion.includes_usage)
    } else {
        completion::whole(answer).await
    }
}

/// Returns the units that the account of the client has used under each rule.
async fn usage(
    State(limiter): State<RateLimiter>,
    Extension(account): Extension<Account>,
) -> Result<String, (StatusCode, String)> {
    let failed = |error: &dyn Error| (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"));
    let realm = Realm::custom("organisation").map_err(|error| failed(&error))?;
    let mut units = Map::new();
    for rule in ["requests", "streams", "tokens", "organisation"] {
        let is_shared = rule == "organisation";
        let subject = if is_shared { account.organisation(&realm) } else { account.user() };
        let usage =
            limiter.rule(rule).of(&subject).usage().await.map_err(|error| failed(&error))?;
        let used = usage.limits().next().map_or(0, |limit| limit.used());
        units.insert(rule.to_owned(), used.into());
    }
    Ok(format!("{}\n", Value::Object(units)))
}

/// Returns a denial in the form that clients of OpenAI read.
fn deny(reason: DenialReason<'_>, default: Denial) -> Denial {
    let (kind, code) = match (default.status, reason.rule()) {
        (429, Some("requests" | "streams")) => ("requests", "rate_limit_exceeded"),
        (429, _) => ("tokens", "rate_limit_exceeded"),
        _ => ("server_error", "rate_limiter_unavailable"),
    };
    Denial::json(default.status, error(kind, code, &default.body).to_string())
}
