use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock};

use rl_core::Policy;
use rl_core::time::Timestamp;

use crate::active::{Aggregation, block_at};
use crate::call_limits::CallLimits;
use crate::database::SubjectLimits;
use crate::limits::Limits;
use crate::record::RecordContent;

/// Converts limits into a policy.
pub(super) type PolicyOf = fn(&Limits) -> Option<Policy>;

/// The records of one subject from a given time on. They determine its policy at every later time.
#[derive(Debug)]
pub(super) struct Timeline {
    spans: Vec<TimelineSpan>,
    aggregation: Aggregation,
    policy_of: PolicyOf,
    has_tier: bool,
    // The tier of the subject, and the tiers of its subscriptions.
    tiers: Vec<String>,
    // The current policy under each rule that a record names, and under all others.
    current: Vec<(Option<String>, RwLock<Stretch>)>,
}

#[derive(Debug)]
struct TimelineSpan {
    from: Timestamp,
    to: Timestamp,
    rule: Option<String>,
    limits: Limits,
    blocks: bool,
    is_grant: bool,
}

/// A policy, and the first and the last instant at which it applies.
#[derive(Clone, Debug)]
struct Stretch {
    from: Timestamp,
    to: Timestamp,
    policy: Option<Policy>,
    has_own_limits: bool,
    grants: Limits,
}

impl Timeline {
    /// Creates the timeline of a subject. While no record is active, the limits of its tier apply.
    pub(super) fn new(
        found: SubjectLimits,
        aggregation: &Aggregation,
        policy_of: PolicyOf,
        now: Timestamp,
    ) -> Self {
        let SubjectLimits { records, tier, subscribed: mut tiers } = found;
        let aggregation = aggregation.with_tier(tier.as_ref());
        let spans = records.into_iter().map(|record| {
            let RecordContent { from_date, to_date, rule, limits, blocks, grants, .. } =
                record.content;
            TimelineSpan { from: from_date, to: to_date, rule, limits, blocks, is_grant: grants }
        });
        let has_tier = tier.is_some();
        tiers.extend(tier.map(|tier| tier.name));
        Self::of_spans(spans.collect(), aggregation, policy_of, has_tier, tiers, now)
    }

    fn of_spans(
        spans: Vec<TimelineSpan>,
        aggregation: Aggregation,
        policy_of: PolicyOf,
        has_tier: bool,
        tiers: Vec<String>,
        now: Timestamp,
    ) -> Self {
        let rules: BTreeSet<_> = spans.iter().map(|span| span.rule.clone()).chain([None]).collect();
        let timeline = Self { spans, aggregation, policy_of, has_tier, tiers, current: Vec::new() };
        let current = rules.into_iter().map(|rule| {
            let stretch = timeline.stretch(rule.as_deref(), now);
            (rule, RwLock::new(stretch))
        });
        let current = current.collect();
        Self { current, ..timeline }
    }

    /// Returns whether a change of the tier of this name changes the policy.
    pub(super) fn depends_on(&self, tier: &str) -> bool {
        self.tiers.iter().any(|name| name == tier)
    }

    /// Returns the policy under a rule at `now`, which has no policy if there is no limit. `None` is
    /// a limiter without rules.
    pub(super) fn policy(&self, rule: Option<&str>, now: Timestamp) -> FoundPolicy {
        let of_rule = self.current.iter().find(|(known, _)| known.as_deref() == rule);
        // The first entry is for the rules that no record names.
        let (rule, current) = of_rule.unwrap_or(&self.current[0]);
        {
            let current = current.read().unwrap_or_else(PoisonError::into_inner);
            if (current.from..=current.to).contains(&now) {
                return self.found(&current);
            }
        }
        let found = self.stretch(rule.as_deref(), now);
        let mut current = current.write().unwrap_or_else(PoisonError::into_inner);
        *current = found;
        self.found(&current)
    }

    fn found(&self, stretch: &Stretch) -> FoundPolicy {
        let is_default = !stretch.has_own_limits && !self.has_tier;
        FoundPolicy { policy: stretch.policy.clone(), is_default, grants: stretch.grants.clone() }
    }

    /// Returns the policy under a rule at `now`, with the interval around `now` in which no record
    /// starts or ends.
    fn stretch(&self, rule: Option<&str>, now: Timestamp) -> Stretch {
        let applies = |span: &&TimelineSpan| span.rule.is_none() || span.rule.as_deref() == rule;
        let spans = || self.spans.iter().filter(applies);
        let mut from = Timestamp::EPOCH;
        let mut to = Timestamp::from_micros(u64::MAX);
        for span in spans() {
            if span.from > now {
                to = to.min(Timestamp::from_micros(span.from.as_micros() - 1));
            } else if span.to >= now {
                from = from.max(span.from);
                to = to.min(span.to);
            } else {
                from = from.max(span.to.plus_micros(1));
            }
        }
        let active = |is_grant: bool| {
            let is_active = move |span: &&TimelineSpan| {
                span.is_grant == is_grant && (span.from..=span.to).contains(&now)
            };
            spans().filter(is_active).map(|span| &span.limits)
        };
        let grants = Limits::sum(active(true));
        let blocks = spans().filter(|span| span.blocks).map(|span| (span.from, span.to));
        let policy_of = self.policy_of;
        let policy = match block_at(blocks, now) {
            Some(until) => {
                policy_of(&CallLimits::BLOCKED.into()).map(|policy| policy.blocked_until(until))
            }
            None => policy_of(&self.aggregation.limits(active(false)).with_grants(&grants)),
        };
        Stretch { from, to, policy, has_own_limits: active(false).next().is_some(), grants }
    }
}

/// The policy of a subject at a time; `None` if there is no limit.
#[derive(Debug)]
pub(super) struct FoundPolicy {
    pub(super) policy: Option<Policy>,
    /// Whether the policy is that of the defaults, because there is neither an active record nor a
    /// tier.
    pub(super) is_default: bool,
    /// The grants to add if the limits come from another source.
    pub(super) grants: Limits,
}

/// Returns the policy of a subject without records.
impl Default for FoundPolicy {
    fn default() -> Self {
        Self { policy: None, is_default: true, grants: Limits::UNLIMITED }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn timeline(spans: &[(u64, u64, u64)]) -> Timeline {
        let spans = spans.iter().map(|(from, to, max)| TimelineSpan {
            from: Timestamp::from_micros(*from),
            to: Timestamp::from_micros(*to),
            rule: None,
            limits: format!("{max}/hour").parse().unwrap(),
            blocks: false,
            is_grant: false,
        });
        timeline_of(spans.collect())
    }

    fn timeline_of(spans: Vec<TimelineSpan>) -> Timeline {
        let (aggregation, now) = (Aggregation::default(), Timestamp::EPOCH);
        Timeline::of_spans(spans, aggregation, Limits::policy, false, Vec::new(), now)
    }

    fn max(timeline: &Timeline, now: u64) -> Option<u64> {
        let policy = timeline.policy(None, Timestamp::from_micros(now)).policy;
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

    #[test]
    fn a_record_of_a_rule_is_added_under_this_rule_only() {
        let span = |rule: Option<&str>, limits: &str| TimelineSpan {
            from: Timestamp::from_micros(10),
            to: Timestamp::from_micros(20),
            rule: rule.map(ToOwned::to_owned),
            limits: limits.parse().unwrap(),
            blocks: false,
            is_grant: false,
        };
        let timeline = timeline_of(vec![
            span(None, "100/hour"),
            span(Some("login"), "5/minute"),
            span(Some("login"), "1/hour"),
            span(Some("search"), "9/hour:gcra"),
        ]);
        let found = |rule, now| {
            let found = timeline.policy(rule, Timestamp::from_micros(now));
            (found.policy.map(|policy| policy.to_string()), found.is_default)
        };
        for (rule, expected) in [
            (None, "hour=100/hour"),
            (Some("other"), "hour=100/hour"),
            (Some("login"), "minute=5/minute, hour=101/hour"),
            (Some("search"), "hour=100/hour, hour:gcra=9/hour:gcra"),
        ] {
            assert_eq!(found(rule, 10), (Some(expected.to_owned()), false), "{rule:?}");
            assert_eq!(found(rule, 21), (None, true), "{rule:?}");
        }
    }

    /// Returns the end of the block at `now`, if there is a block.
    fn block(timeline: &Timeline, now: u64) -> Option<Option<u64>> {
        let policy = timeline.policy(None, Timestamp::from_micros(now)).policy?;
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
            let policy = timeline.policy(None, Timestamp::from_micros(now)).policy.unwrap();
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
