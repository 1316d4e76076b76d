//! What the tests stand on: servers that they start and stop themselves.

mod redis_server;
mod redis_topology;
pub mod scenario;
pub mod web;

pub use redis_server::{Bystander, RedisServer, free_port};
pub use redis_topology::{RedisCluster, Sentinels};

/// Whether `tests/run --soak` runs: the full load, and strict times.
#[must_use]
pub fn is_soak() -> bool {
    std::env::var_os("RL_SOAK").is_some()
}

/// The first program of the README compiles as it is printed.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}
