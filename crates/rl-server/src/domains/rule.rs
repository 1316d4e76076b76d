//! The rules of a domain as they are written in a file.

use std::fmt;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::one_or_many;

/// The rules of each domain by name, in the order of the file.
pub type Domains = IndexMap<String, IndexMap<String, DomainRule>>;

/// A rule for descriptors of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DomainRule {
    /// The keys of the descriptors to which the rule applies: `key`, `key=value`, or `key=prefix*`,
    /// where each `*` is any text. With `**`, all values that match share one counter.
    #[serde(skip_serializing_if = "Vec::is_empty", with = "one_or_many")]
    pub descriptor: Vec<String>,
    /// The conditions of a rule without `descriptor`, as expressions of CEL over `descriptors`. The
    /// rule applies to a request that satisfies all of them.
    #[serde(skip_serializing_if = "Vec::is_empty", with = "one_or_many")]
    pub when: Vec<String>,
    /// The values by which a rule without `descriptor` counts, as expressions of CEL. A request
    /// without one of the values is not counted.
    #[serde(skip_serializing_if = "Vec::is_empty", with = "one_or_many")]
    pub per: Vec<String>,
    /// The limits of each subject, or `records` for those of the consumer's records. None, for a
    /// descriptor that is allowed without limits.
    #[serde(skip_serializing_if = "Vec::is_empty", with = "one_or_many")]
    pub limits: Vec<String>,
    /// Whether the rule counts and reports, but denies nothing.
    #[serde(skip_serializing_if = "is_false")]
    pub shadow: bool,
    /// Whether responses describe the rule.
    #[serde(skip_serializing_if = "is_default")]
    pub disclosed: Disclosed,
    /// When the rule is charged.
    #[serde(skip_serializing_if = "is_default")]
    pub charge: Charge,
    /// The rules of the domain that do not count a request that this rule counts.
    #[serde(skip_serializing_if = "Vec::is_empty", with = "one_or_many")]
    pub replaces: Vec<String>,
}

/// Whether responses describe a rule: `true`, `false` or `name` in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "disclosed: expected true, false or name")]
pub enum Disclosed {
    /// Whether headers and statuses have its limits.
    Limits(bool),
    /// They have its limits and its name.
    Name(NameOfRule),
}

/// The word `name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NameOfRule {
    /// The word.
    Name,
}

impl Default for Disclosed {
    fn default() -> Self {
        Self::Limits(true)
    }
}

/// When a rule is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Charge {
    /// Before the request, which is denied if the cost exceeds a limit.
    #[default]
    Before,
    /// After the request, when its cost is known. A cost of 0, which the gateway sends before the
    /// request, denies the request if no unit is left.
    After,
}

/// A rule of a domain that is not valid.
#[derive(Clone, PartialEq, Eq)]
pub struct InvalidDomainRule {
    pub(super) domain: String,
    pub(super) rule: String,
    pub(super) reason: String,
}

impl fmt::Display for InvalidDomainRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, rule, reason } = self;
        write!(f, "domain {domain:?}, rule {rule:?}: {reason}")
    }
}

impl std::error::Error for InvalidDomainRule {}

rl_core::debug_as_display!(InvalidDomainRule);

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
