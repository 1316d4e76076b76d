//! What the tests stand on: servers that they start and stop themselves.

mod redis_server;
mod redis_topology;
pub mod scenario;
pub mod web;

pub use redis_server::{Bystander, RedisServer, free_port};
pub use redis_topology::{RedisCluster, Sentinels};

/// The first program of the README compiles as it is printed.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}
