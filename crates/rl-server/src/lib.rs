//! A decision server for gateways.
//!
//! A gateway describes a request, and the server decides it with the rules of a file. The server
//! speaks the rate limit service of Envoy over gRPC, and HTTP for the gateways that ask a web
//! service.
//!
//! ```text
//! gateway ─► grpc/ or http/ ─► GatewayRequest ─► DecisionService ─► rl_core::adapter::HttpLimiter
//!                                    ▲                                          │
//!                                    │ descriptors                              ▼
//!                              domains/: the rule of each descriptor ◄─── rl_core::rules
//! ```

pub mod domains;
pub mod grpc;
pub mod http;
mod management;
mod one_or_many;
mod permits;
mod records;
mod request;
mod server;
mod service;
mod settings;
mod sources;

pub use permits::{PermitTable, Unsettled};
pub use records::RecordLimits;
pub use request::{
    Descriptor, Descriptors, GatewayRequest, Phase, RuleSubject, SelectedPart, Selection,
};
pub use server::{Server, StartError};
pub use service::{DecisionService, Reply};
pub use settings::Settings;
pub use sources::{Source, import};
