//! The behaviour of examples that run as processes.

mod llm_gateway;
mod observability;
mod tonic_quickstart;
