//! Contracts that cross crates, on real servers that the tests start themselves.

#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap has failed")]

mod algorithms;
mod architecture;
mod authority;
mod book;
mod capacity;
mod concurrency;
mod console;
mod example_programs;
mod gateways;
mod http_contract;
mod known_faults;
mod management;
mod observability;
mod outgoing_calls;
mod paths;
mod performance;
mod races;
mod rate_limit_service;
mod recipes;
mod records;
mod redis;
mod rules_file;
mod rules_on_grpc;
mod scenarios;
mod store_conformance;
mod twins;
