//! Counts the decisions of a limiter: the only place where decisions are counted.
//!
//! ```text
//! Pipeline::decide_fast, Pipeline::report, WaitingRequest::check
//!   └─► Tally::count ──► DecisionCounts  a few numbers of the thread
//!                    └─► TallyShard      other origins, rules and names
//! ```
//!
//! Each thread counts in [`DecisionCounts`] and in a [`TallyShard`] of its own. [`Tally::stats`]
//! adds the counts of all threads up.

mod names;
mod shard;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use names::{CounterNames, OTHER_LIMITS, OTHER_RULES, RESERVED};
use shard::{NameCounts, TallyShard, UTILIZATION_BOUNDS};
use tokio::time::Instant;

use super::parts::CounterKey;
use crate::decision::{Decision, Origin, PartStatus};
use crate::model::{FailureKind, Limit, Mode};
use crate::policy::{LimitSet, NamedLimit, Policy};
use crate::stats::{
    DecisionCount, DecisionCounts, FailureCount, Histogram, LimitStats, LimiterStats, OTHER_NAME,
    OwnShard, PerThread, REQUEST_BOUNDS, RuleStats, RulesFileStats, Sharded, StoreStats,
    ThreadCount, TimeHistogram, TopSubjects, UncountedRequests, UnitCounts, is_record_due,
};
use crate::store::Namespace;

/// On each thread, at least one in this number of permits is timed.
const TIMED_PERMITS: u64 = 64;

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

/// The counts of a limiter.
pub(super) struct Tally {
    /// The namespace of the limiter.
    namespace: Namespace,
    /// The policy of all subjects, if there is one. Its limits are the first entries of `names`.
    policy: Option<Policy>,
    decisions: PerThread<DecisionCounts>,
    shards: Sharded<TallyShard>,
    names: CounterNames,
    top_denied: TopSubjects,
    top_used: TopSubjects,
    store_times: TimeHistogram,
    wait_times: TimeHistogram,
    permit_times: TimeHistogram,
    store_failures: [AtomicU64; FailureKind::ALL.len()],
    source_failures: [AtomicU64; FailureKind::ALL.len()],
    uncounted: [AtomicU64; OutsideDecisions::COUNT],
}

/// A property of a request that is counted outside the decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutsideDecisions {
    Exempt,
    MissingKey,
    AmbiguousKey,
    TooManyRules,
    UnknownAddress,
    /// A denied request that is forwarded to get a reduced response. Its decision is counted as
    /// well, as denied.
    Degraded,
}

impl OutsideDecisions {
    const COUNT: usize = Self::Degraded as usize + 1;
}

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

impl Tally {
    /// Creates the counts of the limiter called `namespace`, with the policy of all subjects if
    /// there is one.
    pub(super) fn new(namespace: &Namespace, policy: Option<Policy>) -> Self {
        let names = CounterNames::default();
        for (index, limit) in policy.iter().flat_map(Policy::limits).enumerate() {
            let place = names.place_of_limit(None, limit);
            debug_assert_eq!(place, RESERVED + index, "the names are added in this order");
        }
        Self {
            namespace: namespace.clone(),
            policy,
            names,
            decisions: PerThread::default(),
            shards: Sharded::default(),
            top_denied: TopSubjects::default(),
            top_used: TopSubjects::default(),
            store_times: TimeHistogram::default(),
            wait_times: TimeHistogram::new(&REQUEST_BOUNDS),
            permit_times: TimeHistogram::new(&REQUEST_BOUNDS),
            store_failures: Default::default(),
            source_failures: Default::default(),
            uncounted: Default::default(),
        }
    }

    /// Begins a decision of the thread in `mode`. Returns the current time if it is to be timed,
    /// and clears the flag that asks for this.
    pub(super) fn begin_decision(&self, mode: Mode) -> Option<Instant> {
        let decisions = self.decisions.own().counts;
        if !decisions.is_next_timed() || !matches!(mode, Mode::Check | Mode::CheckUpTo) {
            return None;
        }
        decisions.timing_begins();
        Some(now())
    }

    /// Counts a decision in `mode`. `counters_of` returns the counters of the part at a position.
    pub(super) fn count<'a>(
        &self,
        mode: Mode,
        decision: &Decision,
        counters_of: &dyn Fn(usize) -> CounterKey<'a>,
    ) {
        let OwnShard { counts: decisions, writer } = self.decisions.own();
        let charged = decision.charged_in_all();
        match mode {
            Mode::Peek => return,
            Mode::Charge => return self.charged_after(charged),
            Mode::Check | Mode::CheckUpTo => decisions.charged.add(charged, writer),
        }
        let (origin, is_allowed) = (decision.origin(), decision.is_allowed());
        match origin {
            Origin::Store => decisions.of_outcome(is_allowed).count.add(1, writer),
            _ => self.shards.own().counts.add_other_origin(origin, is_allowed, writer),
        }
        if !origin.has_outcomes() {
            return;
        }
        if self.has_own_limits(decision, counters_of) {
            // An allowed decision counts under the empty set of limits. So the table of sets is
            // allocated by the first decision, and not by the first denial.
            let over = if is_allowed { LimitSet::EMPTY } else { decision.over() };
            decisions.add_over(over, writer);
        } else {
            self.count_names(self.shards.own(), decision, counters_of);
        }
        if decisions.of_outcome(is_allowed).is_record_due(decision.at()) {
            self.record(decision, counters_of);
        }
    }

    /// Returns whether a decision is about one subject in the namespace of the limiter, under the
    /// policy of all subjects, and no limit is in shadow.
    fn has_own_limits<'a>(
        &self,
        decision: &Decision,
        counters_of: &dyn Fn(usize) -> CounterKey<'a>,
    ) -> bool {
        let is_own = |policy: &Policy| self.is_own(policy) && !policy.has_shadow();
        !decision.has_parts()
            && decision.origin() != Origin::Shadow
            && decision.policy().is_some_and(is_own)
            && self.rule(counters_of(0)).is_none()
    }

    /// Counts the rules of a decision, and the limits that deny it or would deny it.
    fn count_names<'a>(
        &self,
        own: OwnShard<'_, TallyShard>,
        decision: &Decision,
        counters_of: &dyn Fn(usize) -> CounterKey<'a>,
    ) {
        let has_over = !decision.is_allowed() || decision.has_shadow();
        for (index, part) in decision.parts().enumerate() {
            let rule = self.rule(counters_of(index));
            let is_shadow = part.is_shadow() || decision.origin() == Origin::Shadow;
            if let Some(rule) = rule {
                let counts = own.counts.of_name(self.names.place_of_rule(rule));
                let count = match (part.is_over(), is_shadow) {
                    (false, _) => &counts.within,
                    (true, false) => &counts.over,
                    (true, true) => &counts.shadow_over,
                };
                count.add(1, own.writer);
            }
            if has_over {
                self.count_limits_over(own, rule, part, is_shadow);
            }
        }
    }

    fn count_limits_over(
        &self,
        own: OwnShard<'_, TallyShard>,
        rule: Option<&Namespace>,
        part: PartStatus<'_>,
        is_shadow: bool,
    ) {
        for (index, limit) in part.limits().enumerate().filter(|(_, limit)| limit.is_over()) {
            let place = self.place_of(part.policy(), rule, index, limit.named());
            let counts = own.counts.of_name(place);
            let is_shadow = is_shadow || limit.limit().is_shadow();
            let count = if is_shadow { &counts.shadow_over } else { &counts.over };
            count.add(1, own.writer);
        }
    }

    /// Returns whether `policy` is the one policy of all subjects.
    pub(super) fn is_own(&self, policy: &Policy) -> bool {
        self.policy.as_ref().is_some_and(|own| own.is_same_handle(policy))
    }

    /// Returns the place of the limit at `index` of `policy`.
    fn place_of(
        &self,
        policy: Option<&Policy>,
        rule: Option<&Namespace>,
        index: usize,
        limit: &NamedLimit,
    ) -> usize {
        if rule.is_none() && policy.is_some_and(|policy| self.is_own(policy)) {
            RESERVED + index
        } else {
            self.names.place_of_limit(rule, limit)
        }
    }

    /// Returns the namespace of a rule; `None` for counters in the limiter's own namespace.
    fn rule<'a>(&self, counters: CounterKey<'a>) -> Option<&'a Namespace> {
        counters.namespace.filter(|namespace| **namespace != self.namespace)
    }

    /// Records the time of a store call, and the time that the decision took before the call. The
    /// call was sent at `sent`, which is `micros` after the limiter was built.
    ///
    /// Each thread records one of the calls that were sent within a millisecond. To read the clock
    /// and to record the time takes longer than all other counts of a decision.
    pub(super) fn store_called(&self, sent: Instant, micros: u64, before: Duration) {
        let counts = self.shards.own().counts;
        if micros >= counts.next_timed_call.get() {
            counts.next_timed_call.set(micros.saturating_add(1_000));
            let took = sent.elapsed();
            self.store_times.record(took);
            counts.decision_times.record(took + before);
        }
    }

    /// Records the time of a decision that the store has made without waiting.
    pub(super) fn decided_in_memory(&self, took: Duration) {
        self.shards.own().counts.decision_times.record(took);
    }

    /// Records the time for which a request waited in queues.
    pub(super) fn waited(&self, time: Duration) {
        self.wait_times.record(time);
    }

    /// Counts a failure of the store or of the fallback.
    pub(super) fn store_failed(&self, kind: FailureKind) {
        self.store_failures[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failure of the source of policies.
    pub(super) fn source_failed(&self, kind: FailureKind) {
        self.source_failures[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that has no decision, or a denied request that is forwarded.
    ///
    /// A request has no decision if it is exempt, its key is missing or ambiguous, its address is
    /// unknown, or too many rules match it.
    pub(super) fn uncounted(&self, kind: OutsideDecisions) {
        self.uncounted[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts units that were charged for work that was done already.
    pub(super) fn charged_after(&self, units: u64) {
        let own = self.shards.own();
        own.counts.charged_after.add(units, own.writer);
    }

    /// Counts units that are refunded.
    pub(super) fn refunded(&self, units: u64) {
        let own = self.shards.own();
        own.counts.refunded.add(units, own.writer);
    }

    /// Counts a new permit. Returns the current time if the permit is to be timed, or else `None`.
    pub(super) fn permit_begun(&self, decision: &Decision) -> Option<Instant> {
        let OwnShard { counts, writer } = self.shards.own();
        counts.permits_begun.add(1, writer);
        let is_due = is_record_due(decision.at(), &counts.permit_sampled_at)
            || counts.permits_begun.get().is_multiple_of(TIMED_PERMITS);
        if !is_due {
            return None;
        }
        counts.permit_sampled_at.set(decision.at().as_micros());
        Some(now())
    }

    /// Counts the end of a permit, and records how long it was held if it is timed.
    pub(super) fn permit_ended(&self, begun: Option<Instant>) {
        let own = self.shards.own();
        own.counts.permits_ended.add(1, own.writer);
        if let Some(begun) = begun {
            self.permit_times.record(begun.elapsed());
        }
    }

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

    /// Records a decision under its subject, and the used fractions of its limits. The decision
    /// stands for all decisions with the same verdict since the last record.
    #[cold]
    fn record<'a>(&self, decision: &Decision, counters_of: &dyn Fn(usize) -> CounterKey<'a>) {
        let (own, is_allowed) = (self.shards.own(), decision.is_allowed());
        let decisions = self.decisions.own().counts;
        decisions.time_next();
        let of_outcome = decisions.of_outcome(is_allowed);
        of_outcome.recorded_at.set(decision.at().as_micros());
        let others = &own.counts.of_other_origins[usize::from(is_allowed)];
        let counted = others.get().wrapping_add(of_outcome.count.get());
        let recorded = &own.counts.recorded[usize::from(is_allowed)];
        // If threads share their counts, the record of another thread may already contain this
        // decision and later ones. None is then left, and the weight is 1.
        let weight = counted.saturating_sub(recorded.get()).max(1);
        let reported = decision.reported_part();
        let counters = counters_of(reported);
        let (top, units, limit) = match is_allowed {
            true => (&self.top_used, weight.saturating_mul(decision.charged()), None),
            false => (&self.top_denied, weight, self.denying_limit(decision, reported, counters)),
        };
        if top.try_add(counters.subject, units, limit) {
            recorded.set(counted);
        }
        if decision.origin() == Origin::Policy {
            // No counter was read, so the used units are unknown.
            return;
        }
        for (index, part) in decision.parts().enumerate() {
            let rule = self.rule(counters_of(index));
            for (index, limit) in part.limits().enumerate().filter(|(_, limit)| limit.max() > 0) {
                let place = self.place_of(part.policy(), rule, index, limit.named());
                let counts = own.counts.of_name(place);
                let used = limit.used().saturating_mul(1_000_000) / limit.max();
                let bucket = UTILIZATION_BOUNDS.partition_point(|bound| *bound < used);
                counts.utilization[bucket].add(1, own.writer);
                counts.utilization_sum.add(used, own.writer);
            }
        }
    }

    /// Returns the place of the limit of a part that denies for the longest time.
    fn denying_limit(
        &self,
        decision: &Decision,
        index: usize,
        counters: CounterKey<'_>,
    ) -> Option<usize> {
        let part = decision.parts().nth(index)?;
        let over = part.limits().enumerate().filter(|(_, limit)| limit.is_over());
        let (index, limit) = over.max_by_key(|(_, limit)| limit.retry_after())?;
        Some(self.place_of(part.policy(), self.rule(counters), index, limit.named()))
    }
}

#[cold]
fn now() -> Instant {
    Instant::now()
}

/// The policies of a rule, each with the name of its tier.
type PoliciesByTier = Vec<(String, Policy)>;

/// The limits that are configured, by place, each with the name of its tier.
type Configured = BTreeMap<usize, Vec<(String, Limit)>>;

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
