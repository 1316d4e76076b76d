//! The rules of the database, beside those of the service's file.

use std::sync::Arc;

use axum::http::StatusCode;
use rl_core::rules::{RefusedRule, RulesFile};
use rl_records::{InvalidField, RuleContent};
use tokio::sync::Semaphore;

use crate::context::Context;
use crate::error::ApiError;

/// The rules of the database, for a service that applies them.
pub(crate) struct StoredRules<'a> {
    file: &'a RulesFile,
    refused: Vec<RefusedRule>,
    checks: &'a Arc<Semaphore>,
}

impl<'a> StoredRules<'a> {
    /// Returns the rules.
    ///
    /// # Errors
    ///
    /// Returns 404 if the service does not apply rules of the database.
    pub(crate) fn of(context: &'a Context) -> Result<Self, ApiError> {
        let none = "this service does not apply rules of the database";
        let file = context.rules_file.as_ref();
        let file = file.ok_or_else(|| ApiError::new(StatusCode::NOT_FOUND, none))?;
        let refused = file.status().refused_rules().to_vec();
        Ok(Self { file, refused, checks: &context.rule_checks })
    }

    /// Returns the reason for which a rule does not apply, if it does not.
    pub(crate) fn problem(&self, name: &str) -> Option<String> {
        let refused = self.refused.iter().find(|refused| refused.name == name);
        refused.map(|refused| refused.reason.clone())
    }
}

/// The reason for which a rule is not stored.
#[derive(Debug)]
pub(crate) enum RuleProblem {
    /// A field that the database does not accept.
    Invalid(InvalidField),
    /// The reason for which the service would not apply the definition.
    Refused(String),
}

impl From<RuleProblem> for ApiError {
    fn from(problem: RuleProblem) -> Self {
        match problem {
            RuleProblem::Invalid(field) => field.into(),
            RuleProblem::Refused(reason) => {
                let message = format!("definition: {reason}");
                Self::invalid_as("definition", "a rule as in a rule file", message)
            }
        }
    }
}

/// Checks a rule beside the other rules of the service.
///
/// # Errors
///
/// Returns the reason for which the rule cannot be stored, or would not apply.
pub(crate) async fn checked(
    stored: &StoredRules<'_>,
    content: RuleContent,
) -> Result<RuleContent, RuleProblem> {
    let content = content.checked().map_err(RuleProblem::Invalid)?;
    let (file, rule) = (stored.file.clone(), content.to_rule());
    // The check compiles all rules. Concurrent checks would occupy all threads that may block.
    let permit = stored.checks.clone().acquire_owned().await;
    let check = move || {
        // The thread holds the permit, even if the request is dropped.
        let _permit = permit;
        file.check_stored_rule(&rule)
    };
    match tokio::task::spawn_blocking(check).await {
        Ok(Ok(())) => Ok(content),
        Ok(Err(reason)) => Err(RuleProblem::Refused(reason)),
        Err(_) => Err(RuleProblem::Refused("the check of the rule has failed".to_owned())),
    }
}
