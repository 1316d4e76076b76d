//! The behaviour of examples that run as processes.

mod llm_gateway;
mod tonic_quickstart;
