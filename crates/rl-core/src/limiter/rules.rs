//! Operations of a limiter with rules.

use std::sync::Arc;

use super::administration::ResetError;
use super::waiting::WaitingRequest;
use super::{Permit, RateLimiter};
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, FailureKind, StoreError, Subject};
use crate::rules::{OverLimit, RequestParts, RuleSet};
use crate::store::StoreFuture;

impl RateLimiter {
    /// Returns the rules that apply now, if the limiter has rules.
    pub(crate) fn rules(&self) -> Option<Arc<RuleSet>> {
        self.pipeline.rules.as_ref().map(|rules| rules.current())
    }

    /// Decides a request under rules. While the rules that deny it let it wait, it waits in a
    /// queue.
    pub(crate) fn decide_rules_or_wait(
        &self,
        parts: &Arc<RequestParts>,
        default: OverLimit,
        reserves: bool,
    ) -> MaybeReady<Decision> {
        WaitingRequest::of_rules(&self.pipeline, parts, default, reserves).check()
    }

    /// Returns the permit for a request under rules that was decided before.
    pub(crate) fn permit_of_rules(&self, parts: &Arc<RequestParts>, decision: Decision) -> Permit {
        Permit::of_rules(&self.pipeline, parts, decision)
    }

    /// Returns whether the limiter has rules.
    pub(crate) fn has_rules(&self) -> bool {
        self.pipeline.rules.is_some()
    }

    /// Charges `cost` units to the limits of `subject` under one rule, or to none of them.
    ///
    /// It decides what a layer cannot know, such as the user name in the body of a request. The
    /// tier of the subject is that of [`tier_by`](crate::rules::Rules::tier_by). The match, the
    /// exemptions and the cost of the rule do not apply.
    ///
    /// If there is no rule called `rule`, the failure policy decides, as for
    /// [`FailureKind::Unsupported`].
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::rules::{Rule, Rules};
    /// use rl_core::key::Identified;
    /// use rl_core::{Limit, RateLimiter, Subject};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let users = Rule::named("users").per(Identified).limit(Limit::per_minute(5));
    /// let limiter = RateLimiter::builder().rules(Rules::new().rule(users)).build()?;
    ///
    /// let alice = Subject::user("alice");
    /// assert!(limiter.check_rule("users", &alice, 1).await.is_allowed());
    /// let usage = limiter.usage_of_rule("users", &alice).await?;
    /// assert_eq!(usage.limits().next().map(|limit| limit.used()), Some(1));
    /// limiter.reset_rule("users", &alice).await?;
    /// # Ok(()) }
    /// ```
    pub fn check_rule(
        &self,
        rule: &str,
        subject: &Subject,
        cost: impl Into<Cost>,
    ) -> MaybeReady<Decision> {
        let (rules, cost) = (self.rules(), cost.into());
        match rules.as_ref().and_then(|rules| rules.part_of_rule(rule, subject, cost)) {
            Some(part) => self.check_parts(&[part]),
            None => {
                let origin = self.on_failure(FailureKind::Unsupported);
                let origin = origin.origin(FailureKind::Unsupported);
                MaybeReady::ready(Decision::undecided(cost, origin))
            }
        }
    }

    /// Returns the status of each limit of `subject` under one rule. Charges nothing.
    ///
    /// # Errors
    ///
    /// Resolves to an error if there is no rule called `rule`, or if the store fails.
    pub fn usage_of_rule(&self, rule: &str, subject: &Subject) -> StoreFuture<Decision> {
        let rules = self.rules();
        match rules.as_ref().and_then(|rules| rules.part_of_rule(rule, subject, Cost::ZERO)) {
            Some(part) => self.usage_of_part(part),
            None => MaybeReady::ready(Err(unknown(rule))),
        }
    }

    /// Resets all limits of `subject` under one rule to unused.
    ///
    /// # Errors
    ///
    /// Resolves to an error if there is no rule called `rule`, or if the store fails.
    pub fn reset_rule(&self, rule: &str, subject: &Subject) -> MaybeReady<Result<(), ResetError>> {
        let rules = self.rules();
        match rules.as_ref().and_then(|rules| rules.part_of_rule(rule, subject, Cost::ZERO)) {
            Some(part) => self.reset_part(part, None),
            None => MaybeReady::ready(Err(unknown(rule).into())),
        }
    }
}

fn unknown(rule: &str) -> StoreError {
    let rule: String = rule.chars().take(80).collect();
    let detail = format!("rule {rule:?} is not defined: expected the name of a rule");
    StoreError::new(FailureKind::Unsupported).with_detail(detail)
}
