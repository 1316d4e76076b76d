//! The rate limit services of Envoy and Kuadrant over gRPC.

mod envoy;
mod kuadrant;
pub mod messages;
mod services;
#[cfg(test)]
mod tests;
mod unary;

pub use envoy::EnvoyService;
pub(crate) use envoy::response;
pub use kuadrant::KuadrantService;
pub use services::{GrpcServices, Health, services};
