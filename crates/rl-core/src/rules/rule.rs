use std::fmt;
use std::sync::Arc;

use super::over_limit::{MissingKey, OverLimit};
use super::request_match::Match;
use crate::headers::ResponseInfo;
use crate::key::{KeyExtractor, RequestInfo};
use crate::model::{Cost, Limit};
use crate::policy::{Policy, PolicyBuilder};
use crate::source::PolicySource;

/// Sets which requests are counted, under which subject, and with which limits.
///
/// A rule has a name, which is part of the identity of its counters. Two rules therefore never
/// share a counter, and a rule keeps its counters when other settings of it change.
///
/// # Examples
///
/// ```
/// use rl_core::key::{ClientAddress, Identified};
/// use rl_core::rules::Rule;
/// use rl_core::Limit;
///
/// let export = Rule::named("export")
///     .on("GET", "/export/{name}")
///     .per(Identified)
///     .per(ClientAddress::default()) // for requests without a consumer
///     .limit(Limit::per_hour(60))
///     .cost(20);
/// ```
#[derive(Clone)]
#[must_use]
pub struct Rule {
    pub(super) name: Arc<str>,
    pub(super) matches: Option<Match>,
    pub(super) exempt: Vec<Match>,
    pub(super) per: Vec<Arc<dyn KeyExtractor>>,
    pub(super) limits: RuleLimits,
    pub(super) tiers: Vec<(Arc<str>, RuleLimits)>,
    pub(super) cost: Option<RuleCost>,
    pub(super) response_cost: Option<ResponseCost>,
    pub(super) on_over_limit: Option<OverLimit>,
    pub(super) on_missing_key: Option<MissingKey>,
    pub(super) is_shadow: bool,
    /// Whether the service stores the rule outside its program and its file.
    pub(super) is_stored: bool,
    /// The definition in a rule file, if the rule comes from one, or from a store of such texts.
    pub(super) definition: Option<Arc<str>>,
    pub(super) is_disclosed: Option<bool>,
    pub(super) is_name_disclosed: bool,
    pub(super) is_selected: bool,
}

/// The limits of a rule or of a tier, not checked yet.
#[derive(Clone)]
pub(super) enum RuleLimits {
    Builder(PolicyBuilder),
    Policy(Policy),
    Source(Arc<dyn PolicySource>),
}

/// The units that a request costs under a rule.
#[derive(Clone)]
pub(super) enum RuleCost {
    Units(Cost),
    OfRequest(RequestCost),
}

/// A function that returns the cost of a request.
pub(crate) type RequestCost = Arc<dyn Fn(&dyn RequestInfo) -> Cost + Send + Sync>;

/// A function that returns the final cost of a request, or `None` if the estimate stays.
pub(super) type ResponseCost = Arc<dyn Fn(&dyn ResponseInfo) -> Option<Cost> + Send + Sync>;

impl Rule {
    /// Creates a rule with this name, which matches every request and has no limits yet.
    ///
    /// The name has 1 to 64 characters of `A-Z a-z 0-9 _ . -`.
    pub fn named(name: impl AsRef<str>) -> Self {
        Self {
            name: name.as_ref().into(),
            matches: None,
            exempt: Vec::new(),
            per: Vec::new(),
            limits: RuleLimits::Builder(Policy::builder()),
            tiers: Vec::new(),
            cost: None,
            response_cost: None,
            on_over_limit: None,
            on_missing_key: None,
            is_shadow: false,
            is_stored: false,
            definition: None,
            is_disclosed: None,
            is_name_disclosed: false,
            is_selected: false,
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Restricts the rule to a method and a path template, such as `/users/{id}`.
    pub fn on(self, method: impl AsRef<str>, path: impl AsRef<str>) -> Self {
        self.matching(Match::new().method(method).path(path))
    }

    /// Restricts the rule to requests that match. Replaces an earlier match.
    pub fn matching(mut self, matches: Match) -> Self {
        self.matches = Some(matches);
        self
    }

    /// Leaves it to the [selector](super::Rules::select_with) of the rules which requests the rule
    /// counts, and under which subject. Matches, exemptions and extractors of the rule do not apply.
    pub fn selected(mut self) -> Self {
        self.is_selected = true;
        self
    }

    /// Exempts matching requests from this rule. Repeated calls add exemptions.
    pub fn exempt(mut self, matches: Match) -> Self {
        self.exempt.push(matches);
        self
    }

    /// Adds an extractor, which finds the subject under which a request is counted. Each subject
    /// has counters of its own. The extractor of a second call is used for requests in which the
    /// first finds no key, and so on. Without an extractor, all requests are counted together.
    pub fn per(mut self, key: impl KeyExtractor) -> Self {
        self.per.push(Arc::new(key));
        self
    }

    /// Adds a limit, which is named after its period: `second`, `15minutes`.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits = self.limits.with(|policy| policy.limit(limit));
        self
    }

    /// Adds limits, each of which is named after its period.
    pub fn limits(self, limits: impl IntoIterator<Item = Limit>) -> Self {
        limits.into_iter().fold(self, Self::limit)
    }

    /// Adds a limit with a name of its own.
    pub fn named_limit(mut self, name: &str, limit: Limit) -> Self {
        self.limits = self.limits.with(|policy| policy.named(name, limit));
        self
    }

    /// Sets the policy, and replaces all limits that were added before.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.limits = RuleLimits::Policy(policy);
        self
    }

    /// Sets the source that finds the limits of each subject, such as the records of a database.
    /// Replaces all limits that were added before.
    ///
    /// The source is called for each request. A subject for which it finds no policy is not counted
    /// under this rule. If a look-up fails, the failure policy of the limiter decides the request.
    /// A rule in [shadow](Self::shadow) does not count the request then.
    ///
    /// ```
    /// use rl_core::key::Identified;
    /// use rl_core::rules::Rule;
    /// use rl_core::source::Preset;
    ///
    /// let consumers = Rule::named("consumers").per(Identified).policies(Preset::OpenBank);
    /// ```
    pub fn policies(mut self, source: impl PolicySource) -> Self {
        self.limits = RuleLimits::Source(Arc::new(source));
        self
    }

    /// Sets the limits of clients in the [tier](crate::key::Tier) called `name`. They replace the
    /// limits of the rule.
    pub fn tier(mut self, name: &str, limits: impl IntoIterator<Item = Limit>) -> Self {
        let policy = limits.into_iter().fold(Policy::builder(), PolicyBuilder::limit);
        self.tiers.push((name.into(), RuleLimits::Builder(policy)));
        self
    }

    /// Sets the units that each request costs under this rule. Defaults to the cost of the layer,
    /// which is 1. It is an error if the limits never grant this cost, unless the rule is in
    /// [shadow](Self::shadow) or its limits are 0.
    ///
    /// Neither the final cost that a layer reads from a response nor
    /// [`Permit::set_cost`](crate::Permit::set_cost) then changes the cost under this rule.
    /// [`Permit::set_rule_cost`](crate::Permit::set_rule_cost) changes it.
    pub fn cost(mut self, cost: impl Into<Cost>) -> Self {
        self.cost = Some(RuleCost::Units(cost.into()));
        self
    }

    /// Sets the function that returns the cost of a request under this rule. A request that costs 0
    /// is never denied, not even by a limit of requests or a concurrency limit, so return at least
    /// 1 if the client chooses the cost.
    ///
    /// Decide by the [route](RequestInfo::route) or by a match of the rule, not by the
    /// [path](RequestInfo::path): that is as the client sent it, and `/%65xport` may reach the same
    /// handler as `/export`.
    ///
    /// # Examples
    ///
    /// A request costs one unit for each row that it asks for:
    ///
    /// ```
    /// use rl_core::rules::Rule;
    /// use rl_core::{Cost, Limit};
    ///
    /// let export = Rule::named("export")
    ///     .on("GET", "/export/{name}")
    ///     .limit(Limit::per_hour(100_000))
    ///     .cost_by(|request| {
    ///         let rows = request.query().and_then(|query| query.strip_prefix("rows="));
    ///         // A request without a valid number costs as much as the largest export.
    ///         Cost::from(rows.and_then(|rows| rows.parse().ok()).unwrap_or(10_000_u64).max(1))
    ///     });
    /// ```
    pub fn cost_by(
        mut self,
        cost: impl Fn(&dyn RequestInfo) -> Cost + Send + Sync + 'static,
    ) -> Self {
        self.cost = Some(RuleCost::OfRequest(Arc::new(cost)));
        self
    }

    /// Sets the function that reads the final cost of a request under this rule from its response.
    ///
    /// Until the response arrives, the request is charged the [cost](Self::cost) of the rule as an
    /// estimate, which is at least 1. If the function returns `None`, this charge stays.
    /// [`Permit::set_cost`](crate::Permit::set_cost) and the final cost that a layer reads do not
    /// change the cost under this rule.
    ///
    /// ```
    /// use rl_core::rules::Rule;
    /// use rl_core::{Cost, Limit};
    ///
    /// // The database reports the rows that it has read.
    /// let rows = Rule::named("rows").limit(Limit::per_minute(10_000)).cost(100).response_cost(|response| {
    ///     let rows = std::str::from_utf8(response.header("x-rows")?).ok()?;
    ///     rows.parse().ok().map(Cost::new)
    /// });
    /// ```
    pub fn response_cost(
        mut self,
        cost: impl Fn(&dyn ResponseInfo) -> Option<Cost> + Send + Sync + 'static,
    ) -> Self {
        self.response_cost = Some(Arc::new(cost));
        self
    }

    /// Sets how requests over the limits of this rule are handled. Defaults to the setting of the
    /// layer.
    ///
    /// If several rules deny a request, it is rejected if one of them rejects. Otherwise it waits
    /// if one of them waits, and is degraded if all of them degrade.
    pub fn on_over_limit(mut self, over_limit: OverLimit) -> Self {
        self.on_over_limit = Some(over_limit);
        self
    }

    /// Sets how requests without a key are handled, if the rule has [extractors](Self::per).
    /// Defaults to the setting of the layer.
    ///
    /// [`MissingKey::Allow`] means that such a request is not counted under this rule.
    pub fn on_missing_key(mut self, missing_key: MissingKey) -> Self {
        self.on_missing_key = Some(missing_key);
        self
    }

    /// Puts the rule in shadow: it counts and reports, but denies nothing.
    pub fn shadow(mut self) -> Self {
        self.is_shadow = true;
        self
    }

    /// Sets whether headers and bodies describe this rule.
    ///
    /// By default they describe a rule with [extractors](Self::per). A rule without extractors
    /// counts the requests of all clients. A denial by it is a 429 with `Retry-After`, but
    /// contains no name and no limit.
    pub fn disclosed(mut self, is_disclosed: bool) -> Self {
        self.is_disclosed = Some(is_disclosed);
        self
    }

    /// Sets whether headers and bodies contain the name of this rule. Defaults to `false`.
    ///
    /// By default clients read a hash of the name, such as `r3f2a1/minute`, because names may tell
    /// an attacker what is counted. The hash is the same on all instances. It hides names, but no
    /// secrets: an attacker who knows the namespace of the limiter can test a guess.
    /// [`HttpLimiter::name_rules`](crate::adapter::HttpLimiter::name_rules) discloses the names of
    /// all rules. In a file, this setting is `disclosed: name`.
    pub fn name_disclosed(mut self, is_disclosed: bool) -> Self {
        self.is_name_disclosed = is_disclosed;
        self
    }
}

impl RuleLimits {
    /// Adds limits. They replace a whole policy or a source that was set before.
    fn with(self, add: impl FnOnce(PolicyBuilder) -> PolicyBuilder) -> Self {
        match self {
            Self::Builder(policy) => Self::Builder(add(policy)),
            Self::Policy(_) | Self::Source(_) => Self::Builder(add(Policy::builder())),
        }
    }
}

impl fmt::Debug for RuleLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builder(policy) => policy.fmt(f),
            Self::Policy(policy) => policy.fmt(f),
            Self::Source(_) => f.write_str("Source(…)"),
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the key extractors, because they may contain secrets.
        f.debug_struct("Rule")
            .field("name", &self.name)
            .field("matches", &self.matches)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
