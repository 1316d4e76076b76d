//! Adds the counts of all threads up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::names::{OTHER_LIMITS, OTHER_RULES, RESERVED};
use super::shard::{NameCounts, TallyShard, UTILIZATION_BOUNDS};
use super::{OutsideDecisions, Tally};
use crate::decision::Origin;
use crate::model::{FailureKind, Limit};
use crate::policy::Policy;
use crate::stats::{
    DecisionCount, FailureCount, Histogram, LimitStats, LimiterStats, OTHER_NAME, RuleStats,
    RulesFileStats, StoreStats, ThreadCount, TimeHistogram, UncountedRequests, UnitCounts,
};
use crate::store::Namespace;

/// The pairs of verdict and origin that are reported even if their count is 0, so that readers know
/// them.
const USUAL: [(bool, Origin); 12] = {
    let kind = FailureKind::Unavailable;
    [
        (true, Origin::Store),
        (true, Origin::Shadow),
        (true, Origin::Leased),
        (true, Origin::Unlimited),
        (true, Origin::Disabled),
        (true, Origin::Fallback(kind)),
        (true, Origin::FailedOpen(kind)),
        (false, Origin::Store),
        (false, Origin::LocalDeny),
        (false, Origin::Policy),
        (false, Origin::Fallback(kind)),
        (false, Origin::FailedClosed(kind)),
    ]
};

/// The state of a limiter now, and its settings, which its counts do not contain.
pub(crate) struct LimiterState<'a> {
    pub(crate) store_name: &'a str,
    pub(crate) store: StoreStats,
    pub(crate) in_flight: usize,
    pub(crate) waiting: usize,
    pub(crate) is_breaker_closed: bool,
    pub(crate) rules_file: Option<RulesFileStats>,
    /// The policies of each rule by tier; the tier is an empty text for subjects without one. The
    /// rule is `None` for the policy of a limiter without rules.
    pub(crate) policies: Vec<(Option<Namespace>, PoliciesByTier)>,
}

/// The policies of a rule, each with the name of its tier.
type PoliciesByTier = Vec<(String, Policy)>;

/// The limits that are configured, by place, each with the name of its tier.
type Configured = BTreeMap<usize, Vec<(String, Limit)>>;

impl Tally {
    /// Returns all counts.
    pub(crate) fn stats(&self, state: LimiterState<'_>) -> LimiterStats {
        let sum =
            |count: fn(&TallyShard) -> &ThreadCount| self.shards.sum(|shard| count(shard).get());
        // `ended` is read before `begun`, so that the difference is never negative.
        let ended = sum(|shard| &shard.permits_ended);
        let begun = sum(|shard| &shard.permits_begun);
        let times = self.shards.iter().map(|shard| &shard.decision_times);
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let uncounted = |kind: OutsideDecisions| read(&self.uncounted[kind as usize]);
        // The names of configured limits are added, so that they are reported even before the first
        // denial.
        let configured = self.configured(&state);
        LimiterStats {
            name: self.namespace.to_string(),
            store_name: state.store_name.to_owned(),
            decisions: self.decisions(),
            degraded: uncounted(OutsideDecisions::Degraded),
            uncounted: UncountedRequests {
                exempt: uncounted(OutsideDecisions::Exempt),
                missing_key: uncounted(OutsideDecisions::MissingKey),
                ambiguous_key: uncounted(OutsideDecisions::AmbiguousKey),
                too_many_rules: uncounted(OutsideDecisions::TooManyRules),
                unknown_address: uncounted(OutsideDecisions::UnknownAddress),
            },
            units: UnitCounts {
                granted: self.decisions.sum(|decisions| decisions.charged.get()),
                charged_after: sum(|shard| &shard.charged_after),
                refunded: sum(|shard| &shard.refunded),
            },
            rules: self.rules(),
            rules_file: state.rules_file,
            limits: self.limits(&configured),
            decision_seconds: TimeHistogram::seconds(times),
            store_seconds: TimeHistogram::seconds([&self.store_times]),
            wait_seconds: TimeHistogram::seconds([&self.wait_times]),
            permit_seconds: TimeHistogram::seconds([&self.permit_times]),
            in_flight: state.in_flight as u64,
            waiting: state.waiting as u64,
            permits_held: begun.saturating_sub(ended),
            store_failures: failures(&self.store_failures),
            source_failures: failures(&self.source_failures),
            is_breaker_closed: state.is_breaker_closed,
            store: state.store,
            top_denied: self.top_denied.largest(|place| self.limit_at(place)),
            top_used: self.top_used.largest(|_| None),
        }
    }

    fn decisions(&self) -> Vec<DecisionCount> {
        let number = |is_allowed: bool, origin: Origin| match origin {
            Origin::Store => {
                self.decisions.sum(|decisions| decisions.of_outcome(is_allowed).count.get())
            }
            _ => self
                .shards
                .sum(|shard| shard.by_origin[origin.index()][usize::from(is_allowed)].get()),
        };
        let count = |is_allowed: bool, origin: Origin| {
            DecisionCount::new(is_allowed, origin.as_str(), number(is_allowed, origin))
        };
        let is_usual = |is_allowed: bool, origin: Origin| {
            USUAL.iter().any(|usual| (usual.0, usual.1.index()) == (is_allowed, origin.index()))
        };
        let all = Origin::all().into_iter().flat_map(|origin| [(true, origin), (false, origin)]);
        let counts = all
            .map(|(is_allowed, origin)| (is_usual(is_allowed, origin), count(is_allowed, origin)));
        counts
            .filter(|(is_usual, count)| *is_usual || count.count > 0)
            .map(|(_, count)| count)
            .collect()
    }

    /// Returns the limits that are configured, by place and tier.
    fn configured(&self, state: &LimiterState<'_>) -> Configured {
        let mut configured = Configured::new();
        for (rule, policies) in &state.policies {
            if let Some(rule) = rule {
                self.names.place_of_rule(rule);
            }
            for (tier, policy) in policies {
                for limit in policy.limits() {
                    let place = self.names.place_of_limit(rule.as_ref(), limit);
                    let by_tier = configured.entry(place).or_default();
                    by_tier.push((tier.clone(), limit.limit()));
                }
            }
        }
        for by_tier in configured.values_mut() {
            let (tier, limit) = &by_tier[0];
            if tier.is_empty() && by_tier.iter().all(|(_, other)| other == limit) {
                by_tier.truncate(1);
            }
        }
        configured.remove(&OTHER_LIMITS);
        configured
    }

    fn rules(&self) -> Vec<RuleStats> {
        let stats = |place: usize, rule: String| {
            let counts = self.of_name(place);
            (rule, [counts.over.get(), counts.shadow_over.get(), counts.within.get()])
        };
        let named = self.names.places().filter_map(|place| {
            let name = self.names.name(place).filter(|name| name.limit.is_none())?;
            Some(stats(place, self.rule_name(name.rule.as_ref())))
        });
        let other = Some(stats(OTHER_RULES, OTHER_NAME.to_owned()));
        let other = other.filter(|(_, counts)| counts.iter().any(|count| *count > 0));
        named.chain(other).map(|(rule, counts)| RuleStats::new(rule, counts)).collect()
    }

    fn limits(&self, configured: &Configured) -> Vec<LimitStats> {
        let stats = |place: usize, rule: String, name: String| {
            let counts = self.of_name(place);
            let over = [counts.over.get() + self.denied_by(place), counts.shadow_over.get()];
            let by_tier = configured.get(&place).cloned().unwrap_or_default();
            LimitStats::new(rule, name, by_tier, over, utilization(&counts))
        };
        let named = self.names.places().filter_map(|place| {
            let name = self.names.name(place)?;
            let limit = name.limit.as_ref()?;
            Some(stats(place, self.rule_name(name.rule.as_ref()), limit.name().to_owned()))
        });
        let other = Some(stats(OTHER_LIMITS, OTHER_NAME.to_owned(), OTHER_NAME.to_owned()));
        let is_used =
            |other: &LimitStats| other.over + other.shadow_over + other.utilization.count() > 0;
        named.chain(other.filter(is_used)).collect()
    }

    /// Returns the names of the rule and of the limit at `place`.
    fn limit_at(&self, place: usize) -> Option<(String, String)> {
        let name = self.names.name(place)?;
        Some((self.rule_name(name.rule.as_ref()), name.limit.as_ref()?.name().to_owned()))
    }

    /// Returns the number of denials by the limit at `place` that `DecisionCounts` contains. These
    /// are only denials under the policy of all subjects.
    fn denied_by(&self, place: usize) -> u64 {
        let index = place.checked_sub(RESERVED).filter(|index| *index < Policy::MAX_LIMITS);
        index.map_or(0, |index| self.decisions.sum(|decisions| decisions.denied_by(index)))
    }

    /// Returns the sum of all threads for the name at `place`.
    fn of_name(&self, place: usize) -> NameCounts {
        let sum = NameCounts::default();
        let counts = self.shards.iter().filter_map(|shard| shard.counted_name(place));
        counts.for_each(|counts| sum.add(counts));
        sum
    }

    /// Returns the name of a rule: its namespace without that of the limiter. A namespace outside
    /// that of the limiter begins with `/`, because a rule may have the same name. Returns an empty
    /// text if there is no rule.
    fn rule_name(&self, rule: Option<&Namespace>) -> String {
        let Some(rule) = rule else { return String::new() };
        let own = rule.rule_below(self.namespace.as_str());
        own.map_or_else(|| format!("/{rule}"), str::to_owned)
    }
}

/// Returns the used fractions of a limit.
fn utilization(counts: &NameCounts) -> Histogram {
    let fraction = |millionths: u64| millionths as f64 / 1e6;
    let bounds = UTILIZATION_BOUNDS.map(fraction).to_vec();
    let buckets = counts.utilization.iter().map(ThreadCount::get).collect();
    Histogram::new(bounds, buckets, fraction(counts.utilization_sum.get()))
}

/// Returns the number of failures of each kind.
fn failures(counts: &[AtomicU64; FailureKind::ALL.len()]) -> Vec<FailureCount> {
    let counts = FailureKind::ALL.iter().zip(counts);
    counts.map(|(kind, count)| FailureCount::new(*kind, count.load(Ordering::Relaxed))).collect()
}
