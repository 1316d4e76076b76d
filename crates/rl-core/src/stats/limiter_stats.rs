//! The counts of a limiter, as plain data.

use super::histogram::Histogram;
use super::store_stats::StoreStats;
use super::top::TopSubject;
use crate::model::{FailureKind, Limit};

/// The common name of all limits and rules that a limiter does not count by their own names,
/// because it has too many.
pub const OTHER_NAME: &str = "(other)";

/// The counts of one limiter since it was built, and its state now.
///
/// The numbers are read one after the other while requests are decided, so one number may include a
/// decision that another one does not. Counts never decrease. `in_flight`, `waiting`,
/// `permits_held` and `is_breaker_closed` describe the present.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LimiterStats {
    /// The namespace of the limiter.
    pub name: String,
    /// The kind of store and its server, without user and password.
    pub store_name: String,
    /// The decisions by outcome and origin. Peeks are not counted.
    pub decisions: Vec<DecisionCount>,
    /// The denied requests that were forwarded to the service, so that it sends a reduced response.
    /// They are also counted as denied.
    pub degraded: u64,
    /// The requests that an adapter did not count.
    pub uncounted: UncountedRequests,
    /// The units that were charged and refunded.
    pub units: UnitCounts,
    /// The requests by rule, if the limiter has rules.
    pub rules: Vec<RuleStats>,
    /// The readings of the rule file, if the limiter follows one.
    pub rules_file: Option<RulesFileStats>,
    /// The counts of each limit that is configured, and of each other limit (of a policy source,
    /// for example) that has denied a request.
    pub limits: Vec<LimitStats>,
    /// The times of decisions in seconds. Each thread times one decision in a millisecond. If the
    /// store is in memory, it times none if an observer or the log receives each decision. The
    /// fallback is not included.
    pub decision_seconds: Histogram,
    /// The times, in seconds, of store calls for which the limiter had to wait. Each thread times
    /// one of the calls that were sent within a millisecond. A call that timed out has the time
    /// until the timeout.
    pub store_seconds: Histogram,
    /// The time for which requests waited in a queue, in seconds.
    pub wait_seconds: Histogram,
    /// The times for which permits were held, in seconds. Each thread times a new permit if it has
    /// timed none in the last millisecond, and every 64th permit.
    pub permit_seconds: Histogram,
    /// The decisions that are waiting for the store or the fallback.
    pub in_flight: u64,
    /// The requests that are waiting in a queue.
    pub waiting: u64,
    /// The permits that are not settled yet.
    pub permits_held: u64,
    /// The failures of the store and of the fallback by kind.
    pub store_failures: Vec<FailureCount>,
    /// The failures of the source of policies by kind.
    pub source_failures: Vec<FailureCount>,
    /// Whether the circuit breaker is closed, so that the store is called.
    pub is_breaker_closed: bool,
    /// The counts of the store. Limiters on one store report the same counts.
    pub store: StoreStats,
    /// The up to 128 subjects with the most denials, the largest number first. It contains each
    /// subject that was denied since the last of 128 others.
    pub top_denied: Vec<TopSubject>,
    /// The up to 128 subjects that were granted the most units, the largest number first.
    pub top_used: Vec<TopSubject>,
}

impl LimiterStats {
    /// Returns the number of allowed requests.
    #[must_use]
    pub fn allowed(&self) -> u64 {
        self.sum(true)
    }

    /// Returns the number of requests that were denied by limits or rejected by the failure policy.
    #[must_use]
    pub fn denied(&self) -> u64 {
        self.sum(false)
    }

    fn sum(&self, is_allowed: bool) -> u64 {
        let decisions = self.decisions.iter().filter(|one| one.is_allowed == is_allowed);
        decisions.map(|one| one.count).sum()
    }
}

/// The number of decisions of one outcome and origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecisionCount {
    /// Whether the requests were allowed.
    pub is_allowed: bool,
    /// The origin: [`Origin::as_str`](crate::Origin::as_str).
    pub origin: &'static str,
    /// The number of decisions.
    pub count: u64,
}

impl DecisionCount {
    pub(crate) const fn new(is_allowed: bool, origin: &'static str, count: u64) -> Self {
        Self { is_allowed, origin, count }
    }
}

/// The requests that an adapter did not count, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UncountedRequests {
    /// Requests that are exempt, or that no rule matches.
    pub exempt: u64,
    /// Requests that were rejected because they have no key.
    pub missing_key: u64,
    /// Requests that were rejected because their key is ambiguous.
    pub ambiguous_key: u64,
    /// Requests that were rejected because more rules match them than a decision can apply.
    pub too_many_rules: u64,
    /// Requests that were rejected because the server does not know the address of its client.
    pub unknown_address: u64,
}

/// The units that a limiter has charged and refunded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnitCounts {
    /// The units that checks charged. For a request of several parts, the units of each part count.
    pub granted: u64,
    /// The units that were charged for work that was already done, even beyond the limits.
    pub charged_after: u64,
    /// The units of all refunds, including units that no longer counted, for example because their
    /// window had ended.
    pub refunded: u64,
}

/// The requests that one rule has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleStats {
    /// The name of the rule. For a part with a namespace outside that of the limiter, it is `/` and
    /// this namespace.
    pub rule: String,
    /// The requests that the rule would allow.
    pub within: u64,
    /// The requests that the rule denied.
    pub over: u64,
    /// The requests that the rule would have denied if it were not in shadow.
    pub shadow_over: u64,
}

impl RuleStats {
    pub(crate) const fn new(rule: String, [over, shadow_over, within]: [u64; 3]) -> Self {
        Self { rule, within, over, shadow_over }
    }
}

/// The readings of a rule file. Limiters that follow one file report the same numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RulesFileStats {
    /// The path, as the service gave it.
    pub path: String,
    /// How often the file was applied.
    pub applied: u64,
    /// How often the file was refused because it was not valid or could not be read.
    pub refused: u64,
    /// Whether the last reading was refused, so that earlier rules apply.
    pub is_refused: bool,
}

/// The requests that one limit has denied, and how far it is used.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LimitStats {
    /// The name of the rule, as in [`RuleStats::rule`], or an empty text without rules.
    pub rule: String,
    /// The name of the limit.
    pub name: String,
    /// The limit of each tier that has one of this name: the name of the tier, or an empty text for
    /// subjects without a tier, and the limit. If all have the same limit, there is one entry, with
    /// an empty text. There is none for a limit that a source finds.
    pub by_tier: Vec<(String, Limit)>,
    /// The requests that the limit denied.
    pub over: u64,
    /// The requests that the limit would have denied if it were not in shadow.
    pub shadow_over: u64,
    /// The used fraction of the limit after decisions: 1 if all units are used. It is sampled.
    pub utilization: Histogram,
}

impl LimitStats {
    pub(crate) const fn new(
        rule: String,
        name: String,
        by_tier: Vec<(String, Limit)>,
        [over, shadow_over]: [u64; 2],
        utilization: Histogram,
    ) -> Self {
        Self { rule, name, by_tier, over, shadow_over, utilization }
    }
}

/// The number of failures of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailureCount {
    /// The kind of failure.
    pub kind: FailureKind,
    /// The number of failures.
    pub count: u64,
}

impl FailureCount {
    pub(crate) const fn new(kind: FailureKind, count: u64) -> Self {
        Self { kind, count }
    }
}
