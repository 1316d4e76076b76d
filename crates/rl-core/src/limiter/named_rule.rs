use std::fmt;
use std::sync::Arc;

use super::pipeline::Pipeline;
use super::request::LimiterRequest;
use crate::model::Subject;
use crate::rules::OfRule;

/// A rule of a limiter, by its name, for subjects that a layer cannot know, such as the user name
/// in the body of a request. [`RateLimiter::rule`](crate::RateLimiter::rule) creates it.
///
/// The match, the exemptions and the cost of the rule do not apply. The tier of the subject is that
/// of [`tier_by`](crate::rules::Rules::tier_by), unless [`tier`](Self::tier) names one. If the
/// limiter has no such rule when a request is decided, the failure policy decides it, as for
/// [`FailureKind::Unsupported`](crate::FailureKind::Unsupported). Reading and resetting its
/// counters fails.
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
/// let rules = Rules::new().rule(users.tier("pro", [Limit::per_minute(50)]));
/// let limiter = RateLimiter::builder().rules(rules).build()?;
///
/// let alice = Subject::user("alice");
/// let request = limiter.rule("users").of(&alice);
/// assert!(request.cost(2).check().await.is_allowed());
/// let usage = limiter.rule("users").tier("pro").of(&alice).usage().await?;
/// assert_eq!(usage.limits().map(|limit| (limit.used(), limit.max())).next(), Some((2, 50)));
/// request.reset().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy)]
#[must_use = "a rule does nothing until a request under it is checked"]
pub struct NamedRule<'a> {
    pipeline: &'a Arc<Pipeline>,
    name: &'a str,
    tier: Option<&'a str>,
}

impl<'a> NamedRule<'a> {
    pub(super) const fn new(pipeline: &'a Arc<Pipeline>, name: &'a str) -> Self {
        Self { pipeline, name, tier: None }
    }

    /// Applies the limits of requests with a tier of this name in their extensions.
    pub fn tier(self, name: &'a str) -> Self {
        Self { tier: Some(name), ..self }
    }

    /// Creates a request that the rule counts under `subject`.
    pub fn of(self, subject: &'a Subject) -> LimiterRequest<'a> {
        LimiterRequest::of_rule(self.pipeline, OfRule { rule: self.name, tier: self.tier, subject })
    }

    /// Returns whether the rule is in [shadow](crate::rules::Rule::shadow), so that it denies
    /// nothing.
    #[must_use]
    pub fn is_shadow(self) -> bool {
        self.pipeline
            .current_rules()
            .and_then(|rules| rules.is_in_shadow(self.name))
            .unwrap_or(false)
    }

    /// Returns the definition of a rule that comes from a [rule file](crate::rules::RulesFile), or
    /// that is [stored](crate::rules::StoredRule): its fields as YAML, without `shadow`. Returns
    /// `None` for a rule of the program.
    #[must_use]
    pub fn definition(self) -> Option<Arc<str>> {
        self.pipeline.current_rules()?.definition(self.name)
    }
}

impl fmt::Debug for NamedRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedRule")
            .field("name", &self.name)
            .field("tier", &self.tier)
            .finish_non_exhaustive()
    }
}
