//! Rules in a file, which is read again when it changes.
//!
//! A login is counted by the address and by the user name, which is in the body. A layer outside
//! the limiter reads the body, and the service registers an extractor for the name.

#![allow(clippy::print_stdout, reason = "an example prints what to try")]

use std::env;
use std::error::Error;
use std::io::{IsTerminal, stdout};
use std::process::ExitCode;

use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router};
use rl_tower::rules::RulesFile;
use rl_tower::{RateLimitLayer, RateLimiter, Subject, from_extension};

/// The user name in the body of a login.
#[derive(Clone)]
struct LoginName(String);

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
    let path = setting("RL_RULES").unwrap_or_else(|| "examples/axum-rules/limits.yaml".to_owned());
    let name = from_extension(|LoginName(name): &LoginName| Subject::user(name));
    let file = RulesFile::builder(path).extractor("login-name", name).watch()?;
    let limiter = RateLimiter::builder().rules(file).build()?;

    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .route("/health", get(async || "healthy\n"))
        .route("/login", post(log_in))
        .route("/export/{name}", get(async |Path(name): Path<String>| format!("all of {name}\n")))
        .layer(RateLimitLayer::new(limiter))
        .layer(from_fn(read_login_name));
    let listen = setting("RL_LISTEN").unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(&listen).await;
    let listener = listener.map_err(|error| format!("RL_LISTEN {listen}: {error}"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}, try:");
    println!("curl -i http://{address}/export/report");
    Ok(rl_serve::serve(listener, app).await?)
}

/// Returns the value of an environment variable, or `None` if it is unset or empty.
fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Reads the user name of a login, so that the limiter can count it.
async fn read_login_name(request: Request, next: Next) -> Result<Response, StatusCode> {
    if request.uri().path() != "/login" {
        return Ok(next.run(request).await);
    }
    let (mut head, body) = request.into_parts();
    let body = to_bytes(body, 16 * 1_024).await.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
    let name = form_urlencoded::parse(&body).find(|(field, _)| field == "name");
    if let Some((_, name)) = name {
        head.extensions.insert(LoginName(name.trim().to_lowercase()));
    }
    Ok(next.run(Request::from_parts(head, Body::from(body))).await)
}

/// Pretends that every password is wrong.
async fn log_in(name: Option<Extension<LoginName>>) -> (StatusCode, String) {
    let name = name.map_or_else(String::new, |Extension(LoginName(name))| name);
    (StatusCode::UNAUTHORIZED, format!("wrong password for {name}\n"))
}
