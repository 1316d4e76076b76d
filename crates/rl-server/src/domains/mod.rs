//! The rules of descriptors, by domain.
//!
//! ```yaml
//! domains:
//!   edge:
//!     per-address: { descriptor: [remote_address], limits: [10/second, 1000/hour] }
//!     banned:      { descriptor: [remote_address=50.0.0.5], limits: 0/second }
//!     marketing:   { descriptor: [message_type=marketing, to_number], limits: 5/day }
//!     writes:
//!       when: "descriptors[0].method != 'GET'"
//!       per: descriptors[0].user_id
//!       limits: 100/minute
//! ```
//!
//! A descriptor is a list of keys and values. It has at most one rule with `descriptor`: the one that
//! has the same keys in the same order, and the most specific values. `key=value` is more specific
//! than `key=prefix*`, which is more specific than `key`. Each combination of the values of keys
//! without a value, or with a `*`, is a subject with counters of its own. With `**` in place of `*`,
//! all values that match share one counter.
//!
//! A rule without `descriptor` counts each request of the domain that satisfies all its conditions in
//! `when`, under the values of `per`. Conditions and values are expressions of
//! [CEL](https://cel.dev) over `descriptors`, a list of maps. An expression that cannot be evaluated,
//! such as one of a missing entry, means that the rule does not count the request.
//!
//! With `limits: records`, the value of the only key without a value, or of `per`, is the id of a
//! consumer, whose limits are those of its records.
//!
//! A request is decided under all its rules in one step.
//!
//! # Files of other services
//!
//! ```text
//! envoy_files.rs: *.yaml of a folder ──┐
//! limitador_file.rs: limits.yaml ──────┼─► Domains ─► compile.rs ─► rl_core::rules::Rules
//! section.rs: `domains:` ──────────────┘      │
//!                                             └─► rule_file.rs: the text of a rule file
//! ```
//!
//! [`GatewayFiles`] follows the files of the other services while the server runs.

mod compile;
mod envoy_files;
mod expression;
mod gateway_files;
mod imported;
mod limitador_file;
mod rule;
mod rule_file;
mod section;
mod selector;
#[cfg(test)]
mod tests;
mod tree;

pub use compile::compile;
pub use gateway_files::{GatewayFiles, GatewayFilesStatus, GatewaySource};
pub use imported::Imported;
pub use rule::{Charge, Disclosed, DomainRule, Domains, InvalidDomainRule, NameOfRule};
pub use rule_file::to_rule_file;
pub use section::read_sections;
pub(crate) use selector::descriptor_realm;
