//! The server of the management API. The README of the crate lists its settings.

mod no_counters;
mod settings;

use std::error::Error;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use no_counters::NoCounters;
use rl_admin::{Admin, AdminBuilder};
use rl_core::key::Identified;
use rl_core::rules::{Rule, Rules};
use rl_core::source::ByRealm;
use rl_core::{Limit, Period, Policy, RateLimiter, Realm, RedisStore, Subject};
use rl_records::{CallLimit, RecordSource, Records, RecordsOptions};
use settings::{Settings, WebhookSettings};
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
    let mut routes = match &*settings.prefix {
        "" => admin.router(),
        prefix => Router::new().nest(prefix, admin.router()),
    };
    let listen = &settings.listen;
    let listener = TcpListener::bind(listen).await;
    let listener = listener.map_err(|error| format!("RL_ADMIN_LISTEN {listen}: {error}"))?;
    let address = listener.local_addr()?;
    if let Some(console) = settings.console.console(admin, address) {
        routes = routes.merge(console.router());
    }
    warn_about(&settings, address);
    tracing::info!(target: "rl_admin", "listening on http://{address}{}", settings.prefix);
    rl_serve::serve(listener, routes).await?;
    tracing::info!(target: "rl_admin", "stopped");
    Ok(())
}

/// Logs a warning if tokens are sent over the network without encryption.
fn warn_about(settings: &Settings, address: SocketAddr) {
    if !address.ip().is_loopback() && !settings.console.is_behind_tls() {
        tracing::warn!(
            target: "rl_admin",
            "tokens sent in clear over the network: listen on the loopback, or put a proxy with TLS in \
             front and set RL_ADMIN_ORIGIN to its https:// address"
        );
    }
}

/// Builds the management API from the settings.
async fn admin(settings: &Settings) -> Result<Admin, Box<dyn Error>> {
    let options = RecordsOptions::new(&settings.database)
        .defaults(settings.defaults)
        .zero_means(settings.zero_means);
    let records =
        Records::connect_with(options).await.map_err(|error| format!("DATABASE_URL: {error}"))?;
    let webhooks = settings.webhooks.as_ref().map(WebhookSettings::start).transpose()?;
    let source = RecordSource::builder(&records).others(others(settings.anonymous)).tiers_of_keys();
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
    let backend = settings.redis.as_deref().map(rl_admin::Backend::redis).unwrap_or_default();
    let admin = Admin::builder(records, limiter)
        .authorize(settings.tokens.clone())
        .backend(backend)
        .failed_attempts(settings.attempts.clone())
        .require_if_match(settings.require_if_match)
        .client_ip(settings.client_ip.clone())
        .stand_alone(true);
    let admin = match webhooks {
        Some(webhooks) => admin.webhooks(webhooks),
        None => admin,
    };
    let admin = settings.realms.iter().cloned().fold(admin, AdminBuilder::realm);
    Ok(admin.build())
}

/// Returns the policies for subjects that are not consumers: `anonymous` is the limit per hour of
/// an address and of an unknown client. The limits of other subjects are in the programs of
/// services.
fn others(anonymous: CallLimit) -> ByRealm {
    let policies = ByRealm::unlimited_by_default();
    match anonymous {
        CallLimit::Unlimited => policies,
        CallLimit::AtMost(max) => {
            let limit = Limit::new(max, Period::HOUR).expect("call limits are at most MAX_UNITS");
            let policy = Policy::new([limit]).expect("one limit");
            policies.with(Realm::Ip, policy.clone()).with(Realm::Unknown, policy)
        }
    }
}
