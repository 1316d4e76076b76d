//! The counters of a subject, under all rules that count it.
//!
//! A limiter without rules is treated like one rule without a name, which counts every subject.

use std::collections::BTreeMap;

use rl_core::key::CountedAs;
use rl_core::rules::CountingRule;
use rl_core::{
    Decision, FailureKind, LimiterRequest, Policy, RateLimiter, Realm, ResetError, StoreError,
    Subject,
};
use rl_records::ActiveLimits;

use crate::access::Actor;
use crate::audit;
use crate::context::Context;
use crate::error::ApiError;
use crate::wire::{all_periods, joined};

/// The rules that count a subject.
pub(crate) struct SubjectRules<'a> {
    context: &'a Context,
    pub(crate) subject: Subject,
    /// The rules, in their order. The rule of a limiter without rules is `None`.
    pub(crate) rules: Vec<Option<CountingRule>>,
    /// The names of the rules that count the subject only together with another one. Their counters
    /// cannot be found.
    pub(crate) pairs: Vec<String>,
    /// The tier of the requests that a report is about, as an authentication layer inserts it.
    tier: Option<String>,
}

impl<'a> SubjectRules<'a> {
    /// Finds the rules that count `subject`; only the rule called `selected`, if there is a name.
    ///
    /// # Errors
    ///
    /// Returns 400 if no rule is called `selected`.
    pub(crate) fn find(
        context: &'a Context,
        subject: Subject,
        selected: Option<&str>,
    ) -> Result<Self, ApiError> {
        let limiter = &context.limiter;
        check_rule(limiter, selected)?;
        let (mut rules, mut pairs) = (Vec::new(), Vec::new());
        if limiter.rule_names().is_none() {
            rules.push(None);
        }
        for rule in limiter.rules_of(std::slice::from_ref(&subject), None) {
            if selected.is_some_and(|selected| selected != rule.name) {
                continue;
            }
            match rule.counted_as {
                CountedAs::Pair => pairs.push(rule.name),
                _ => rules.push(Some(rule)),
            }
        }
        Ok(Self { context, subject, rules, pairs, tier: None })
    }

    /// Reports the limits of requests in the tier called `tier`, if there is a name.
    ///
    /// # Errors
    ///
    /// Returns 400 if none of the rules has such a tier.
    pub(crate) fn in_tier(self, tier: Option<&str>) -> Result<Self, ApiError> {
        check_tier(self.rules.iter().flatten(), tier)?;
        Ok(Self { tier: tier.map(ToOwned::to_owned), ..self })
    }

    /// Returns the name of the tier whose limits of `rule` are reported.
    pub(crate) fn tier_of(&self, rule: &CountingRule) -> Option<String> {
        tier_of(rule, self.tier.as_deref())
    }

    /// Returns the rule whose counters are shown first: one whose limits a source finds, such as
    /// the records, or else the first.
    pub(crate) fn main(&self) -> Option<usize> {
        let has_source =
            |rule: &Option<CountingRule>| rule.as_ref().is_some_and(|rule| rule.has_source);
        let first = (!self.rules.is_empty()).then_some(0);
        self.rules.iter().position(has_source).or(first)
    }

    /// Returns the sentences about the counters and limits that are missing in a response.
    pub(crate) fn note(&self) -> Option<String> {
        let tiers = match self.tier {
            None => note_on_tiers(self.rules.iter().flatten()),
            Some(_) => None,
        };
        joined([self.context.note_on_services(), self.note_on_rules(), tiers])
    }

    /// Returns a sentence about the rules that are missing in a response.
    fn note_on_rules(&self) -> Option<String> {
        match (&self.rules[..], &self.pairs[..]) {
            ([], []) => Some(self.uncounted()),
            (_, []) => None,
            (_, pairs) => Some(format!(
                "Rules that count the subject only together with another one are left out: {}.",
                pairs.join(", ")
            )),
        }
    }

    /// Returns a sentence that says that no rule counts the subject.
    fn uncounted(&self) -> String {
        let names = self.context.limiter.rule_names().unwrap_or_default();
        format!("No rule counts {}. The rules are {}.", name_of(&self.subject), names.join(", "))
    }

    /// Reads the status of each limit under one of the rules.
    ///
    /// # Errors
    ///
    /// Returns an error if the store or the source of the limits fails.
    pub(crate) async fn usage(&self, rule: Option<&str>) -> Result<Decision, RuleFailure> {
        match self.read_usage(rule).await {
            Ok(usage) => Ok(usage),
            Err(error) => Err(self.failure(rule, error).await),
        }
    }

    /// Reads the status like [`usage`](Self::usage), without a second call that finds out what failed.
    pub(crate) async fn read_usage(&self, rule: Option<&str>) -> Result<Decision, StoreError> {
        request(&self.context.limiter, &self.subject, rule, self.tier.as_deref()).usage().await
    }

    /// Reads the status of each limit of `policy` in the counters of a rule.
    pub(crate) async fn usage_with(
        &self,
        rule: Option<&str>,
        policy: &Policy,
    ) -> Result<Decision, StoreError> {
        request(&self.context.limiter, &self.subject, rule, None).policy(policy).usage().await
    }

    /// Finds out whether the store has failed, or the source of the limits.
    async fn failure(&self, rule: Option<&str>, error: StoreError) -> RuleFailure {
        let mut found = self.rules.iter().flatten();
        let has_source =
            rule.is_none_or(|rule| found.any(|found| found.name == rule && found.has_source));
        let is_of_source = has_source
            && error.kind() != FailureKind::Corrupt
            && self.usage_with(rule, all_periods()).await.is_ok();
        RuleFailure { rule: rule.map(ToOwned::to_owned), error, is_of_source }
    }

    /// Resets the limits of the subject under all these rules; only the limit called `limit`, if
    /// there is a name. Logs the resets, and writes them to the history. Returns the names of the
    /// rules under which limits were reset.
    ///
    /// # Errors
    ///
    /// Returns 404 if nothing was reset, because no rule counts the subject, or none has such a
    /// limit. Returns 503 if a rule was not reset. The error says which rules were reset.
    pub(crate) async fn reset(
        &self,
        context: &Context,
        actor: &Actor,
        limit: Option<&LimitNames>,
    ) -> Result<Vec<&str>, ApiError> {
        let (mut done, mut not_reset) = (Vec::new(), Vec::new());
        let mut failure: Option<RuleFailure> = None;
        for rule in &self.rules {
            let name = rule.as_ref().map(|rule| &*rule.name);
            // The same store has the counters of all rules, so the others would wait in vain.
            if failure.as_ref().is_some_and(RuleFailure::is_outage) {
                not_reset.extend(name);
                continue;
            }
            match self.reset_rule(rule.as_ref(), limit).await {
                Ok(Some(limit)) => {
                    audit::reset(context, actor, &self.subject, name, limit.as_deref()).await;
                    done.push(name);
                }
                Ok(None) => {}
                Err(error) => {
                    not_reset.extend(name);
                    failure.get_or_insert(error);
                }
            }
        }
        let reset: Vec<&str> = done.iter().copied().flatten().collect();
        match failure {
            Some(failure) if not_reset.is_empty() => Err(failure.into_api_error()),
            Some(failure) => Err(failure.into_api_error().partly_done(&reset, &not_reset)),
            None if done.is_empty() => Err(self.nothing_to_reset(limit)),
            None => Ok(reset),
        }
    }

    /// Resets under one rule. Returns the name of the limit that was reset, which is `None` for all
    /// limits; or returns `None` if there is nothing to reset.
    async fn reset_rule(
        &self,
        rule: Option<&CountingRule>,
        limit: Option<&LimitNames>,
    ) -> Result<Option<Option<String>>, RuleFailure> {
        // The consumer may have counters in periods in which its records have no limit any more.
        let has_records =
            *self.subject.realm() == Realm::Consumer && rule.is_none_or(|rule| rule.has_source);
        let has_tiers = |rule: &CountingRule| !rule.tiers.is_empty();
        let name = rule.map(|rule| &*rule.name);
        let Some(LimitNames(names)) = limit else {
            let has_limits = has_records || rule.is_some_and(has_tiers);
            if !has_limits && !self.has_limits(name).await? {
                return Ok(None);
            }
            self.done(name, self.reset_own(name, None).await).await?;
            if has_records {
                self.done(name, self.reset_with(name, None).await).await?;
            }
            return Ok(Some(None));
        };
        for limit in names {
            match self.reset_own(name, Some(limit)).await {
                Err(ResetError::UnknownLimit(_)) => {}
                other => {
                    self.done(name, other).await?;
                    return Ok(Some(Some(limit.clone())));
                }
            }
        }
        for limit in names.iter().filter(|_| has_records) {
            match self.reset_with(name, Some(limit)).await {
                Err(ResetError::UnknownLimit(_)) => {}
                other => {
                    self.done(name, other).await?;
                    return Ok(Some(Some(limit.clone())));
                }
            }
        }
        Ok(None)
    }

    /// Resets limits of the subject's own policy under a rule.
    async fn reset_own(&self, rule: Option<&str>, limit: Option<&str>) -> Result<(), ResetError> {
        reset(request(&self.context.limiter, &self.subject, rule, None), limit).await
    }

    /// Resets counters of the six periods under a rule.
    async fn reset_with(&self, rule: Option<&str>, limit: Option<&str>) -> Result<(), ResetError> {
        let request = request(&self.context.limiter, &self.subject, rule, None);
        reset(request.policy(all_periods()), limit).await
    }

    async fn done(
        &self,
        rule: Option<&str>,
        reset: Result<(), ResetError>,
    ) -> Result<(), RuleFailure> {
        let error = match reset {
            Ok(()) => return Ok(()),
            Err(ResetError::Store(error)) => error,
            Err(error) => StoreError::new(FailureKind::Unsupported).with_detail(error.to_string()),
        };
        Err(self.failure(rule, error).await)
    }

    /// Returns whether the subject has limits under a rule. Damaged counters have limits too.
    async fn has_limits(&self, rule: Option<&str>) -> Result<bool, RuleFailure> {
        match self.read_usage(rule).await {
            Ok(usage) => Ok(usage.policy().is_some()),
            Err(error) if error.kind() == FailureKind::Corrupt => Ok(true),
            Err(error) => Err(self.failure(rule, error).await),
        }
    }

    fn nothing_to_reset(&self, limit: Option<&LimitNames>) -> ApiError {
        let subject = name_of(&self.subject);
        let reason = match (limit, &self.rules[..], &self.pairs[..]) {
            (_, [], []) => self.uncounted(),
            (_, [], pairs) => format!(
                "The rules {} count {subject} only together with another subject, so its counters cannot \
                 be found.",
                pairs.join(", ")
            ),
            (Some(LimitNames(names)), ..) => {
                format!("No limit of {subject} is called {}.", names[0])
            }
            (None, ..) => format!("No limit applies to {subject}."),
        };
        let sentences = joined([Some(reason), self.context.note_on_services()]);
        ApiError::nothing_reset(&sentences.unwrap_or_default())
    }
}

/// Returns a request of `subject`, under a rule if there is a name.
pub(crate) fn request<'a>(
    limiter: &'a RateLimiter,
    subject: &'a Subject,
    rule: Option<&'a str>,
    tier: Option<&'a str>,
) -> LimiterRequest<'a> {
    match (rule, tier) {
        (None, _) => limiter.request(subject),
        (Some(rule), None) => limiter.rule(rule).of(subject),
        (Some(rule), Some(tier)) => limiter.rule(rule).tier(tier).of(subject),
    }
}

/// Resets all limits of a request, or the limit called `limit`.
async fn reset(request: LimiterRequest<'_>, limit: Option<&str>) -> Result<(), ResetError> {
    match limit {
        Some(limit) => request.reset_limit(limit).await,
        None => Ok(request.reset().await?),
    }
}

/// A failure to read or to reset the counters of a subject.
#[derive(Debug)]
pub(crate) struct RuleFailure {
    /// The rule, if the limiter has rules.
    pub(crate) rule: Option<String>,
    pub(crate) error: StoreError,
    /// Whether the source of the limits has failed, and not the store.
    pub(crate) is_of_source: bool,
}

impl RuleFailure {
    /// Returns whether the store does not answer, so that the other rules would fail too.
    pub(crate) fn is_outage(&self) -> bool {
        !self.is_of_source && self.error.kind() != FailureKind::Corrupt
    }

    /// Returns the response for the failure.
    pub(crate) fn into_api_error(self) -> ApiError {
        let Self { rule, error, is_of_source } = self;
        let error = match is_of_source {
            true => ApiError::limits_unavailable(error.kind()),
            false => error.into(),
        };
        match rule {
            Some(rule) => error.under_rule(&rule),
            None => error,
        }
    }
}

/// The names by which a request may mean a limit: `per_minute` is also `minute`.
#[derive(Debug)]
pub(crate) struct LimitNames(pub(crate) Vec<String>);

/// Checks that the limiter has a rule called `selected`.
///
/// # Errors
///
/// Returns 400 with the names of the rules.
pub(crate) fn check_rule(limiter: &RateLimiter, selected: Option<&str>) -> Result<(), ApiError> {
    let Some(selected) = selected else { return Ok(()) };
    match limiter.rule_names() {
        Some(names) if names.iter().any(|name| name == selected) => Ok(()),
        Some(names) => {
            let expected = format!("one of {}", names.join(", "));
            Err(ApiError::invalid_value("rule", selected, &expected))
        }
        None => Err(ApiError::invalid_value("rule", selected, "none: the limiter has no rules")),
    }
}

/// Returns the rules that count a subject and get its limits from a source, such as the records.
/// Returns `None` if the limiter has no rules.
pub(crate) fn rules_with_source(context: &Context, subject: &Subject) -> Option<Vec<CountingRule>> {
    context.limiter.rule_names()?;
    let rules = context.limiter.rules_of(std::slice::from_ref(subject), None);
    Some(rules.into_iter().filter(|rule| rule.has_source).collect())
}

/// Returns a sentence if no rule enforces the records of a subject.
pub(crate) fn note_on_unenforced_records(context: &Context, subject: &Subject) -> Option<String> {
    let rules = rules_with_source(context, subject)?;
    let is_enforced = rules.iter().any(|rule| !rule.is_shadow);
    (!is_enforced).then(|| {
        "No rule enforces the own limits and the blocks of this subject, so they have no effect.".to_owned()
    })
}

/// Checks that one of the rules has a tier called `name`.
///
/// # Errors
///
/// Returns 400 with the names of the tiers.
pub(crate) fn check_tier<'a>(
    rules: impl Iterator<Item = &'a CountingRule>,
    name: Option<&str>,
) -> Result<(), ApiError> {
    let Some(name) = name else { return Ok(()) };
    let mut tiers: Vec<&str> = rules.flat_map(|rule| &rule.tiers).map(|tier| &**tier).collect();
    if tiers.contains(&name) {
        return Ok(());
    }
    tiers.sort_unstable();
    tiers.dedup();
    let expected = match &tiers[..] {
        [] => "none: no rule of this subject has tiers".to_owned(),
        tiers => format!("one of {}", tiers.join(", ")),
    };
    Err(ApiError::invalid_value("tier", name, &expected))
}

/// Returns the name of the tier whose limits a rule applies to requests with `tier` in their
/// extensions, or to requests without one.
pub(crate) fn tier_of(rule: &CountingRule, tier: Option<&str>) -> Option<String> {
    match tier {
        Some(tier) => rule.tiers.iter().find(|name| *name == tier).cloned(),
        None => rule.tier.clone(),
    }
}

/// Returns a sentence about the rules that have other limits for requests in a tier. It names no
/// rule for which the tier of the subject is known, because the limits of this tier are shown.
pub(crate) fn note_on_tiers<'a>(rules: impl Iterator<Item = &'a CountingRule>) -> Option<String> {
    let tiered = rules.filter(|rule| !rule.tiers.is_empty() && rule.tier.is_none());
    let named = tiered.map(|rule| format!("{} ({})", rule.name, rule.tiers.join(", ")));
    let named: Vec<String> = named.collect();
    (!named.is_empty()).then(|| {
        format!(
            "Rules with other limits for requests with a tier in their extensions: {}. The API reports \
             these limits with ?tier=.",
            named.join(", ")
        )
    })
}

/// Returns a subject in the form `realm/id` in which paths name it.
pub(crate) fn name_of(subject: &Subject) -> String {
    let id = match subject.realm() {
        Realm::Global | Realm::Unknown => "-".to_owned(),
        _ => subject.id().to_string(),
    };
    format!("{}/{id}", subject.realm().as_str())
}

/// Returns the limits that the database sets for a subject under a rule. Returns `None` if the
/// service sets them, because the subject is no consumer and has no own limits.
pub(crate) fn limits_of_database<'a>(
    by_rule: &'a BTreeMap<Option<String>, ActiveLimits>,
    subject: &Subject,
    rule: Option<&str>,
) -> Option<&'a ActiveLimits> {
    let under_rule = rule.and_then(|rule| by_rule.get(&Some(rule.to_owned())));
    let active = under_rule.or_else(|| by_rule.get(&None))?;
    (*subject.realm() == Realm::Consumer || !active.is_default()).then_some(active)
}
