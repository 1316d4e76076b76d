//! The rules of descriptors, by domain.
//!
//! ```yaml
//! domains:
//!   edge:
//!     per-address: { descriptor: [remote_address], limits: [10/second, 1000/hour] }
//!     banned:      { descriptor: [remote_address=50.0.0.5], limits: 0/second }
//!     marketing:   { descriptor: [message_type=marketing, to_number], limits: 5/day }
//! ```
//!
//! A descriptor is a list of keys and values. It has at most one rule: the one whose `descriptor` has
//! the same keys in the same order, and the most specific values. `key=value` is more specific than
//! `key=prefix*`, which is more specific than `key`. Each combination of the values of keys without a
//! value, or with a `*`, is a subject with counters of its own.
//!
//! A request is decided under the rules of all its descriptors in one step.

mod compile;
mod rule;
mod selector;
mod tree;

pub use compile::compile;
pub use rule::{Charge, DomainRule, Domains, InvalidDomainRule};
