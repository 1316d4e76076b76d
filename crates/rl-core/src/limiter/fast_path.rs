//! The fast path of a decision, which the store counts.

use std::sync::Arc;

use tokio::time::Instant;

use super::parts::Counters;
use super::pipeline::Pipeline;
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, Mode};
use crate::observe;
use crate::policy::Policy;
use crate::stats::PartCounts;
use crate::store::{DecideRequest, FastPath, FastPathLimiter, Part};
use crate::time::Timestamp;

impl Pipeline {
    /// Returns whether the store can decide a request under `policy` without the other steps.
    #[inline(always)]
    pub(super) fn is_fast(&self, policy: &Policy, mode: Mode, cost: Cost) -> bool {
        self.may_be_fast() && needs_only_store(policy, mode, cost)
    }

    /// Returns whether the store can decide a request of these parts without the other steps.
    pub(super) fn are_fast(&self, parts: &[Part<'_>], mode: Mode) -> bool {
        let is_fast =
            |part: &Part<'_>| !part.is_shadow() && needs_only_store(part.policy, mode, part.cost);
        self.may_be_fast() && !parts.is_empty() && parts.iter().all(is_fast)
    }

    /// Returns whether the store can decide requests that [need only the store](needs_only_store)
    /// without the other steps.
    #[inline(always)]
    fn may_be_fast(&self) -> bool {
        self.has_fast_path && !observe::may_decisions_be_logged()
    }

    /// Lets the store decide without the other steps. If the store cannot, the request is decided
    /// step by step.
    ///
    /// `counts` contains the counts of the thread that the decision changes; `None` if it changes
    /// others too.
    #[inline(always)]
    pub(super) fn decide_fast(
        self: &Arc<Self>,
        request: &DecideRequest<'_>,
        counts: Option<PartCounts<'_>>,
    ) -> MaybeReady<Decision> {
        let limiter = FastPath::new(self, counts);
        let decisions = match counts {
            Some(counts) => Some(counts.decisions),
            None => self.tally.decisions_in(request.mode),
        };
        if let Some(decisions) = decisions
            && decisions.is_next_timed()
        {
            decisions.timing_begins();
            return self.decide_timed(request, &limiter);
        }
        self.stores.primary.try_decide(request, &limiter)
    }

    /// Lets the store decide. If the decision is ready, records the time that it took.
    #[cold]
    #[inline(never)]
    fn decide_timed(
        &self,
        request: &DecideRequest<'_>,
        limiter: &FastPath<'_>,
    ) -> MaybeReady<Decision> {
        let begun = Instant::now();
        let answer = self.stores.primary.try_decide(request, limiter);
        if let MaybeReady::Ready(_) = answer {
            self.tally.decided_in_memory(begun.elapsed());
        }
        answer
    }
}

/// Returns whether the policy alone denies nothing, and the store needs no other policy in its
/// place.
#[inline(always)]
fn needs_only_store(policy: &Policy, mode: Mode, cost: Cost) -> bool {
    // `Mode::Charge` is for finished work, which occupies no place. If the policy has a
    // concurrency limit, the store must not get the whole policy.
    let is_whole = mode != Mode::Charge || !policy.has_permits();
    is_whole && policy.needs_only_store(mode.required(cost))
}

impl FastPathLimiter for Arc<Pipeline> {
    fn decide_by_steps(&self, request: &DecideRequest<'_>) -> MaybeReady<Decision> {
        // This operation makes no reservation, because a limiter that makes reservations has no
        // fast path.
        self.decide_with_policies(request.parts, self.operation(request.mode))
    }

    fn try_count_allowed(&self, request: &DecideRequest<'_>, units: u64, at: Timestamp) -> bool {
        self.tally.try_count_allowed(request, units, at)
    }

    fn count(&self, request: &DecideRequest<'_>, decision: &Decision) {
        let counters_of = |index: usize| Counters::from(&request.parts[index]);
        self.tally.count(request.mode, decision, &counters_of);
    }
}
