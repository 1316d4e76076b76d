//! Counts the decisions of a limiter: the only place where decisions are counted.
//!
//! [`Pipeline::report`](super::pipeline::Pipeline::report) counts each decision. Each thread counts in
//! a [`ThreadTally`] of its own; [`Tally::stats`] adds the counts of all threads up.

mod names;

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use names::{CHUNK, CHUNKS, CounterNames, OTHER_LIMITS, OTHER_RULES, RESERVED};
use tokio::time::Instant;

use super::counters::{Counters, PartCounters};
use crate::decision::{Decision, Origin};
use crate::model::{FailureKind, Limit, Mode};
use crate::policy::{NamedLimit, Policy};
use crate::stats::{
    DecisionCount, FailureCount, Histogram, LimitStats, LimiterStats, OTHER_NAME, OwnShard,
    REQUEST_BOUNDS, RuleStats, RulesFileStats, Sharded, StoreStats, ThreadCount, TimeHistogram,
    TopSubjects, UncountedRequests, UnitCounts, Writer,
};
use crate::store::Namespace;
use crate::time::Timestamp;

/// The time in µs after which the next decision is recorded, or the next permit is timed.
const SAMPLE_INTERVAL: u64 = 1_000;

/// On each thread, at least one in this number of permits is timed.
const TIMED_PERMITS: u64 = 64;

/// The bounds of used fractions, in millionths.
const UTILIZATION_BOUNDS: [u64; 5] = [250_000, 500_000, 750_000, 900_000, 1_000_000];

/// The number of buckets in which used fractions are counted: one up to each bound, and one above
/// the last.
const UTILIZATION_BUCKETS: usize = UTILIZATION_BOUNDS.len() + 1;

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
    threads: Sharded<ThreadTally>,
    names: CounterNames,
    /// Whether the next decision is timed.
    times_next: AtomicBool,
    top_denied: TopSubjects,
    top_used: TopSubjects,
    store_times: TimeHistogram,
    wait_times: TimeHistogram,
    permit_times: TimeHistogram,
    store_failures: [AtomicU64; FailureKind::ALL.len()],
    source_failures: [AtomicU64; FailureKind::ALL.len()],
    uncounted: [AtomicU64; UncountedKind::COUNT],
}

/// The counts of one thread.
#[derive(Debug, Default)]
#[repr(align(64))]
struct ThreadTally {
    /// The denied and the allowed decisions of each origin.
    by_origin: [[ThreadCount; 2]; Origin::COUNT],
    /// The units that checks charged.
    granted: ThreadCount,
    /// The denied and the allowed decisions about limits, of which some are recorded.
    samples: [Samples; 2],
    decision_times: TimeHistogram,
    /// The time, in microseconds since the limiter was built, from which the next call to the store
    /// is timed.
    next_timed_call: ThreadCount,
    charged_after: ThreadCount,
    refunded: ThreadCount,
    permits_begun: ThreadCount,
    permits_ended: ThreadCount,
    /// The time on the store's clock at which a permit was last timed.
    permit_sampled_at: ThreadCount,
    names: [OnceLock<Box<[NameCounts; CHUNK]>>; CHUNKS],
}

/// Decisions with one verdict, of which one in a millisecond is recorded under its subject.
#[derive(Debug, Default)]
struct Samples {
    /// The number of decisions when one was last recorded. The decisions since then are the weight
    /// of the next record.
    recorded: ThreadCount,
    /// The time of that decision, on the store's clock, or on the limiter's for a denial by the
    /// policy alone.
    recorded_at: ThreadCount,
}

/// The counts of a limit or a rule.
#[derive(Debug, Default)]
struct NameCounts {
    over: ThreadCount,
    shadow_over: ThreadCount,
    /// The requests that the rule allows, or would allow if another rule did not deny them.
    within: ThreadCount,
    utilization: [ThreadCount; UTILIZATION_BUCKETS],
    /// The sum of used fractions, in millionths.
    utilization_sum: ThreadCount,
}

impl NameCounts {
    /// Adds the counts of another thread.
    fn add(&self, other: &Self) {
        let sums = [&self.over, &self.shadow_over, &self.within, &self.utilization_sum];
        let counts = [&other.over, &other.shadow_over, &other.within, &other.utilization_sum];
        let (sums, counts) = (
            sums.into_iter().chain(&self.utilization),
            counts.into_iter().chain(&other.utilization),
        );
        sums.zip(counts).for_each(|(sum, count)| sum.add(count.get(), Writer::Sole));
    }
}

impl ThreadTally {
    /// Returns the number of allowed or of denied decisions that have an outcome for each limit.
    fn with_outcomes(&self, is_allowed: bool) -> u64 {
        let origins = Origin::all().into_iter().filter(|origin| origin.has_outcomes());
        let counts = origins.map(|origin| &self.by_origin[origin.index()][usize::from(is_allowed)]);
        counts.map(ThreadCount::get).fold(0, u64::wrapping_add)
    }

    /// Returns the counts of the name at `place`.
    #[inline]
    fn of_name(&self, place: usize) -> &NameCounts {
        let chunk = &self.names[place / CHUNK % CHUNKS];
        &chunk.get_or_init(Box::default)[place % CHUNK]
    }

    /// Returns the counts of the name at `place`. Returns `None` if this thread has no chunk of
    /// counts for it, because it has counted no name of this chunk.
    fn counted_name(&self, place: usize) -> Option<&NameCounts> {
        Some(&self.names[place / CHUNK % CHUNKS].get()?[place % CHUNK])
    }
}

/// Returns whether the sample at `last` is a millisecond old, or the clock has stepped back.
#[inline]
fn is_sample_due(at: Timestamp, last: &ThreadCount) -> bool {
    at.as_micros().wrapping_sub(last.get()) >= SAMPLE_INTERVAL
}

/// The state of a limiter now, and its settings, which its counts do not contain.
pub(super) struct LimiterState<'a> {
    pub(super) store_name: &'a str,
    pub(super) store: StoreStats,
    pub(super) in_flight: usize,
    pub(super) waiting: usize,
    pub(super) is_breaker_closed: bool,
    pub(super) rules_file: Option<RulesFileStats>,
    /// The policies of each rule by tier; the tier is an empty text for subjects without one. The
    /// rule is `None` for the policy of a limiter without rules.
    pub(super) policies: Vec<(Option<Namespace>, PoliciesByTier)>,
}

/// The policies of a rule, each with the name of its tier.
type PoliciesByTier = Vec<(String, Policy)>;

/// The limits that are configured, by place, each with the name of its tier.
type Configured = BTreeMap<usize, Vec<(String, Limit)>>;

/// A request that is counted apart from the decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UncountedKind {
    Exempt,
    MissingKey,
    AmbiguousKey,
    TooManyRules,
    UnknownAddress,
    /// A denied request that is forwarded to get a reduced response. Its decision is
    /// counted as well, as denied.
    Degraded,
}

impl UncountedKind {
    const COUNT: usize = Self::Degraded as usize + 1;
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
            threads: Sharded::default(),
            times_next: AtomicBool::new(false),
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

    /// Counts a decision in `mode`. `parts` are the counters of its parts.
    #[inline(never)]
    pub(super) fn count(
        &self,
        mode: Mode,
        decision: &Decision,
        parts: PartCounters<'_>,
    ) {
        let own = self.threads.own();
        let OwnShard { counts, writer } = own;
        let charged = decision.charged_in_all();
        match mode {
            Mode::Peek => return,
            Mode::Charge => return counts.charged_after.add(charged, writer),
            Mode::Check | Mode::CheckUpTo => counts.granted.add(charged, writer),
        }
        let (origin, verdict) = (decision.origin(), usize::from(decision.is_allowed()));
        counts.by_origin[origin.index()][verdict].add(1, writer);
        if !origin.has_outcomes() {
            return;
        }
        if decision.is_allowed() && !decision.has_shadow() {
            let indices = 0..decision.parts().len();
            for rule in indices.filter_map(|index| self.rule(parts.at(index))) {
                counts.of_name(self.names.place_of_rule(rule)).within.add(1, writer);
            }
        } else {
            self.count_over(own, decision, parts);
        }
        if is_sample_due(decision.at(), &counts.samples[verdict].recorded_at) {
            self.record(own, decision, parts);
        }
    }

    /// Counts the rules of a request, and the limits that deny it or would deny it.
    fn count_over(
        &self,
        own: OwnShard<'_, ThreadTally>,
        decision: &Decision,
        parts: PartCounters<'_>,
    ) {
        for (index, part) in decision.parts().enumerate() {
            let rule = self.rule(parts.at(index));
            let over = part.over();
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
            let limits = part.policy().map_or(&[][..], Policy::limits).iter().enumerate();
            for (index, limit) in limits.filter(|(index, _)| over.contains(*index)) {
                let counts = own.counts.of_name(self.place_of(part.policy(), rule, index, limit));
                let is_shadow = is_shadow || limit.limit().is_shadow();
                let count = if is_shadow { &counts.shadow_over } else { &counts.over };
                count.add(1, own.writer);
            }
        }
    }

    /// Records a decision under its subject, and the used fractions of its limits. The decision
    /// stands for all decisions with the same verdict since the last record.
    #[cold]
    fn record(
        &self,
        own: OwnShard<'_, ThreadTally>,
        decision: &Decision,
        parts: PartCounters<'_>,
    ) {
        let is_allowed = decision.is_allowed();
        let Samples { recorded, recorded_at } = &own.counts.samples[usize::from(is_allowed)];
        recorded_at.set(decision.at().as_micros());
        self.times_next.store(true, Ordering::Relaxed);
        let counted = own.counts.with_outcomes(is_allowed);
        // If threads share their counts, the record of another thread may already contain this
        // decision and later ones. None is then left, and the weight is 1.
        let weight = counted.saturating_sub(recorded.get()).max(1);
        let reported = decision.reported_part();
        let counters = parts.at(reported);
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
            let rule = self.rule(parts.at(index));
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
        counters: Counters<'_>,
    ) -> Option<usize> {
        let part = decision.parts().nth(index)?;
        let over = part.limits().enumerate().filter(|(_, limit)| limit.is_over());
        let (index, limit) = over.max_by_key(|(_, limit)| limit.retry_after())?;
        Some(self.place_of(part.policy(), self.rule(counters), index, limit.named()))
    }

    /// Returns the place of the limit at `index` of `policy`.
    fn place_of(
        &self,
        policy: Option<&Policy>,
        rule: Option<&Namespace>,
        index: usize,
        limit: &NamedLimit,
    ) -> usize {
        let own = self.policy.as_ref().zip(policy);
        if rule.is_none() && own.is_some_and(|(own, policy)| own.is_same_handle(policy)) {
            RESERVED + index
        } else {
            self.names.place_of_limit(rule, limit)
        }
    }

    /// Returns the namespace of a rule; `None` for counters in the limiter's own namespace.
    fn rule<'a>(&self, counters: Counters<'a>) -> Option<&'a Namespace> {
        counters.namespace.filter(|namespace| **namespace != self.namespace)
    }

    /// Returns the current time if the next decision in `mode` is to be timed.
    #[inline]
    pub(super) fn decision_begins(&self, mode: Mode) -> Option<Instant> {
        // Two readings of a clock take 50 ns, so a decision is timed only after one is recorded.
        if self.times_next.load(Ordering::Relaxed) { self.timing_begins(mode) } else { None }
    }

    #[cold]
    fn timing_begins(&self, mode: Mode) -> Option<Instant> {
        let is_timed = matches!(mode, Mode::Check | Mode::CheckUpTo)
            && self.times_next.swap(false, Ordering::Relaxed);
        is_timed.then(now)
    }

    /// Records the time of a store call, and the time that the decision took before the call. The
    /// call was sent at `sent`, which is `micros` after the limiter was built.
    ///
    /// Each thread records one of the calls that were sent within a millisecond. To read the clock
    /// and to record the time takes longer than all other counts of a decision.
    pub(super) fn store_called(&self, sent: Instant, micros: u64, before: Duration) {
        let counts = self.threads.own().counts;
        if micros >= counts.next_timed_call.get() {
            counts.next_timed_call.set(micros.saturating_add(1_000));
            let took = sent.elapsed();
            self.store_times.record(took);
            counts.decision_times.record(took + before);
        }
    }

    /// Records the time of a decision that the store has made without waiting.
    pub(super) fn decided_in_memory(&self, took: Duration) {
        self.threads.own().counts.decision_times.record(took);
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

    /// Counts a request that has no decision (it is exempt, its key is missing or ambiguous, or its
    /// address is unknown), or a denied request that is forwarded.
    pub(super) fn uncounted(&self, kind: UncountedKind) {
        self.uncounted[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts units that were charged for work that was done already.
    pub(super) fn charged_after(&self, units: u64) {
        let own = self.threads.own();
        own.counts.charged_after.add(units, own.writer);
    }

    /// Counts units that are refunded.
    pub(super) fn refunded(&self, units: u64) {
        let own = self.threads.own();
        own.counts.refunded.add(units, own.writer);
    }

    /// Counts a new permit. Returns the current time if the permit is to be timed, or else `None`.
    pub(super) fn permit_begun(&self, decision: &Decision) -> Option<Instant> {
        let OwnShard { counts, writer } = self.threads.own();
        counts.permits_begun.add(1, writer);
        let is_due = is_sample_due(decision.at(), &counts.permit_sampled_at)
            || counts.permits_begun.get().is_multiple_of(TIMED_PERMITS);
        if !is_due {
            return None;
        }
        counts.permit_sampled_at.set(decision.at().as_micros());
        Some(now())
    }

    /// Counts the end of a permit.
    pub(super) fn permit_ended(&self, begun: Option<Instant>) {
        let own = self.threads.own();
        own.counts.permits_ended.add(1, own.writer);
        if let Some(begun) = begun {
            self.permit_times.record(begun.elapsed());
        }
    }

    /// Returns all counts.
    pub(super) fn stats(&self, state: LimiterState<'_>) -> LimiterStats {
        let sum = |count: fn(&ThreadTally) -> &ThreadCount| {
            self.threads.sum(|thread| count(thread).get())
        };
        // `ended` is read before `begun`, so that the difference is never negative.
        let ended = sum(|thread| &thread.permits_ended);
        let begun = sum(|thread| &thread.permits_begun);
        let times = self.threads.iter().map(|thread| &thread.decision_times);
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let uncounted = |kind: UncountedKind| read(&self.uncounted[kind as usize]);
        // The names of configured limits are added, so that they are reported even before the first
        // denial.
        let configured = self.configured(&state);
        LimiterStats {
            name: self.namespace.to_string(),
            store_name: state.store_name.to_owned(),
            decisions: self.decisions(),
            degraded: uncounted(UncountedKind::Degraded),
            uncounted: UncountedRequests {
                exempt: uncounted(UncountedKind::Exempt),
                missing_key: uncounted(UncountedKind::MissingKey),
                ambiguous_key: uncounted(UncountedKind::AmbiguousKey),
                too_many_rules: uncounted(UncountedKind::TooManyRules),
                unknown_address: uncounted(UncountedKind::UnknownAddress),
            },
            units: UnitCounts {
                granted: sum(|thread| &thread.granted),
                charged_after: sum(|thread| &thread.charged_after),
                refunded: sum(|thread| &thread.refunded),
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
        let number = |is_allowed: bool, origin: Origin| {
            let counts = |thread: &ThreadTally| {
                thread.by_origin[origin.index()][usize::from(is_allowed)].get()
            };
            self.threads.sum(counts)
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
            let over = [counts.over.get(), counts.shadow_over.get()];
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

    /// Returns the sum of all threads for the name at `place`.
    fn of_name(&self, place: usize) -> NameCounts {
        let sum = NameCounts::default();
        let counts = self.threads.iter().filter_map(|thread| thread.counted_name(place));
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

#[cold]
#[inline(never)]
fn now() -> Instant {
    Instant::now()
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
