//! The rate limit services of Envoy and Kuadrant over gRPC.

mod envoy;
pub mod messages;
#[cfg(test)]
mod tests;
mod unary;

pub use envoy::EnvoyService;
pub(crate) use envoy::response;
