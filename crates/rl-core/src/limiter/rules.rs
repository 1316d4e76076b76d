//! Operations of a limiter with rules.

use std::sync::Arc;
use std::time::Duration;

use super::administration::ResetError;
use super::operation::Operation;
use super::rule_policies::{RequiredLookups, find_policies};
use super::waiting::WaitingRequest;
use super::{Permit, RateLimiter};
use crate::decision::{Decision, Origin};
use crate::key::RequestInfo;
use crate::maybe_ready::{MaybeReady, both, done};
use crate::model::{Cost, FailureKind, Mode, StoreError, Subject};
use crate::rules::{CountingRule, OverLimit, RequestParts, RuleSet};
use crate::store::StoreFuture;

impl RateLimiter {
    /// Returns the rules that apply now, if the limiter has rules.
    pub(crate) fn rules(&self) -> Option<Arc<RuleSet>> {
        self.pipeline.rules.as_ref().map(|rules| rules.current())
    }

    /// Decides a request under rules. If the rules that deny it let requests wait, it waits in a
    /// queue. `default` applies to rules without a setting of their own.
    pub(crate) fn decide_rules(
        &self,
        parts: &Arc<RequestParts>,
        default: OverLimit,
        reserves: bool,
    ) -> MaybeReady<Decision> {
        if !self.is_enabled() {
            return self.decide_disabled(parts.main(), Mode::Check);
        }
        self.with_policies(parts, RequiredLookups::Enforced, move |this, parts, found| {
            let deadline = match found {
                Ok(deadline) => deadline,
                Err(error) => {
                    return this.decide_without_policies(parts.main(), Mode::Check, &error);
                }
            };
            if parts.may(default, |over_limit| matches!(over_limit, OverLimit::Wait { .. })) {
                let operation = this.pipeline.operation(Mode::Check);
                let operation = Operation { deadline, reserves, ..operation };
                return WaitingRequest::of_rules(&this.pipeline, parts, default, operation).check();
            }
            this.decide_parts_until(parts, Mode::Check, deadline, reserves)
        })
    }

    /// Allows a request because the limiter is switched off. Looks up no policy.
    fn decide_disabled(
        &self,
        (subject, cost): (&Subject, Cost),
        mode: Mode,
    ) -> MaybeReady<Decision> {
        let operation = self.pipeline.operation(mode);
        self.pipeline.decide_without_store(subject, cost, &operation, Origin::Disabled)
    }

    /// Decides a request under rules whose policies were not found.
    fn decide_without_policies(
        &self,
        (subject, cost): (&Subject, Cost),
        mode: Mode,
        error: &StoreError,
    ) -> MaybeReady<Decision> {
        let operation = self.pipeline.operation(mode);
        self.pipeline.decide_without_policy(subject, cost, &operation, error)
    }

    /// Decides a request under rules until the deadline, without waiting in a queue.
    fn decide_parts_until(
        &self,
        parts: &RequestParts,
        mode: Mode,
        deadline: Duration,
        reserves: bool,
    ) -> MaybeReady<Decision> {
        let operation = Operation { deadline, reserves, ..self.pipeline.operation(mode) };
        self.pipeline.decide_parts(&parts.parts(), &operation)
    }

    /// Continues with `then` when the policies of `parts` are known. `then` gets the time that is
    /// left until the deadline, or the error of a look-up.
    fn with_policies<T: Send + 'static>(
        &self,
        parts: &Arc<RequestParts>,
        required: RequiredLookups,
        then: impl FnOnce(&Self, &Arc<RequestParts>, Result<Duration, StoreError>) -> MaybeReady<T>
        + Send
        + 'static,
    ) -> MaybeReady<T> {
        match find_policies(&self.pipeline, parts, required) {
            MaybeReady::Ready(Some(found)) => then(self, parts, found),
            later => {
                let (this, parts) = (self.clone(), Arc::clone(parts));
                MaybeReady::later(async move {
                    let found = later.await;
                    then(&this, &parts, found).await
                })
            }
        }
    }

    /// Returns the permit for a request under rules that was decided before.
    pub(crate) fn permit_of_rules(&self, parts: &Arc<RequestParts>, decision: Decision) -> Permit {
        Permit::of_rules(&self.pipeline, parts, decision)
    }

    /// Returns whether the limiter has rules.
    pub(crate) fn has_rules(&self) -> bool {
        self.pipeline.rules.is_some()
    }

    /// Returns the names of the rules that apply now, in their order. Returns `None` if the limiter
    /// has no rules.
    #[must_use]
    pub fn rule_names(&self) -> Option<Vec<String>> {
        Some(self.rules()?.names().map(ToOwned::to_owned).collect())
    }

    /// Returns the names of the rules in [shadow](crate::rules::Rule::shadow), which deny nothing.
    #[must_use]
    pub fn rule_names_in_shadow(&self) -> Vec<String> {
        let in_shadow =
            |rules: Arc<RuleSet>| rules.names_in_shadow().map(ToOwned::to_owned).collect();
        self.rules().map_or_else(Vec::new, in_shadow)
    }

    /// Returns the rules that may count one of `subjects`, in their order, for reports about these
    /// subjects. The extractors of a rule say which subjects they may return: see
    /// [`KeyExtractor::counts`](crate::key::KeyExtractor::counts).
    ///
    /// If `request` is given, the rules that do not match it are left out. A rule without extractors
    /// counts [`Subject::global`].
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::key::{ClientAddress, Header};
    /// use rl_core::rules::{Rule, Rules};
    /// use rl_core::{Limit, RateLimiter, Realm, Subject};
    ///
    /// let consumers = Rule::named("consumers").per(Header::new("x-consumer", Realm::Consumer)?);
    /// let addresses = Rule::named("addresses").per(ClientAddress::default());
    /// let rules = [consumers, addresses, Rule::named("fleet")];
    /// let rules = rules.into_iter().fold(Rules::new(), |rules, rule| rules.rule(rule.limit(Limit::per_minute(5))));
    /// let limiter = RateLimiter::builder().rules(rules).build()?;
    ///
    /// let subject = Subject::consumer("abc123");
    /// let names = |subjects: &[Subject]| -> Vec<_> {
    ///     limiter.rules_of(subjects, None).into_iter().map(|rule| rule.name).collect()
    /// };
    /// assert_eq!(names(&[subject.clone()]), ["consumers"]);
    /// assert_eq!(names(&[subject, Subject::global()]), ["consumers", "fleet"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn rules_of(
        &self,
        subjects: &[Subject],
        request: Option<&dyn RequestInfo>,
    ) -> Vec<CountingRule> {
        self.rules().map_or_else(Vec::new, |rules| rules.rules_of(subjects, request))
    }

    /// Charges `cost` units to the limits of `subject` under one rule, or to none of them.
    ///
    /// Use it if a layer cannot know the subject, such as the user name in the body of a request.
    /// The tier of the subject is that of [`tier_by`](crate::rules::Rules::tier_by). The match, the
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
        self.decide_under_rule(rule, None, subject, cost.into(), Mode::Check)
    }

    /// Decides whether `cost` units would be granted to `subject` under one rule now. Charges
    /// nothing.
    pub fn peek_rule(
        &self,
        rule: &str,
        subject: &Subject,
        cost: impl Into<Cost>,
    ) -> MaybeReady<Decision> {
        self.decide_under_rule(rule, None, subject, cost.into(), Mode::Peek)
    }

    /// Decides like [`peek_rule`](Self::peek_rule), for a request with a tier of this name in its
    /// extensions.
    pub fn peek_rule_in_tier(
        &self,
        rule: &str,
        tier: &str,
        subject: &Subject,
        cost: impl Into<Cost>,
    ) -> MaybeReady<Decision> {
        self.decide_under_rule(rule, Some(tier), subject, cost.into(), Mode::Peek)
    }

    fn decide_under_rule(
        &self,
        rule: &str,
        tier: Option<&str>,
        subject: &Subject,
        cost: Cost,
        mode: Mode,
    ) -> MaybeReady<Decision> {
        let rules = self.rules();
        if !self.is_enabled() {
            return self.decide_disabled((subject, cost), mode);
        }
        if let Some(set) = &rules
            && tier.is_none()
            && let Some(part) = set.part_of_rule(rule, subject, cost)
        {
            let label = set.label_of_rule(rule);
            let decision = self.decide_parts(&[part], mode, false);
            return decision.map(move |decision| match label {
                Some(label) => decision.labelled(label),
                None => decision,
            });
        }
        let parts = rules.and_then(|rules| rules.parts_of_rule(rule, tier, subject, cost));
        let Some(parts) = parts else {
            return self.decide_without_policies((subject, cost), mode, &unknown(rule));
        };
        let required = RequiredLookups::Enforced;
        self.with_policies(&Arc::new(parts), required, move |this, parts, found| match found {
            Ok(deadline) => {
                let decision = this.decide_parts_until(parts, mode, deadline, false);
                let parts = Arc::clone(parts);
                decision.map(|decision| decision.labelled(parts))
            }
            Err(error) => this.decide_without_policies(parts.main(), mode, &error),
        })
    }

    /// Returns the status of each limit of `subject` under one rule. Charges nothing.
    ///
    /// # Errors
    ///
    /// Resolves to an error if there is no rule called `rule`, or if the store fails.
    pub fn usage_of_rule(&self, rule: &str, subject: &Subject) -> StoreFuture<Decision> {
        self.usage_under_rule(rule, None, subject)
    }

    /// Returns the status of each limit of `subject` under one rule, for requests with a tier
    /// of this name in their extensions. Charges nothing.
    ///
    /// The limits of a rule and of its tiers share counters if they have the same algorithm and
    /// period. So the same use may be above the limits of the rule and below those of the tier.
    ///
    /// # Errors
    ///
    /// Resolves to an error if there is no rule called `rule`, or if the store fails.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::key::Identified;
    /// use rl_core::rules::{Rule, Rules};
    /// use rl_core::{Limit, RateLimiter, Subject};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let clients = Rule::named("clients").per(Identified).limit(Limit::per_minute(5));
    /// let rules = Rules::new().rule(clients.tier("pro", [Limit::per_minute(50)]));
    /// let limiter = RateLimiter::builder().rules(rules).build()?;
    ///
    /// let alice = Subject::user("alice");
    /// limiter.check_rule("clients", &alice, 2).await;
    /// let usage = limiter.usage_of_rule_in_tier("clients", "pro", &alice).await?;
    /// assert_eq!(usage.limits().map(|limit| (limit.used(), limit.max())).next(), Some((2, 50)));
    /// # Ok(()) }
    /// ```
    pub fn usage_of_rule_in_tier(
        &self,
        rule: &str,
        tier: &str,
        subject: &Subject,
    ) -> StoreFuture<Decision> {
        self.usage_under_rule(rule, Some(tier), subject)
    }

    fn usage_under_rule(
        &self,
        rule: &str,
        tier: Option<&str>,
        subject: &Subject,
    ) -> StoreFuture<Decision> {
        let rules = self.rules();
        let parts = rules.and_then(|rules| rules.parts_of_rule(rule, tier, subject, Cost::ZERO));
        let Some(parts) = parts else {
            return MaybeReady::ready(Err(unknown(rule)));
        };
        self.with_policies(&Arc::new(parts), RequiredLookups::All, |this, parts, found| {
            match (found, &parts.parts()[..]) {
                (Err(error), _) => MaybeReady::ready(Err(error)),
                (Ok(_), [part]) => {
                    let usage = this.usage_of_part(*part);
                    let parts = Arc::clone(parts);
                    usage.map(|usage| usage.map(|usage| usage.labelled(parts)))
                }
                (Ok(_), _) => {
                    MaybeReady::ready(Ok(Decision::undecided(Cost::ZERO, Origin::Unlimited)))
                }
            }
        })
    }

    /// Resets all limits of `subject` under one rule to unused, also those of the tiers of the rule.
    ///
    /// # Errors
    ///
    /// Resolves to an error if there is no rule called `rule`, or if the store fails.
    pub fn reset_rule(&self, rule: &str, subject: &Subject) -> MaybeReady<Result<(), ResetError>> {
        self.reset_under_rule(rule, subject, None)
    }

    /// Resets the limit called `name` of `subject` under one rule. It may be a limit of a tier.
    ///
    /// # Errors
    ///
    /// Resolves to an error if there is no rule called `rule`, if no limit of the subject or of a
    /// tier has this name there, or if the store fails.
    pub fn reset_limit_of_rule(
        &self,
        rule: &str,
        subject: &Subject,
        name: &str,
    ) -> MaybeReady<Result<(), ResetError>> {
        self.reset_under_rule(rule, subject, Some(name.to_owned()))
    }

    fn reset_under_rule(
        &self,
        rule: &str,
        subject: &Subject,
        name: Option<String>,
    ) -> MaybeReady<Result<(), ResetError>> {
        let rules = self.rules();
        let parts = rules.and_then(|rules| rules.parts_of_rule(rule, None, subject, Cost::ZERO));
        let Some(parts) = parts else {
            return MaybeReady::ready(Err(unknown(rule).into()));
        };
        self.with_policies(&Arc::new(parts), RequiredLookups::All, |this, parts, found| {
            if let Err(error) = found {
                return MaybeReady::ready(Err(error.into()));
            }
            // A request may have had any tier in its extensions.
            let parts = parts.parts_of_each_tier();
            let Some(name) = name else {
                return this.reset_parts(&parts).map(|reset| reset.map_err(ResetError::Store));
            };
            let mut named =
                parts.iter().filter(|part| part.policy.position(&name).is_some()).peekable();
            if named.peek().is_none() {
                return MaybeReady::ready(Err(ResetError::UnknownLimit(name)));
            }
            named.map(|part| this.reset_part(*part, Some(&name))).fold(done(), both)
        })
    }
}

fn unknown(rule: &str) -> StoreError {
    let rule: String = rule.chars().take(80).collect();
    let detail = format!("rule {rule:?} is not defined: expected the name of a rule");
    StoreError::new(FailureKind::Unsupported).with_detail(detail)
}
