//! The server of the management API. The README of the crate lists its settings.

mod no_counters;
mod program_settings;

use std::error::Error;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use no_counters::NoCounters;
use program_settings::Settings;
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
    let settings = Settings::from_environment(|name| std::env::var(name).ok())?;
    if let Some(secret) = &settings.log_secret {
        let set = Subject::set_log_secret(secret.as_bytes());
        set.map_err(|error| format!("RL_LOG_SECRET: {error}"))?;
    }
    let admin = admin(&settings).await?;
    let listen = settings.admin.listen();
    let listener = TcpListener::bind(listen).await;
    let listener = listener.map_err(|error| format!("RL_ADMIN_LISTEN {listen}: {error}"))?;
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

/// Builds the management API from the settings.
async fn admin(settings: &Settings) -> Result<Admin, Box<dyn Error>> {
    let records = settings.records.connect().await;
    let records = records.map_err(|error| format!("DATABASE_URL: {error}"))?;
    let webhooks = settings.admin.webhooks()?;
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
            limiter.store(store.map_err(|error| format!("RL_REDIS_URL: {error}"))?)
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
        Some(_) => format!("RL_NAMESPACE, RL_RECORDS_RULE: {error}"),
        None => format!("RL_NAMESPACE: {error}"),
    })?;
    let admin = settings.admin.admin(records, limiter, webhooks);
    Ok(admin.client_ip(settings.client_ip.clone()).stand_alone(true).build())
}
