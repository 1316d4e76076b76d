use rl_core::time::Timestamp;
use rl_core::{MAX_UNITS, Policy};

use crate::limits::{CallLimit, CallLimits, CallPeriod, ZeroMeans};
use crate::record::{Record, RecordContent};
use crate::record_id::RecordId;
use crate::tier::TierContent;

/// How the records of a consumer are combined into one limit for each period.
///
/// # Examples
///
/// ```
/// use rl_records::{Aggregation, CallLimits};
///
/// let (one, other) = ([100, 0, -1, 0, -1, -1], [50, 10, -1, -1, -1, -1]);
/// let records = [CallLimits::from_numbers(one)?, CallLimits::from_numbers(other)?];
/// let limits = Aggregation::default().limits(&records);
/// assert_eq!(limits.numbers(), [150, 10, -1, 0, -1, -1]);
/// # Ok::<(), rl_records::InvalidField>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aggregation {
    /// The limits of a consumer that has neither an active record nor a tier.
    pub defaults: CallLimits,
    /// The meaning of 0 as the combined limit of a period. The limit is 0 if an active record has 0
    /// and no other has a positive number. (−1 is no limit, and does not count.) Without active
    /// records, it is 0 if the defaults have 0.
    pub zero_means: ZeroMeans,
}

impl Default for Aggregation {
    /// Returns rules without default limits, in which a limit of 0 blocks.
    fn default() -> Self {
        Self { defaults: CallLimits::UNLIMITED, zero_means: ZeroMeans::Blocked }
    }
}

impl Aggregation {
    /// Returns these rules with the limits of `tier` as the defaults, if there is a tier.
    pub(crate) fn with_tier(self, tier: Option<&TierContent>) -> Self {
        Self { defaults: tier.map_or(self.defaults, |tier| tier.limits), ..self }
    }

    /// Returns whether a member of `tier`, or a consumer without a tier, is blocked while it has no
    /// active record.
    pub(crate) fn is_blocked_in(self, tier: Option<&TierContent>) -> bool {
        self.with_tier(tier).limits([]).has_zero()
    }

    /// Returns the combined limits of these records. A 0 in the result always blocks.
    #[must_use]
    pub fn limits<'a>(&self, records: impl IntoIterator<Item = &'a CallLimits>) -> CallLimits {
        let mut records = records.into_iter();
        // The sum starts with the first record, because records replace the defaults.
        let sum = match records.next() {
            Some(first) => records.fold(*first, add),
            None => self.defaults,
        };
        CallPeriod::ALL.into_iter().fold(sum, |limits, period| match limits.get(period) {
            CallLimit::AtMost(0) if self.zero_means == ZeroMeans::Unlimited => {
                limits.with(period, CallLimit::Unlimited)
            }
            _ => limits,
        })
    }
}

fn add(sum: CallLimits, other: &CallLimits) -> CallLimits {
    CallPeriod::ALL.into_iter().fold(sum, |limits, period| {
        let limit = match (sum.get(period), other.get(period)) {
            (CallLimit::Unlimited, limit) | (limit, CallLimit::Unlimited) => limit,
            // Sums are checked when a record is stored. Records that another program wrote may
            // exceed the maximum, so the sum is clamped.
            (CallLimit::AtMost(a), CallLimit::AtMost(b)) => {
                CallLimit::AtMost(a.saturating_add(b).min(MAX_UNITS))
            }
        };
        limits.with(period, limit)
    })
}

/// Returns whether `record` removes all limits of its consumer while it is active.
///
/// This is the case if the record does not block, has −1 in every period, and `replaced` has any
/// limit. `replaced` contains the limits that the record replaces: those of the tier, or the
/// defaults. Such a record is easily made by mistake, so callers should warn about it.
///
/// # Examples
///
/// ```
/// use rl_core::time::Timestamp;
/// use rl_records::{CallLimits, RecordContent, lifts};
///
/// let free = CallLimits::from_numbers([2, 20, -1, -1, -1, -1])?;
/// let record = |limits| {
///     RecordContent::new("abc123", Timestamp::EPOCH, Timestamp::from_secs(60), limits)
/// };
/// assert!(lifts(&free, &record(CallLimits::UNLIMITED)));
/// assert!(!lifts(&free, &record(free)));
/// assert!(!lifts(&CallLimits::UNLIMITED, &record(CallLimits::UNLIMITED)));
/// # Ok::<(), rl_records::InvalidField>(())
/// ```
#[must_use]
pub fn lifts(replaced: &CallLimits, record: &RecordContent) -> bool {
    !record.blocks && record.limits == CallLimits::UNLIMITED && *replaced != CallLimits::UNLIMITED
}

/// Returns the end of the block that is active at `now`, if there is one.
///
/// The end is the first instant at which no record blocks. `Some(None)` is a block without an end.
///
/// `blocks` contains the first and the last instant of each record that blocks. Blocks that
/// overlap, or that follow each other without a gap, count as one block.
pub(crate) fn block_at(
    blocks: impl Iterator<Item = (Timestamp, Timestamp)>,
    now: Timestamp,
) -> Option<Option<Timestamp>> {
    let mut blocks: Vec<_> = blocks.filter(|(_, to)| *to >= now).collect();
    blocks.sort_unstable();
    let mut end = now;
    for (from, to) in blocks {
        if from > end {
            break;
        }
        end = end.max(to.plus_micros(1));
    }
    (end > now).then(|| (end < NO_END).then_some(end))
}

/// The beginning of the year 9999. A block that lasts until then counts as having no end.
const NO_END: Timestamp = Timestamp::from_secs(253_370_764_800);

/// The contribution of one record to the limits of its consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contribution {
    /// The id of the record.
    pub id: RecordId,
    /// The limits of the record.
    pub limits: CallLimits,
    /// The first instant at which the record is active.
    pub from_date: Timestamp,
    /// The last instant at which the record is active.
    pub to_date: Timestamp,
    /// Whether the record blocks the consumer.
    pub blocks: bool,
}

impl Contribution {
    /// Returns the number of calls that the record adds to the limit of `period`.
    #[must_use]
    pub const fn added(&self, period: CallPeriod) -> u64 {
        match self.limits.get(period) {
            CallLimit::AtMost(calls) => calls,
            CallLimit::Unlimited => 0,
        }
    }
}

/// The limits of a consumer at a given time, and the records or the tier that they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveLimits {
    limits: CallLimits,
    contributions: Vec<Contribution>,
    tier: Option<String>,
}

impl ActiveLimits {
    /// Combines the active records of a consumer. If there is none, the tier supplies the limits.
    pub(crate) fn new(
        records: &[Record],
        tier: Option<TierContent>,
        aggregation: Aggregation,
    ) -> Self {
        let aggregation = aggregation.with_tier(tier.as_ref());
        let limits = if records.iter().any(|record| record.content.blocks) {
            CallLimits::BLOCKED
        } else {
            aggregation.limits(records.iter().map(|record| &record.content.limits))
        };
        let contributions = records.iter().map(|record| Contribution {
            id: record.id,
            limits: record.content.limits,
            from_date: record.content.from_date,
            to_date: record.content.to_date,
            blocks: record.content.blocks,
        });
        let tier = tier.filter(|_| records.is_empty()).map(|tier| tier.name);
        Self { limits, contributions: contributions.collect(), tier }
    }

    /// Returns the limit of each period. [`ZeroMeans`] has been applied, so 0 blocks.
    #[must_use]
    pub const fn limits(&self) -> CallLimits {
        self.limits
    }

    /// Returns the ids of the combined records, in the order of their `from_date`.
    pub fn considered_ids(&self) -> impl Iterator<Item = RecordId> + '_ {
        self.contributions.iter().map(|record| record.id)
    }

    /// Returns the contributions of the records, in the order of their `from_date`.
    #[must_use]
    pub fn contributions(&self) -> &[Contribution] {
        &self.contributions
    }

    /// Returns the name of the tier that supplied the limits, if no record did.
    #[must_use]
    pub fn tier(&self) -> Option<&str> {
        self.tier.as_deref()
    }

    /// Returns whether one of the records blocks the consumer.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.contributions.iter().any(|record| record.blocks)
    }

    /// Returns whether the limits are the configured defaults, because the consumer has no active
    /// record and no tier.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.contributions.is_empty() && self.tier.is_none()
    }

    /// Returns the first instant at which none of these records blocks the consumer.
    ///
    /// Returns `None` if no record blocks, or if the block has no end. A block whose `to_date` is
    /// in the year 9999 has no end.
    #[must_use]
    pub fn block_end(&self) -> Option<Timestamp> {
        let blocking = self.contributions.iter().filter(|record| record.blocks);
        let last = blocking.map(|record| record.to_date.plus_micros(1)).max();
        last.filter(|end| *end < NO_END)
    }

    /// Returns the policy of these limits, or `None` if there is no limit.
    #[must_use]
    pub fn policy(&self) -> Option<Policy> {
        let policy = self.limits.policy();
        if self.is_blocked() {
            policy.map(|policy| policy.blocked_until(self.block_end()))
        } else {
            policy
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(zero_means: ZeroMeans, records: &[i64]) -> i64 {
        let defaults = CallLimits::from_numbers([7, 1, 1, 1, 1, 1]).unwrap();
        let of = |number: &i64| CallLimits::from_numbers([*number, -1, -1, -1, -1, -1]).unwrap();
        let records: Vec<CallLimits> = records.iter().map(of).collect();
        Aggregation { defaults, zero_means }.limits(&records).numbers()[0]
    }

    #[test]
    fn records_add_up_as_the_table_says() {
        const LARGEST: i64 = MAX_UNITS.cast_signed();
        #[rustfmt::skip]
        let table: &[(&str, &[i64], i64, i64)] = &[
            // case                              records              0 blocks   0 is no limit
            ("no record: the default",           &[],                 7,         7),
            ("one",                              &[10],               10,        10),
            ("100 + 50",                         &[100, 50],          150,       150),
            ("-1 adds nothing",                  &[100, -1],          100,       100),
            ("-1 adds nothing, first",           &[-1, 100],          100,       100),
            ("0 adds nothing",                   &[0, 10],            10,        10),
            ("all three",                        &[0, -1, 10, 5],     15,        15),
            ("all -1: no limit, no default",     &[-1, -1],           -1,        -1),
            ("0 alone",                          &[0],                0,         -1),
            ("0 beside -1",                      &[-1, 0, -1],        0,         -1),
            ("the largest",                      &[LARGEST],          LARGEST,   LARGEST),
            ("beyond the largest",               &[LARGEST, LARGEST], LARGEST,   LARGEST),
        ];
        for (case, records, blocks, is_none) in table {
            assert_eq!(sum(ZeroMeans::Blocked, records), *blocks, "{case}");
            assert_eq!(sum(ZeroMeans::Unlimited, records), *is_none, "{case}");
        }
    }

    #[test]
    fn a_default_of_zero_means_what_a_record_of_zero_means() {
        let defaults = CallLimits::from_numbers([0, 5, -1, -1, -1, -1]).unwrap();
        let of = |zero_means| Aggregation { defaults, zero_means }.limits([]).numbers();
        assert_eq!(of(ZeroMeans::Blocked), [0, 5, -1, -1, -1, -1]);
        assert_eq!(of(ZeroMeans::Unlimited), [-1, 5, -1, -1, -1, -1]);
    }

    proptest! {
        #[test]
        fn the_order_of_records_does_not_matter(
            mut records in prop::collection::vec(-1_i64..1_000, 1..8),
            turn in 0_usize..8,
        ) {
            let before = sum(ZeroMeans::Blocked, &records);
            let turn = turn % records.len();
            records.rotate_left(turn);
            prop_assert_eq!(sum(ZeroMeans::Blocked, &records), before);
            records.reverse();
            prop_assert_eq!(sum(ZeroMeans::Blocked, &records), before);
        }

        #[test]
        fn positive_values_are_the_sum_whatever_stands_beside_them(
            records in prop::collection::vec(-1_i64..1_000_000, 1..8),
        ) {
            let positive: i64 = records.iter().filter(|number| **number > 0).sum();
            let expected = match positive {
                0 if records.contains(&0) => 0,
                0 => -1,
                sum => sum,
            };
            prop_assert_eq!(sum(ZeroMeans::Blocked, &records), expected);
        }
    }
}
