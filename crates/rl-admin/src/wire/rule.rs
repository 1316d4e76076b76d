use rl_records::{RuleContent, RuleDefinition};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::date::Date;

/// A rule in a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleUpdate {
    /// The rule as in a rule file, without `shadow`, as YAML or JSON.
    #[schema(
        min_length = 1,
        max_length = 16384,
        example = "match: { method: POST, path: /login }\nper: address\nlimits: 5/minute"
    )]
    definition: String,
    /// Whether the rule counts and reports, but denies nothing.
    #[serde(default)]
    #[schema(required = false)]
    shadow: bool,
}

impl RuleUpdate {
    pub(crate) fn into_content(self, name: &str) -> RuleContent {
        let Self { definition, shadow } = self;
        RuleContent { name: name.to_owned(), definition, is_shadow: shadow }
    }
}

/// The content of a rule.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RuleState {
    name: String,
    /// The rule as in a rule file, without `shadow`.
    definition: String,
    /// Whether the rule counts and reports, but denies nothing.
    shadow: bool,
}

impl RuleState {
    pub(crate) fn of(content: RuleContent) -> Self {
        let RuleContent { name, definition, is_shadow } = content;
        Self { name, definition, shadow: is_shadow }
    }
}

/// A rule of the database.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Rule {
    #[serde(flatten)]
    content: RuleState,
    /// The reason for which this service does not apply the rule; `null` if it applies.
    problem: Option<String>,
    created_by: String,
    updated_by: String,
    created_at: Date,
    updated_at: Date,
    /// The revision, which is the `ETag`.
    revision: i64,
}

impl Rule {
    pub(crate) fn of(rule: RuleDefinition, problem: Option<String>) -> Self {
        Self {
            content: RuleState::of(rule.content),
            problem,
            created_by: rule.created_by,
            updated_by: rule.updated_by,
            created_at: Date(rule.created_at),
            updated_at: Date(rule.updated_at),
            revision: rule.revision,
        }
    }
}

/// A page of a list of rules.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Rules {
    /// The rules, ordered by name.
    pub(crate) rules: Vec<Rule>,
    /// The value of `after` for the next page; `null` on the last page.
    pub(crate) next: Option<String>,
}
