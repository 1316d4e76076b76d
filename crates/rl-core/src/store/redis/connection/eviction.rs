//! Whether a server may forget counters to make room, which admits more than the limits say.

use std::sync::atomic::{AtomicBool, Ordering};

use super::pool::Connection;
use super::server::Server;
use crate::observe;

/// Warns, once for each store, if this server can evict counters. A server that does not tell is left
/// alone.
pub(crate) async fn warn_of(connection: &mut Connection, server: &Server, has_warned: &AtomicBool) {
    if has_warned.load(Ordering::Relaxed) {
        return;
    }
    if let Some(policy) = evicting_policy(connection).await
        && !has_warned.swap(true, Ordering::Relaxed)
    {
        observe::can_evict(&format!("redis {}", server.name()), &policy);
    }
}

/// The server's policy, if it has a limit of memory and deletes keys at it.
async fn evicting_policy(connection: &mut Connection) -> Option<String> {
    let mut info = redis::cmd("INFO");
    info.arg("memory");
    let memory: Vec<(String, String)> = match connection.query::<String>(&info).await {
        Ok(info) => {
            let fields = info.lines().filter_map(|line| line.split_once(':'));
            fields.map(|(name, value)| (name.replace('_', "-"), value.to_owned())).collect()
        }
        Err(_) => {
            let mut config = redis::cmd("CONFIG");
            config.arg("GET").arg("maxmemory*");
            connection.query(&config).await.ok()?
        }
    };
    let value = |name: &str| Some(memory.iter().find(|(field, _)| field == name)?.1.trim());
    let policy = value("maxmemory-policy")?;
    let is_limited = value("maxmemory").is_some_and(|limit| limit != "0");
    (is_limited && policy != "noeviction").then(|| policy.to_owned())
}
