//! Connections to the servers of the store.
//!
//! ```text
//! Router ─┬─ Pool, to one server or to the primary that sentinels name
//!         └─ Cluster ── slot of the command ── Pool, to the server that holds the slot
//!
//! Pool ── Connection, shared by many tasks ── Liveness
//!  ├───── ServerLoad: the decisions in flight, and the replies of the server
//!  └───── Connector, Backoff: how connections are opened, and how often that is tried
//! ```
//!
//! This module sends commands without interpreting them: the layers above create them and read the
//! replies.

mod backoff;
#[cfg(feature = "redis-cluster")]
mod cluster;
mod command;
mod connector;
mod liveness;
mod multiplexed;
mod pool;
#[cfg(feature = "redis-sentinel")]
mod sentinel;
mod server;
mod stream;
#[cfg(feature = "redis-tls")]
mod tls;

#[cfg(feature = "redis-cluster")]
pub(super) use cluster::Cluster;
pub(super) use command::Command;
#[cfg(feature = "conformance")]
pub(super) use command::ManualTime;
pub(super) use connector::ConnectionSettings;
pub(super) use pool::{Pool, PoolTarget};
#[cfg(feature = "redis-sentinel")]
pub(super) use sentinel::Sentinels;
pub(super) use server::{Login, NO_FRAGMENT, Server, redacted_url, validate_url};
#[cfg(feature = "redis-tls")]
pub use tls::Tls;

use super::error::classify;
use crate::model::StoreError;
use crate::store::ServerLoads;

/// Sends each command to the server that holds its keys.
pub(super) enum Router {
    /// One server holds all keys.
    Pool(Pool),
    /// Each server holds some of the slots.
    #[cfg(feature = "redis-cluster")]
    Cluster(Cluster),
}

impl Router {
    /// Returns the loads of the servers that hold these slots. `slots` is not read if one server
    /// holds all keys.
    pub(super) fn loads(&self, slots: impl Iterator<Item = u16>) -> ServerLoads<'_> {
        match self {
            Self::Pool(pool) => {
                drop(slots);
                pool.load().into()
            }
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => slots.map(|slot| cluster.load_of(slot)).collect(),
        }
    }

    /// Sends a command and returns the reply of its script.
    pub(super) async fn send(&self, command: &Command) -> Result<Vec<u8>, StoreError> {
        match self {
            Self::Pool(pool) => send_to_pool(pool, command).await,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => cluster.send(command).await,
        }
    }

    /// Sends a command as [`send`](Self::send) does. Returns `None` if no server has all of its
    /// keys, because their slot is being migrated. In that case nothing was executed.
    pub(super) async fn try_send(&self, command: &Command) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Self::Pool(pool) => send_to_pool(pool, command).await.map(Some),
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => cluster.try_send(command).await,
        }
    }
}

async fn send_to_pool(pool: &Pool, command: &Command) -> Result<Vec<u8>, StoreError> {
    let mut connection = pool.get().await?;
    connection.execute(command).await.map_err(classify)
}
