//! Counts the decisions that a store makes on the fast path.

use tokio::time::Instant;

use super::shard::{StoreDecisions, TallyShard};
use super::{TIMED, Tally};
use crate::decision::Decision;
use crate::limiter::counters::Counters;
use crate::maybe_ready::MaybeReady;
use crate::model::Mode;
use crate::policy::LimitSet;
use crate::stats::OwnShard;
use crate::store::{DecideRequest, FastPath, Store};
use crate::time::Timestamp;

/// A request on the fast path. The store counts its decision before it returns it.
struct FastCall<'a, F> {
    tally: &'a Tally,
    own: OwnShard<'a, TallyShard>,
    request: &'a DecideRequest<'a>,
    by_steps: F,
}

impl Tally {
    /// Lets `store` decide, and counts its decision. If it cannot decide, `by_steps` does.
    #[inline(always)]
    pub(in crate::limiter) fn decide_fast(
        &self,
        store: &dyn Store,
        request: &DecideRequest<'_>,
        by_steps: impl Fn() -> MaybeReady<Decision>,
    ) -> MaybeReady<Decision> {
        let own = self.shards.own();
        let TallyShard { allowed, denied, .. } = own.counts;
        let decided = allowed.count.get().wrapping_add(denied.count.get());
        let call = FastCall { tally: self, own, request, by_steps };
        if decided % TIMED == TIMED - 1 {
            return call.decide_timed(store);
        }
        store.try_decide(request, &call)
    }
}

impl<F: Fn() -> MaybeReady<Decision>> FastCall<'_, F> {
    /// Lets `store` decide, and records the time if the decision is ready.
    #[cold]
    #[inline(never)]
    fn decide_timed(&self, store: &dyn Store) -> MaybeReady<Decision> {
        let begun = Instant::now();
        let answer = store.try_decide(self.request, self);
        if let MaybeReady::Ready(_) = answer {
            self.own.counts.decision_times.record(begun.elapsed());
        }
        answer
    }

    /// Returns whether a decision at `at` is counted by its outcome alone: it belongs to no rule, and
    /// is not recorded by its subject.
    #[inline(always)]
    fn is_plain(&self, of_outcome: &StoreDecisions, at: Timestamp) -> bool {
        matches!(self.request.mode, Mode::Check | Mode::CheckUpTo)
            && self.request.parts[0].namespace.is_none()
            && !of_outcome.is_record_due(at)
    }
}

impl<F: Fn() -> MaybeReady<Decision>> FastPath for FastCall<'_, F> {
    fn decide_by_steps(&self) -> MaybeReady<Decision> {
        (self.by_steps)()
    }

    fn try_count_allowed(&self, units: u64, at: Timestamp) -> bool {
        let OwnShard { counts, writer } = self.own;
        let is_plain = self.is_plain(&counts.allowed, at);
        if is_plain {
            counts.allowed.count.add(1, writer);
            counts.granted.add(units, writer);
        }
        is_plain
    }

    fn try_count_denied(&self, over: LimitSet, at: Timestamp) -> bool {
        let OwnShard { counts, writer } = self.own;
        let is_own = self.tally.is_own(self.request.parts[0].policy);
        let is_plain = is_own && self.is_plain(&counts.denied, at);
        if is_plain {
            counts.denied.count.add(1, writer);
            counts.count_over(over, writer);
        }
        is_plain
    }

    fn count(&self, decision: &Decision) {
        let counters_of = |index: usize| Counters::from(&self.request.parts[index]);
        self.tally.count(self.request.mode, decision, &counters_of);
    }
}
