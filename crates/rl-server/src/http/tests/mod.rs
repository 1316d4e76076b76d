//! Calls of the router, without a connection and over one.

mod call;
mod checks;
mod connections;
mod failing_store;
mod gateways;
mod permits;
