//! Rules in files, in YAML and TOML with one schema.
//!
//! ```text
//! disk ─► stability ─► reader ─► thread ─► followed ─► rules_file
//!                        │  one thread reads            handles of limiters and services
//!                        ▼
//!                      parse ─► schema, scalars, limits, keys, …; known_keys
//!
//! followed ─► stored_rules ─► parse
//! ```

mod collections;
mod cost;
mod definitions;
mod disk;
mod error;
mod followed;
mod keys;
mod known_keys;
mod limits;
mod parse;
mod reader;
mod rules_file;
mod scalars;
mod schema;
mod stability;
mod stored_rules;
#[cfg(test)]
mod tests;
mod thread;
mod variables;
mod yaml;

pub use error::RulesFileError;
pub use followed::RulesFileStatus;
pub use rules_file::{RulesFile, RulesFileBuilder};
pub use schema::json_schema;
pub use stored_rules::{RefusedRule, StoredRule};
