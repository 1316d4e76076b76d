//! Rules that a service stores outside the file, such as in a database. They apply together with
//! the rules of the file.

use super::parse::FileRules;
use super::scalars::{FromText, RuleName};
use super::schema::RuleText;
use super::yaml::{from_yaml_of, message};
use crate::rules::invalid_rules::InvalidRules;
use crate::rules::rule::Rule;
use crate::rules::rule_list::Rules;
use crate::rules::rule_set::RuleSet;
use crate::store::Namespace;

/// The beginning of a variable.
const VARIABLE: &str = "${";

/// The maximum number of values in the definition of a rule.
const MAX_VALUES: usize = 4_096;

/// A rule that a service stores outside the rule file.
///
/// [`RulesFile::apply_stored_rules`](super::RulesFile::apply_stored_rules) adds it to those of the
/// file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRule {
    name: String,
    definition: String,
    is_shadow: bool,
}

impl StoredRule {
    /// Creates a rule with this name. The definition is that of a rule in a rule file, as YAML or
    /// JSON, but without `shadow`. Variables are not replaced in it.
    #[must_use]
    pub fn new(name: impl Into<String>, definition: impl Into<String>) -> Self {
        Self { name: name.into(), definition: definition.into(), is_shadow: false }
    }

    /// Sets whether the rule counts and reports, but denies nothing.
    #[must_use]
    pub fn shadow(mut self, is_shadow: bool) -> Self {
        self.is_shadow = is_shadow;
        self
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the rule beside those of `file`.
    fn read(&self, file: &FileRules) -> Result<Rule, String> {
        RuleName::from_text(&self.name)?;
        if self.definition.trim().is_empty() {
            return Err("the definition is empty: expected at least `limits`".to_owned());
        }
        let at_place = |error: serde_saphyr::Error| match error.location() {
            Some(place) => {
                format!("line {}, column {}: {}", place.line(), place.column(), message(&error))
            }
            None => message(&error),
        };
        // An operator of the database must not read the variables of the service, such as its
        // passwords. The decoded text is checked, because YAML can escape the sign.
        let value: serde_json::Value =
            from_yaml_of(&self.definition, MAX_VALUES).map_err(at_place)?;
        if value.to_string().contains(VARIABLE) {
            let expected = "expected no ${, and $$ for a dollar sign";
            return Err(format!("variables are not replaced in stored rules: {expected}"));
        }
        let text: RuleText = from_yaml_of(&self.definition, MAX_VALUES).map_err(at_place)?;
        if text.shadow.is_some() {
            return Err("shadow: expected as a setting of the stored rule, not in its text".into());
        }
        if let Some(check) = &file.additions.check_stored {
            check(&self.name, &self.definition)?;
        }
        let mut rule = file.rule(&self.name, text).map_err(|error| error.reason)?;
        (rule.is_shadow, rule.is_stored) = (self.is_shadow, true);
        rule.definition = Some(self.definition.as_str().into());
        Ok(rule)
    }
}

/// A stored rule that does not apply, because it is not valid with the rules of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedRule {
    /// The name of the rule.
    pub name: String,
    /// The reason for which it does not apply.
    pub reason: String,
}

/// Returns the rules of `file` with the stored rules. Also returns the stored rules that are left
/// out because they are not valid with the others.
///
/// The file applies even if a stored rule is not valid. Otherwise a row of the database could keep
/// every change of the file from applying.
pub(super) fn with_stored(file: &FileRules, stored: &[StoredRule]) -> (Rules, Vec<RefusedRule>) {
    let (mut further, mut refused) = (Vec::<Rule>::new(), Vec::new());
    let mut refuse = |name: &str, reason: String| {
        refused.push(RefusedRule { name: name.to_owned(), reason });
    };
    for one in stored {
        let is_taken = |rule: &Rule| rule.name() == one.name;
        if file.rules.rules.iter().chain(&further).any(is_taken) {
            refuse(&one.name, "the name is taken by another rule".to_owned());
            continue;
        }
        match one.read(file) {
            Ok(rule) => further.push(rule),
            Err(reason) => refuse(&one.name, reason),
        }
    }
    loop {
        let mut rules = file.rules.clone();
        rules.rules.extend(further.iter().cloned());
        match RuleSet::new(&rules, &Namespace::default()) {
            Err(error) if !further.is_empty() => {
                let is_named = |rule: &Rule| match &error {
                    InvalidRules::TooMany { rules } => rules.iter().any(|name| name == rule.name()),
                    error => error.rule() == Some(rule.name()),
                };
                // The rules of the file were checked before, so one of the others is the cause.
                let place = further.iter().rposition(is_named).unwrap_or(further.len() - 1);
                refuse(further.remove(place).name(), error.to_string());
            }
            _ => return (rules, refused),
        }
    }
}
