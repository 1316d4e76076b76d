//! Fixtures of the tests, such as servers that tests start and stop.

mod browser;
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
pub use postgres_server::PostgresServer;
pub use redis_server::{Bystander, RedisServer, connected};
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
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let random = RandomState::new().hash_one(0_u8);
        let port = 20_000 + u16::try_from(random % 12_000).expect("it is below 12 000");
        let is_free = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        // No port is returned twice. So a server that a test stops and restarts finds its port
        // free.
        if is_free && GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(port) {
            return port;
        }
    }
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
