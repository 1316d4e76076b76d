use std::fmt;
use std::sync::Arc;

use super::request_match::Match;
use super::rule::Rule;
use super::selector::RuleSelector;
use crate::client_ip::ClientIp;
use crate::key::{ClientAddress, Tier};
use crate::model::Subject;

/// The rules of a limiter: each request is decided under all that match, in one step.
///
/// The request is charged under all rules that match it, or under none. A request that no rule
/// matches is not counted. A request that matches more than eight enforced rules is rejected: see
/// the [module](super).
///
/// [`RateLimiterBuilder::rules`](crate::RateLimiterBuilder::rules) checks the rules. The
/// [module](super) has an example.
#[derive(Clone, Default)]
#[must_use]
pub struct Rules {
    pub(super) rules: Vec<Rule>,
    pub(super) exempt: Vec<Match>,
    pub(super) client: ClientAddress,
    pub(super) tier_by: Option<TierBy>,
    pub(super) selector: Option<Arc<dyn RuleSelector>>,
    /// A warning about the file with this path, for a limiter that shares its counters.
    #[cfg(feature = "rules-file")]
    pub(super) warning_if_shared: Option<(std::path::PathBuf, String)>,
}

pub(super) type TierBy = Arc<dyn Fn(&Subject) -> Option<Tier> + Send + Sync>;

impl Rules {
    /// Creates an empty set, to which rules are added.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a rule.
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Exempts matching requests from all rules. They are not counted, and their responses get no
    /// headers.
    pub fn exempt(mut self, matches: Match) -> Self {
        self.exempt.push(matches);
        self
    }

    /// Sets how [`Match::address`] finds the client. Defaults to the peer of the connection.
    ///
    /// The extractor [`ClientAddress`] has a setting of its own.
    pub fn client_ip(mut self, client_ip: ClientIp) -> Self {
        self.client = ClientAddress::new(client_ip);
        self
    }

    /// Sets the function that returns the tier of a subject, for requests without a [`Tier`] in
    /// their extensions.
    pub fn tier_by(
        mut self,
        tier_by: impl Fn(&Subject) -> Option<Tier> + Send + Sync + 'static,
    ) -> Self {
        self.tier_by = Some(Arc::new(tier_by));
        self
    }

    /// Sets the selector of the rules that are [selected](Rule::selected) instead of matched.
    pub fn select_with(mut self, selector: impl RuleSelector) -> Self {
        self.selector = Some(Arc::new(selector));
        self
    }

    /// Returns the names of the rules, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(Rule::name)
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits matches: those of a file may contain the values of variables, such as a secret
        // header of internal callers.
        let names: Vec<&str> = self.names().collect();
        f.debug_struct("Rules").field("names", &names).finish_non_exhaustive()
    }
}
