//! Fixtures of the tests, such as servers that tests start and stop.

mod browser;
mod database_server;
mod mariadb_server;
mod openid_provider;
mod postgres_server;
mod redis_server;
mod redis_topology;
pub mod scenario;
pub mod web;

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

pub use browser::Browser;
pub use database_server::{DatabaseServer, on_every_server};
pub use mariadb_server::MariadbServer;
pub use openid_provider::OpenIdProvider;
pub use postgres_server::PostgresServer;
pub use redis_server::{Bystander, Engine, RedisServer, connected, redis_program};
pub use redis_topology::{RedisCluster, Sentinels};

/// Returns whether this is a run of `tests/run --soak`, with the full load and strict times.
#[must_use]
pub fn is_soak() -> bool {
    std::env::var_os("RL_SOAK").is_some()
}

/// Returns a port on which nothing listens. It is below the ports that the system assigns to
/// outgoing connections. Otherwise a connection could take the port before the server does.
///
/// # Panics
///
/// Never panics, because every port is below 32 000.
#[must_use]
pub fn free_port() -> u16 {
    loop {
        let port = 20_000 + random_below_12_000();
        if is_free(port) && reserve(port) {
            return port;
        }
    }
}

/// Returns a port for a member of a cluster. Nothing listens on it, nor on the port of the member's
/// bus, which is 10 000 above it. Redis before 7.0 cannot use another port for the bus.
///
/// # Panics
///
/// Never panics, because every port is below 32 000.
#[must_use]
pub fn free_port_of_member() -> u16 {
    loop {
        let port = 10_000 + random_below_12_000();
        let bus = port + 10_000;
        if is_free(port) && is_free(bus) && reserve(bus) && reserve(port) {
            return port;
        }
    }
}

fn random_below_12_000() -> u16 {
    let random = RandomState::new().hash_one(0_u8);
    u16::try_from(random % 12_000).expect("it is below 12 000")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Reserves a port for this process. Returns whether it was not reserved yet. So a server that a
/// test stops and restarts finds its port free.
fn reserve(port: u16) -> bool {
    static RESERVED: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    RESERVED.lock().unwrap_or_else(PoisonError::into_inner).insert(port)
}

/// The first program of the README, which must compile as it is printed.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}

/// The recipes of the guide compile, and its test passes.
#[cfg(doctest)]
#[doc = include_str!("../../crates/rl-core/docs/GUIDE.md")]
mod guide {}

/// The programs of the cookbook compile, and its test passes.
#[cfg(doctest)]
#[doc = include_str!("../../crates/rl-core/docs/COOKBOOK.md")]
mod cookbook {}

/// The programs for users of other limiters compile, and run.
#[cfg(doctest)]
#[doc = include_str!("../../crates/rl-core/docs/MIGRATION.md")]
mod migration {}
