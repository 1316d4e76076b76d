//! Rules in files, in YAML and TOML with one schema.

mod collections;
mod cost;
mod error;
mod keys;
mod parse;
mod rules_file;
mod scalars;
mod schema;
mod status;
mod subscription;
#[cfg(test)]
mod tests;
mod variables;
mod watcher;

pub use error::RulesFileError;
pub use rules_file::{RulesFile, RulesFileBuilder};
pub use schema::json_schema;
pub use status::RulesFileStatus;
