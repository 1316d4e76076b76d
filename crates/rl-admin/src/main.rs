//! The server of the management API. The README of the crate lists its settings.

mod no_counters;
mod program_settings;

use std::error::Error;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use no_counters::NoCounters;
use program_settings::{Settings, Sources};
use rl_admin::Admin;
use rl_core::key::Identified;
use rl_core::rules::{Rule, Rules};
use rl_core::{RateLimiter, RedisStore, Subject};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> ExitCode {
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr);
    log.with_ansi(std::io::stderr().is_terminal()).init();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(target: "rl_admin", "{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let file = arguments.next().map(PathBuf::from);
    if arguments.next().is_some() {
        return Err("expected one argument at most: the settings file".into());
    }
    let sources = Sources::new(file.as_deref(), |name: &str| std::env::var(name).ok())?;
    let settings = Settings::read(&sources)?;
    let place = |name: &str| sources.place(name);
    if let Some(secret) = &settings.log_secret {
        let set = Subject::set_log_secret(secret.as_bytes());
        set.map_err(|error| format!("{}: {error}", place("RL_LOG_SECRET")))?;
    }
    let admin = admin(&settings, place).await?;
    let listen = settings.admin.listen();
    let listener = TcpListener::bind(listen).await;
    let listener =
        listener.map_err(|error| format!("{} {listen}: {error}", place("RL_ADMIN_LISTEN")))?;
    let address = listener.local_addr()?;
    if settings.admin.sends_tokens_in_clear(address) {
        tracing::warn!(
            target: "rl_admin",
            "tokens sent in clear over the network: listen on the loopback, or put a proxy with TLS in \
             front and set RL_ADMIN_ORIGIN to its https:// address"
        );
    }
    tracing::info!(target: "rl_admin", "listening on http://{address}{}", settings.admin.prefix());
    rl_serve::serve(listener, settings.admin.router(admin, address)).await?;
    tracing::info!(target: "rl_admin", "stopped");
    Ok(())
}

/// Builds the management API from the settings. `place` returns the name of a setting for an error.
async fn admin(
    settings: &Settings,
    place: impl Fn(&str) -> String,
) -> Result<Admin, Box<dyn Error>> {
    let records = settings.records.connect().await;
    let records = records.map_err(|error| format!("{}: {error}", place("DATABASE_URL")))?;
    let webhooks = settings.admin.webhooks();
    let webhooks =
        webhooks.map_err(|error| format!("{}: {}", place(error.variable()), error.reason()))?;
    let source = settings.records.source(&records);
    let source = match &webhooks {
        Some(webhooks) => source.observer(webhooks.clone()),
        None => source,
    };
    let source = source.start();
    let limiter = match &settings.records_rule {
        Some(rule) => {
            let rule = Rule::named(rule).per(Identified).policies(source);
            RateLimiter::builder().rules(Rules::new().rule(rule))
        }
        None => RateLimiter::builder().policies(source),
    };
    let limiter = limiter
        .namespace(&settings.namespace)
        // A report may wait longer for the store than a request of a service.
        .deadline(Duration::from_secs(1));
    let limiter = match &settings.redis {
        Some(url) => {
            let store = RedisStore::builder(url).layout(settings.layout).connect().await;
            limiter.store(store.map_err(|error| format!("{}: {error}", place("RL_REDIS_URL")))?)
        }
        None => {
            tracing::warn!(
                target: "rl_admin",
                "no counters to show without RL_REDIS_URL: a service in memory has its own"
            );
            limiter.store(NoCounters)
        }
    };
    let limiter = limiter.build().map_err(|error| match &settings.records_rule {
        Some(_) => format!("{}, {}: {error}", place("RL_NAMESPACE"), place("RL_RECORDS_RULE")),
        None => format!("{}: {error}", place("RL_NAMESPACE")),
    })?;
    let admin = settings.admin.admin(records, limiter, webhooks);
    Ok(admin.client_ip(settings.client_ip.clone()).stand_alone(true).build())
}
