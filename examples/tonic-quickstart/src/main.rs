//! A gRPC service under rules, and a client that reads their denials.
//!
//! Calls are counted by address, streams are bounded for each address, and a third rule counts all
//! calls together. A call is charged under all rules that match it, or under none.

#![allow(clippy::print_stdout, reason = "an example prints what to try")]

mod client;
mod greeter;

use std::env;
use std::error::Error;
use std::io::{IsTerminal, stdout};
use std::net::SocketAddr;
use std::process::ExitCode;

use greeter::Greeter;
use rl_tower::key::ClientAddress;
use rl_tower::rules::{Match, Rule, Rules};
use rl_tower::{Limit, RateLimitLayer, RateLimiter};
use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

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
    let listen = setting("RL_LISTEN").unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let failed = |error: &dyn Error| format!("RL_LISTEN {listen}: {error}");
    let address: SocketAddr = listen.parse().map_err(|error| failed(&error))?;
    if env::args().nth(1).as_deref() == Some("client") {
        return client::run(address).await;
    }
    // The path of a gRPC call consists of its service and its method.
    let streams = Rule::named("streams")
        .matching(Match::new().path("/hello.Greeter/Count"))
        .per(ClientAddress::default())
        .limit(Limit::concurrency(1)?);
    let calls = Rule::named("calls").per(ClientAddress::default()).limit("5/10seconds".parse()?);
    let all = Rule::named("all").limit(Limit::per_second(1_000));
    let rules = Rules::new().rule(streams).rule(calls).rule(all);
    let limiter = RateLimiter::builder().rules(rules).build()?;

    let incoming = TcpIncoming::bind(address).map_err(|error| failed(&error))?;
    let address = incoming.local_addr()?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    println!("listening on http://{address}, try:\ncargo run -p tonic-quickstart client");
    let server = Server::builder().layer(RateLimitLayer::new(limiter)).add_service(Greeter);
    Ok(server.serve_with_incoming_shutdown(incoming, stop).await?)
}

/// Returns the value of an environment variable, or `None` if it is unset or empty.
fn setting(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
