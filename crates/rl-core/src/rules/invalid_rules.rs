use std::fmt;

use crate::model::{Cost, Limit};
use crate::policy::InvalidPolicy;
use crate::store::Part;

/// The error for rules that a limiter cannot be built with.
///
/// Its text names the rule and the value, and says what is accepted.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidRules {
    /// There is no rule.
    Empty,
    /// The name of a rule is not valid.
    Name {
        /// The name.
        rule: String,
    },
    /// Two rules have the same name, or names that differ only in the case of letters.
    NameTwice {
        /// The name.
        rule: String,
    },
    /// The limits of a rule, or of one of its tiers, do not form a policy.
    Policy {
        /// The name of the rule.
        rule: String,
        /// The tier with these limits; `None` for the limits of the rule itself.
        tier: Option<String>,
        /// The reason.
        error: Box<InvalidPolicy>,
    },
    /// A rule names a tier twice.
    TierTwice {
        /// The name of the rule.
        rule: String,
        /// The name of the tier.
        tier: String,
    },
    /// The cost of a rule is more than its limits ever grant, so the rule would deny every request.
    Cost {
        /// The name of the rule.
        rule: String,
        /// The cost.
        cost: Cost,
        /// The limit that grants less than the cost at once.
        limit: Limit,
    },
    /// The final cost of a rule comes from the response, and its estimate is 0. No request would
    /// wait for an earlier one, because a cost of 0 is never denied.
    Estimate {
        /// The name of the rule.
        rule: String,
    },
    /// A match has a value that is not valid.
    Match {
        /// The name of the rule; `None` for the exemptions of the whole set.
        rule: Option<String>,
        /// The reason.
        error: InvalidMatch,
    },
    /// More rules count every request than a decision can have parts.
    TooMany {
        /// The names of these rules.
        rules: Vec<String>,
    },
}

impl InvalidRules {
    /// Returns the name of the rule that is not valid, if the error concerns one rule.
    #[must_use]
    pub fn rule(&self) -> Option<&str> {
        match self {
            Self::Name { rule }
            | Self::NameTwice { rule }
            | Self::Policy { rule, .. }
            | Self::TierTwice { rule, .. }
            | Self::Cost { rule, .. }
            | Self::Estimate { rule } => Some(rule),
            Self::Match { rule, .. } => rule.as_deref(),
            Self::Empty | Self::TooMany { .. } => None,
        }
    }
}

debug_as_display!(InvalidRules);

impl fmt::Display for InvalidRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("no rules: expected at least one"),
            Self::Name { rule } => {
                write!(f, "rule name {rule:?}: expected 1 to 64 characters of A-Z a-z 0-9 _ . -")
            }
            Self::NameTwice { rule } => {
                write!(f, "rule {rule:?} is defined twice: give one of the two another name")
            }
            Self::Policy { rule, tier, error } => {
                write!(f, "rule {rule:?}")?;
                if let Some(tier) = tier {
                    write!(f, ", tier {tier:?}")?;
                }
                match **error {
                    InvalidPolicy::Empty => f.write_str(" has no limits: expected at least one"),
                    _ => write!(f, ": {error}"),
                }
            }
            Self::TierTwice { rule, tier } => {
                write!(f, "rule {rule:?} has two tiers {tier:?}: give one of the two another name")
            }
            Self::Cost { rule, cost, limit } => write!(
                f,
                "rule {rule:?}: cost {cost}: expected at most {}, which limit {limit} grants at once",
                limit.capacity()
            ),
            Self::Estimate { rule } => write!(
                f,
                "rule {rule:?}: estimate 0: expected at least 1, because a request that costs 0 is \
                 never denied"
            ),
            Self::Match { rule: Some(rule), error } => write!(f, "rule {rule:?}: {error}"),
            Self::Match { rule: None, error } => write!(f, "exempt: {error}"),
            Self::TooMany { rules } => write!(
                f,
                "{} rules match every request ({}): expected at most {}; narrow their matches",
                rules.len(),
                rules.join(", "),
                Part::MAX
            ),
        }
    }
}

impl std::error::Error for InvalidRules {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Policy { error, .. } => Some(&**error),
            Self::Match { error, .. } => Some(error),
            Self::Empty
            | Self::Name { .. }
            | Self::NameTwice { .. }
            | Self::TierTwice { .. }
            | Self::Cost { .. }
            | Self::Estimate { .. }
            | Self::TooMany { .. } => None,
        }
    }
}

/// The error for a value of a [`Match`](super::Match) that is not valid.
#[derive(Clone, PartialEq, Eq)]
pub struct InvalidMatch {
    setting: &'static str,
    value: String,
    expected: String,
}

impl InvalidMatch {
    pub(super) fn new(setting: &'static str, value: &str, expected: impl Into<String>) -> Self {
        let value = value.chars().take(80).collect();
        Self { setting, value, expected: expected.into() }
    }

    /// Replaces the value that the error shows.
    #[cfg(feature = "rules-file")]
    pub(super) fn with_value(self, value: &str) -> Self {
        Self { value: value.chars().take(80).collect(), ..self }
    }
}

debug_as_display!(InvalidMatch);

impl fmt::Display for InvalidMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}: expected {}", self.setting, self.value, self.expected)
    }
}

impl std::error::Error for InvalidMatch {}
