//! The behaviour of examples that run as processes.

mod llm_gateway;
mod observability;
mod outgoing;
mod tonic_quickstart;
