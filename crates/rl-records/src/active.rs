use rl_core::Policy;
use rl_core::time::Timestamp;

use crate::call_limits::{CallLimits, ZeroMeans};
use crate::limits::Limits;
use crate::record::{Record, RecordContent};
use crate::record_id::RecordId;
use crate::tier::TierContent;

/// How the records of a subject are combined into its limits.
///
/// Limits with the same state are added up: those of the same period, algorithm and anchor or
/// precision that both count units, or both count requests. For a bucket, the capacity or burst is
/// added too. Such limits must have the same unit. Other limits stand beside each other.
///
/// # Examples
///
/// ```
/// use rl_records::{Aggregation, Limits};
///
/// let one: Limits = "100/second, 0/minute, 0/day".parse()?;
/// let other: Limits = "50/second, 10/minute, 1000/hour:gcra".parse()?;
/// let limits = Aggregation::default().limits(&[one, other]);
/// assert_eq!(limits.to_string(), "150/second, 10/minute, 1000/hour:gcra, 0/day");
/// # Ok::<(), rl_records::InvalidField>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregation {
    /// The limits of a consumer that has neither an active record nor a tier.
    pub defaults: Limits,
    /// The meaning of a combined limit of 0. A limit is 0 if an active record has 0 and no other
    /// has a positive number. Without active records, it is 0 if the defaults have 0.
    pub zero_means: ZeroMeans,
}

impl Default for Aggregation {
    /// Returns rules without default limits, in which a limit of 0 blocks.
    fn default() -> Self {
        Self { defaults: Limits::UNLIMITED, zero_means: ZeroMeans::Blocked }
    }
}

impl Aggregation {
    /// Returns these rules with the limits of `tier` as the defaults, if there is a tier.
    pub(crate) fn with_tier(&self, tier: Option<&TierContent>) -> Self {
        let defaults = tier.map_or(&self.defaults, |tier| &tier.limits);
        Self { defaults: defaults.clone(), zero_means: self.zero_means }
    }

    /// Returns whether a member of `tier`, or a consumer without a tier, is blocked while it has no
    /// active record.
    pub(crate) fn is_blocked_in(&self, tier: Option<&TierContent>) -> bool {
        self.with_tier(tier).limits([]).has_zero()
    }

    /// Returns the combined limits of records. Do not pass grants: they are added to the result. A 0
    /// in the result always blocks.
    #[must_use]
    pub fn limits<'a>(&self, records: impl IntoIterator<Item = &'a Limits>) -> Limits {
        let mut records = records.into_iter().peekable();
        // Records replace the defaults, even if they have no limit.
        let limits = match records.peek() {
            Some(_) => Limits::sum(records),
            None => self.defaults.clone(),
        };
        match self.zero_means {
            ZeroMeans::Blocked => limits,
            ZeroMeans::Unlimited => limits.without_zeros(),
        }
    }
}

/// Returns whether `record` removes all limits of its subject while it is active.
///
/// This is the case if the record neither blocks nor grants, has no limit, and `replaced` has any
/// limit. `replaced` contains the limits that the record replaces: those of the tier, or the
/// defaults. Such a record is easily made by mistake, so callers should warn about it.
///
/// # Examples
///
/// ```
/// use rl_core::time::Timestamp;
/// use rl_records::{Limits, RecordContent, lifts};
///
/// let free: Limits = "2/second, 20/minute".parse()?;
/// let record = |limits: &Limits| {
///     RecordContent::new("abc123", Timestamp::EPOCH, Timestamp::from_secs(60), limits.clone())
/// };
/// assert!(lifts(&free, &record(&Limits::UNLIMITED)));
/// assert!(!lifts(&free, &record(&free)));
/// assert!(!lifts(&Limits::UNLIMITED, &record(&Limits::UNLIMITED)));
/// # Ok::<(), rl_records::InvalidField>(())
/// ```
#[must_use]
pub fn lifts(replaced: &Limits, record: &RecordContent) -> bool {
    !record.blocks && !record.grants && record.limits.is_empty() && !replaced.is_empty()
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

/// The contribution of one record to the limits of its subject.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contribution {
    /// The id of the record.
    pub id: RecordId,
    /// The limits of the record.
    pub limits: Limits,
    /// The first instant at which the record is active.
    pub from_date: Timestamp,
    /// The last instant at which the record is active.
    pub to_date: Timestamp,
    /// Whether the record blocks the subject.
    pub blocks: bool,
    /// Whether the record [grants](RecordContent::grants).
    pub grants: bool,
}

/// The limits of a subject at a given time, and the records or the tier that they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveLimits {
    limits: Limits,
    contributions: Vec<Contribution>,
    tier: Option<String>,
}

impl ActiveLimits {
    /// Combines the active records of a subject. If there is no record other than grants, the tier
    /// supplies the limits.
    pub(crate) fn new(
        records: &[Record],
        tier: Option<TierContent>,
        aggregation: &Aggregation,
    ) -> Self {
        let aggregation = aggregation.with_tier(tier.as_ref());
        let of = |grants: bool| {
            let some = records.iter().filter(move |record| record.content.grants == grants);
            some.map(|record| &record.content.limits)
        };
        let limits = if records.iter().any(|record| record.content.blocks) {
            CallLimits::BLOCKED.into()
        } else {
            aggregation.limits(of(false)).with_grants(&Limits::sum(of(true)))
        };
        let contributions = records.iter().map(|record| Contribution {
            id: record.id,
            limits: record.content.limits.clone(),
            from_date: record.content.from_date,
            to_date: record.content.to_date,
            blocks: record.content.blocks,
            grants: record.content.grants,
        });
        let tier = tier.filter(|_| of(false).next().is_none()).map(|tier| tier.name);
        Self { limits, contributions: contributions.collect(), tier }
    }

    /// Returns the limits. [`ZeroMeans`] has been applied, so 0 blocks.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
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

    /// Returns whether the limits come from the configured defaults, because the consumer has no tier
    /// and no active record other than grants. Grants may have raised them.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.contributions.iter().all(|record| record.grants) && self.tier.is_none()
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
    use rl_core::MAX_UNITS;

    use super::*;

    fn six(numbers: [i64; 6]) -> Limits {
        CallLimits::from_numbers(numbers).unwrap().into()
    }

    fn numbers(limits: &Limits) -> [i64; 6] {
        limits.call_limits().unwrap().numbers()
    }

    fn sum(zero_means: ZeroMeans, records: &[i64]) -> i64 {
        let defaults = six([7, 1, 1, 1, 1, 1]);
        let records: Vec<Limits> =
            records.iter().map(|number| six([*number, -1, -1, -1, -1, -1])).collect();
        numbers(&Aggregation { defaults, zero_means }.limits(&records))[0]
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
        let defaults = six([0, 5, -1, -1, -1, -1]);
        let of = |zero_means| {
            numbers(&Aggregation { defaults: defaults.clone(), zero_means }.limits([]))
        };
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
