//! Connections: how the store reaches its servers.
//!
//! ```text
//! Route ─┬─ Pool (one server, or the primary that sentinels name)
//!        └─ Cluster ── slot ── Pool of the server that holds the slot
//!
//! Pool ── Connection (multiplexed, shared by many tasks) ── liveness
//! ```

mod backoff;
#[cfg(feature = "redis-cluster")]
mod cluster;
mod command;
mod eviction;
mod failure;
mod liveness;
mod pool;
mod route;
#[cfg(feature = "redis-sentinel")]
mod sentinel;
mod server;
#[cfg(feature = "redis-tls")]
mod tls;

#[cfg(feature = "redis-cluster")]
pub(super) use cluster::Cluster;
pub(super) use command::Command;
pub(super) use pool::{Connection, Pool, Settings, Upstream};
pub(super) use route::Route;
#[cfg(feature = "redis-sentinel")]
pub(super) use sentinel::Sentinels;
pub(super) use server::{Login, Server, shown};
#[cfg(feature = "redis-tls")]
pub use tls::Tls;
#[cfg(feature = "redis-tls")]
pub(super) use tls::failure as tls_failure;
