//! Records one of many decisions: its subject, and the used fractions of its limits.

use super::Tally;
use super::shard::UTILIZATION_BOUNDS;
use crate::decision::{Decision, Origin};
use crate::limiter::parts::CounterKey;

impl Tally {
    /// Records a decision under its subject, and the used fractions of its limits. The decision
    /// stands for all decisions with the same verdict since the last record.
    #[cold]
    pub(super) fn record<'a>(
        &self,
        decision: &Decision,
        counters_of: &dyn Fn(usize) -> CounterKey<'a>,
    ) {
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
