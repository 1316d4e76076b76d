//! Counts the decisions of a limiter: the only place where decisions are counted.
//!
//! ```text
//! Pipeline::decide_fast, Pipeline::report, WaitingRequest::check
//!   └─► Tally::count ──► DecisionCounts  a few numbers of the thread
//!                    └─► TallyShard      other origins, rules and names
//! ```
//!
//! Each thread counts in [`DecisionCounts`] and in a [`TallyShard`] of its own. `snapshot.rs` adds
//! the counts of all threads up.

mod names;
mod record;
mod shard;
mod snapshot;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use names::{CounterNames, RESERVED};
use shard::TallyShard;
pub(super) use snapshot::LimiterState;
use tokio::time::Instant;

use super::parts::CounterKey;
use crate::decision::{Decision, Origin, PartStatus};
use crate::model::{FailureKind, Mode};
use crate::policy::{LimitSet, NamedLimit, Policy};
use crate::stats::{
    DecisionCounts, OwnShard, PerThread, REQUEST_BOUNDS, Sharded, TimeHistogram, TopSubjects,
    is_record_due,
};
use crate::store::Namespace;

/// On each thread, at least one in this number of permits is timed.
const TIMED_PERMITS: u64 = 64;

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
}

#[cold]
fn now() -> Instant {
    Instant::now()
}
