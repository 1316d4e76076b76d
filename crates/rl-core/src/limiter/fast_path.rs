//! The fast path of a decision, which the store counts.

use std::sync::Arc;

use tokio::time::Instant;

use super::counters::Counters;
use super::pipeline::Pipeline;
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::stats::DecisionCounts;
use crate::store::{DecideRequest, FastPath, FastPathLimiter};
use crate::time::Timestamp;

impl Pipeline {
    /// Lets the store decide without the other steps. If the store cannot, the request is decided
    /// step by step.
    ///
    /// `counts` contains the counts of the thread; `None` if the decision changes other counts too.
    #[inline(always)]
    pub(super) fn decide_fast(
        self: &Arc<Self>,
        request: &DecideRequest<'_>,
        counts: Option<&DecisionCounts>,
    ) -> MaybeReady<Decision> {
        let limiter = FastPath::new(self, counts);
        if let Some(counts) = counts
            && counts.is_next_timed()
        {
            counts.timing_begins();
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
