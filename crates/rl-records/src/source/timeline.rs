use std::sync::{PoisonError, RwLock};

use rl_core::Policy;
use rl_core::time::Timestamp;

use crate::active::{Aggregation, block_at};
use crate::database::ConsumerLimits;
use crate::limits::CallLimits;

/// Converts limits into a policy.
pub(super) type PolicyOf = fn(&CallLimits) -> Option<Policy>;

/// The records of one consumer from a given time on. They determine its policy at every later time.
#[derive(Debug)]
pub(super) struct Timeline {
    spans: Vec<TimelineSpan>,
    aggregation: Aggregation,
    policy_of: PolicyOf,
    // The tier of the consumer, and the tiers of its subscriptions.
    tiers: Vec<String>,
    current: RwLock<Stretch>,
}

#[derive(Debug)]
struct TimelineSpan {
    from: Timestamp,
    to: Timestamp,
    limits: CallLimits,
    blocks: bool,
}

/// A policy, and the first and the last instant at which it applies.
#[derive(Clone, Debug)]
struct Stretch {
    from: Timestamp,
    to: Timestamp,
    policy: Option<Policy>,
}

impl Timeline {
    /// Creates the timeline of a consumer. While no record is active, the limits of its tier apply.
    pub(super) fn new(
        found: ConsumerLimits,
        aggregation: Aggregation,
        policy_of: PolicyOf,
        now: Timestamp,
    ) -> Self {
        let ConsumerLimits { records, tier, subscribed: mut tiers } = found;
        let aggregation = aggregation.with_tier(tier.as_ref());
        let spans = records.iter().map(|record| {
            let content = &record.content;
            TimelineSpan {
                from: content.from_date,
                to: content.to_date,
                limits: content.limits,
                blocks: content.blocks,
            }
        });
        let spans: Vec<TimelineSpan> = spans.collect();
        let current = RwLock::new(stretch(&spans, &aggregation, policy_of, now));
        tiers.extend(tier.map(|tier| tier.name));
        Self { spans, aggregation, policy_of, tiers, current }
    }

    /// Returns whether a change of the tier of this name changes the policy.
    pub(super) fn depends_on(&self, tier: &str) -> bool {
        self.tiers.iter().any(|name| name == tier)
    }

    /// Returns the policy at `now`, or `None` if there is no limit.
    pub(super) fn policy(&self, now: Timestamp) -> Option<Policy> {
        {
            let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
            if (current.from..=current.to).contains(&now) {
                return current.policy.clone();
            }
        }
        let found = stretch(&self.spans, &self.aggregation, self.policy_of, now);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        *current = found;
        current.policy.clone()
    }
}

/// Returns the policy at `now`, with the interval around `now` in which no record starts or ends.
fn stretch(
    spans: &[TimelineSpan],
    aggregation: &Aggregation,
    policy_of: PolicyOf,
    now: Timestamp,
) -> Stretch {
    let mut from = Timestamp::EPOCH;
    let mut to = Timestamp::from_micros(u64::MAX);
    for span in spans {
        if span.from > now {
            to = to.min(Timestamp::from_micros(span.from.as_micros() - 1));
        } else if span.to >= now {
            from = from.max(span.from);
            to = to.min(span.to);
        } else {
            from = from.max(span.to.plus_micros(1));
        }
    }
    let active = || spans.iter().filter(|span| (span.from..=span.to).contains(&now));
    let blocks = spans.iter().filter(|span| span.blocks).map(|span| (span.from, span.to));
    let policy = match block_at(blocks, now) {
        Some(until) => policy_of(&CallLimits::BLOCKED).map(|policy| policy.blocked_until(until)),
        None => policy_of(&aggregation.limits(active().map(|span| &span.limits))),
    };
    Stretch { from, to, policy }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{CallLimit, CallPeriod};

    fn timeline(spans: &[(u64, u64, u64)]) -> Timeline {
        let spans = spans.iter().map(|(from, to, max)| TimelineSpan {
            from: Timestamp::from_micros(*from),
            to: Timestamp::from_micros(*to),
            limits: CallLimits::UNLIMITED.with(CallPeriod::Hour, CallLimit::AtMost(*max)),
            blocks: false,
        });
        let (spans, aggregation) = (spans.collect::<Vec<_>>(), Aggregation::default());
        let policy_of: PolicyOf = CallLimits::policy;
        let current = RwLock::new(stretch(&spans, &aggregation, policy_of, Timestamp::EPOCH));
        Timeline { spans, aggregation, policy_of, tiers: Vec::new(), current }
    }

    fn max(timeline: &Timeline, now: u64) -> Option<u64> {
        let policy = timeline.policy(Timestamp::from_micros(now));
        policy.map(|policy| policy.limits()[0].limit().max())
    }

    #[test]
    fn a_record_is_active_from_its_first_to_its_last_microsecond() {
        let timeline = timeline(&[(100, 199, 10), (150, 300, 5), (301, 301, 1)]);
        #[rustfmt::skip]
        let edges = [
            (0, None), (99, None), (100, Some(10)), (149, Some(10)), (150, Some(15)),
            (199, Some(15)), (200, Some(5)), (300, Some(5)), (301, Some(1)), (302, None),
            // The clock was set back to an earlier time.
            (150, Some(15)), (u64::MAX, None),
        ];
        for (now, expected) in edges {
            assert_eq!(max(&timeline, now), expected, "{now}");
        }
    }

    /// Returns the end of the block at `now`, if there is a block.
    fn block(timeline: &Timeline, now: u64) -> Option<Option<u64>> {
        let policy = timeline.policy(Timestamp::from_micros(now))?;
        policy.block().map(|block| block.until().map(Timestamp::as_micros))
    }

    #[test]
    fn a_block_ends_after_the_last_record_that_blocks() {
        let in_year_9999 = 253_370_764_800_000_000;
        let mut timeline = timeline(&[
            (0, u64::MAX, 9),
            (100, 199, 0),
            // One block begins where another ends, and a third one overlaps with both.
            (200, 299, 0),
            (150, 250, 0),
            (500, 500, 0),
            (700, in_year_9999, 0),
        ]);
        timeline.spans[1..].iter_mut().for_each(|span| span.blocks = true);
        for (now, expected) in [
            (99, None),
            (100, Some(Some(300))),
            (199, Some(Some(300))),
            (299, Some(Some(300))),
            (300, None),
            (500, Some(Some(501))),
            (501, None),
            (700, Some(None)),
        ] {
            assert_eq!(block(&timeline, now), expected, "{now}");
            let policy = timeline.policy(Timestamp::from_micros(now)).unwrap();
            let max = if expected.is_some() { 0 } else { 9 };
            assert_eq!(policy.limits()[0].limit().max(), max, "{now}");
        }
    }

    proptest! {
        #[test]
        fn the_records_that_are_active_at_a_time_add_up(
            spans in prop::collection::vec((0_u64..40, 0_u64..20, 1_u64..100), 0..6),
            times in prop::collection::vec(0_u64..70, 1..20),
        ) {
            let spans: Vec<_> =
                spans.into_iter().map(|(from, length, max)| (from, from + length, max)).collect();
            let timeline = timeline(&spans);
            for now in times {
                let active = spans.iter().filter(|(from, to, _)| (*from..=*to).contains(&now));
                let sum: u64 = active.map(|(.., max)| max).sum();
                prop_assert_eq!(max(&timeline, now), (sum > 0).then_some(sum));
            }
        }
    }
}
