//! Management of rate limits over HTTP: an axum [`Router`](axum::Router) that any service can mount.
//!
//! It reads and changes the records of `rl-records`, tells what they add up to and what has been
//! used, and resets counters. Reading never charges a counter.
//!
//! Nobody is let in unless it is said who: without an [`Authorize`] every call is answered with 401.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod access;

mod backend;
mod error;
mod wire;

mod admin;
mod audit;
mod read;
mod routes;

pub mod console;

pub use access::{Actor, Authorize, BearerTokens, Role, Roles};
pub use admin::{Admin, AdminBuilder};
pub use backend::Backend;
pub use error::ApiError;
