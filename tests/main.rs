//! Contracts that cross crates, on real servers that the tests start themselves.

mod scenarios;
mod store_conformance;
mod twins;
