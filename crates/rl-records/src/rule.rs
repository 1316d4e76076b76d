use rl_core::rules::StoredRule;
use serde_json::{Value, json};

use crate::error::InvalidField;
use crate::history::HistoryValue;
use crate::revision::Revisioned;

/// The maximum length of a definition, in bytes.
const MAX_DEFINITION: usize = 16 * 1024;

/// The content of a rule: which requests match, which subject they count under, and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleContent {
    /// The name: 1 to 64 characters of A-Z a-z 0-9 _ . -, unique. The name of a rule never changes,
    /// because it owns the counters.
    pub name: String,
    /// The definition, as in a rule file, of at most 16 KiB. It has no `shadow`.
    pub definition: String,
    /// Whether the rule counts and reports, but denies nothing.
    pub is_shadow: bool,
}

impl RuleContent {
    /// Checks the name, and the length of the definition.
    ///
    /// Only a limiter knows whether the definition is valid beside its other rules:
    /// [`RulesFile::check_stored_rule`](rl_core::rules::RulesFile::check_stored_rule).
    ///
    /// # Errors
    ///
    /// Returns an error that names the first field that cannot be stored.
    pub fn checked(self) -> Result<Self, InvalidField> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if !(1..=64).contains(&self.name.len()) || !self.name.bytes().all(fits) {
            let expected = "1 to 64 characters of A-Z a-z 0-9 _ . -";
            return Err(InvalidField::new("name", &self.name, expected));
        }
        let length = self.definition.len();
        if !(1..=MAX_DEFINITION).contains(&length) || self.definition.contains('\0') {
            let expected = "1 to 16384 bytes of text";
            return Err(InvalidField::new("definition", format!("{length} bytes"), expected));
        }
        Ok(self)
    }

    /// Returns the rule as a limiter takes it.
    #[must_use]
    pub fn to_rule(&self) -> StoredRule {
        StoredRule::new(&*self.name, &*self.definition).shadow(self.is_shadow)
    }
}

/// A rule in a database.
pub type RuleDefinition = Revisioned<RuleContent>;

impl HistoryValue for RuleContent {
    fn to_json(&self) -> Value {
        let Self { name, definition, is_shadow } = self;
        json!({ "name": name, "definition": definition, "shadow": is_shadow })
    }

    fn from_json(json: &Value) -> Option<Self> {
        Some(Self {
            name: json["name"].as_str()?.to_owned(),
            definition: json["definition"].as_str()?.to_owned(),
            is_shadow: json["shadow"].as_bool()?,
        })
    }
}
