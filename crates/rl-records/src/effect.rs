//! Computes whether a change of a record blocks or unblocks its subject.

use rl_core::Limit;
use rl_core::time::Timestamp;

use crate::call_limits::ZeroMeans;
use crate::limits::Limits;
use crate::record::RecordContent;

/// The effect of a change: whether it blocks or unblocks consumers, or applications of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Whether there is a time at which a consumer or application is blocked after the change, but
    /// not before it.
    pub(crate) blocks: bool,
    /// Whether there is a time at which a consumer or application is blocked before the change, but
    /// not after it.
    pub(crate) unblocks: bool,
}

impl Effect {
    /// Returns the effect at one time.
    pub(crate) const fn of(was_blocked: bool, is_blocked: bool) -> Self {
        Self { blocks: !was_blocked && is_blocked, unblocks: was_blocked && !is_blocked }
    }

    /// Combines the effects at two times.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self { blocks: self.blocks || other.blocks, unblocks: self.unblocks || other.unblocks }
    }
}

/// A record that exists before a change, after it, or both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    pub(crate) content: &'a RecordContent,
    pub(crate) is_before: bool,
    pub(crate) is_after: bool,
}

/// Returns the effect of a change of records on their subject, from `now` on.
///
/// Blocks and limits of 0 are compared separately. A limit of 0 during a block counts as blocking,
/// because it still blocks after the block is deleted.
///
/// Each changed block is compared without the blocks that do not change. So another block during
/// the same time makes no difference to the required rights.
///
/// `fallback` is true if the subject is blocked while no record is active.
pub(crate) fn effect(
    spans: &[Span<'_>],
    fallback: bool,
    zero_means: ZeroMeans,
    now: Timestamp,
) -> Effect {
    let changed = spans.iter().filter(|span| span.is_before != span.is_after);
    let of_blocks =
        sweep(changed.filter(|span| span.content.blocks), now, |active| active.count > 0);
    // A grant adds nothing to a limit of 0, so it neither blocks nor unblocks.
    let limits = spans.iter().filter(|span| !span.content.blocks && !span.content.grants);
    let of_limits = sweep(limits, now, |active| {
        if active.count == 0 {
            return fallback;
        }
        zero_means == ZeroMeans::Blocked
            && active.limits.iter().any(|limit| limit.zeros > 0 && limit.positive == 0)
    });
    of_blocks.and(of_limits)
}

/// Counts the records that are active at a time.
#[derive(Debug, Default)]
struct Active {
    count: u64,
    limits: Vec<ActiveLimit>,
}

/// The numbers of active records that have an enforced limit with this state.
#[derive(Debug)]
struct ActiveLimit {
    limit: Limit,
    // The records with a limit of 0, and those with a larger limit.
    zeros: u64,
    positive: u64,
}

impl Active {
    fn apply(&mut self, limits: &Limits, begins: bool) {
        let step = |count: &mut u64| match begins {
            true => *count += 1,
            false => *count = count.saturating_sub(1),
        };
        step(&mut self.count);
        for &limit in limits.as_slice().iter().filter(|limit| !limit.is_shadow()) {
            let same = |known: &ActiveLimit| known.limit.shares_state_with(limit);
            let index = self.limits.iter().position(same).unwrap_or_else(|| {
                self.limits.push(ActiveLimit { limit, zeros: 0, positive: 0 });
                self.limits.len() - 1
            });
            let known = &mut self.limits[index];
            step(if limit.max() == 0 { &mut known.zeros } else { &mut known.positive });
        }
    }
}

/// Compares the states before and after the change, at every time at which a record begins or ends.
fn sweep<'a>(
    spans: impl Iterator<Item = &'a Span<'a>>,
    now: Timestamp,
    is_blocked: impl Fn(&Active) -> bool,
) -> Effect {
    let mut edges = Vec::new();
    for span in spans.filter(|span| span.content.to_date >= now) {
        edges.push((span.content.from_date.max(now), true, span));
        edges.push((span.content.to_date.plus_micros(1), false, span));
    }
    edges.sort_by_key(|(time, ..)| *time);
    let (mut before, mut after) = (Active::default(), Active::default());
    let mut effect = Effect::default();
    for at_once in edges.chunk_by(|(one, ..), (other, ..)| one == other) {
        for (_, begins, span) in at_once {
            if span.is_before {
                before.apply(&span.content.limits, *begins);
            }
            if span.is_after {
                after.apply(&span.content.limits, *begins);
            }
        }
        effect = effect.and(Effect::of(is_blocked(&before), is_blocked(&after)));
    }
    effect
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(calls: i64, from: u64, to: u64) -> RecordContent {
        let limits = crate::CallLimits::from_numbers([-1, calls, -1, -1, -1, -1]).unwrap();
        RecordContent::new("abc", Timestamp::from_secs(from), Timestamp::from_secs(to), limits)
    }

    fn block(from: u64, to: u64) -> RecordContent {
        RecordContent::block("abc", Timestamp::from_secs(from), Timestamp::from_secs(to))
    }

    fn effect_of(
        others: &[RecordContent],
        before: Option<&RecordContent>,
        after: Option<&RecordContent>,
        fallback: bool,
    ) -> (bool, bool) {
        let span = |content, is_before, is_after| Span { content, is_before, is_after };
        let others = others.iter().map(|content| span(content, true, true));
        let before = before.map(|content| span(content, true, false));
        let after = after.map(|content| span(content, false, true));
        let spans: Vec<_> = others.chain(before).chain(after).collect();
        let effect = effect(&spans, fallback, ZeroMeans::Blocked, Timestamp::from_secs(5));
        (effect.blocks, effect.unblocks)
    }

    #[test]
    fn a_change_of_a_block_blocks_or_unblocks_at_the_times_that_it_adds_or_leaves() {
        let (blocks, unblocks) = ((true, false), (false, true));
        #[rustfmt::skip]
        let table = [
            (None,                Some(block(10, 20)), blocks),
            (Some(block(10, 20)), None,                unblocks),
            (Some(block(10, 20)), Some(block(10, 20)), (false, false)),
            (Some(block(10, 20)), Some(block(10, 21)), blocks),
            (Some(block(10, 20)), Some(block(9, 20)),  blocks),
            (Some(block(10, 20)), Some(block(10, 19)), unblocks),
            (Some(block(10, 20)), Some(block(11, 20)), unblocks),
            (Some(block(10, 20)), Some(block(11, 21)), (true, true)),
            // Times in the past have no effect.
            (None,                Some(block(1, 4)),   (false, false)),
            (Some(block(1, 20)),  Some(block(4, 20)),  (false, false)),
        ];
        for (before, after, expected) in table {
            for others in [&[][..], &[block(1, 30)]] {
                let found = effect_of(others, before.as_ref(), after.as_ref(), false);
                assert_eq!(found, expected, "{others:?} {before:?} {after:?}");
            }
        }
    }

    #[test]
    fn a_limit_of_zero_blocks_where_nothing_else_has_more() {
        let (blocks, unblocks, nothing) = ((true, false), (false, true), (false, false));
        #[rustfmt::skip]
        let table = [
            (vec![],                  None,                     Some(record(0, 10, 20)),  false, blocks),
            (vec![],                  Some(record(0, 10, 20)),  None,                     false, unblocks),
            (vec![],                  Some(record(10, 10, 20)), Some(record(0, 10, 20)),  false, blocks),
            (vec![],                  Some(record(0, 10, 20)),  Some(record(10, 10, 20)), false, unblocks),
            (vec![record(5, 10, 20)], None,                     Some(record(0, 10, 20)),  false, nothing),
            (vec![record(5, 10, 15)], None,                     Some(record(0, 10, 20)),  false, blocks),
            (vec![record(0, 10, 20)], None,                     Some(record(5, 10, 12)),  false, unblocks),
            (vec![record(0, 10, 20)], Some(record(5, 10, 20)),  None,                     false, blocks),
            (vec![record(0, 10, 20)], None,                     Some(record(-1, 10, 20)), false, nothing),
            // While there is no record, the tier or the defaults block the consumer.
            (vec![],                  None,                     Some(record(5, 10, 20)),  true,  unblocks),
            (vec![],                  Some(record(5, 10, 20)),  None,                     true,  blocks),
            (vec![],                  None,                     Some(record(0, 10, 20)),  true,  nothing),
            // Even during a block, raising a limit of 0 counts as unblocking.
            (vec![block(10, 20)],     Some(record(0, 10, 20)),  Some(record(5, 10, 20)),  false, unblocks),
        ];
        for (others, before, after, fallback, expected) in table {
            let found = effect_of(&others, before.as_ref(), after.as_ref(), fallback);
            assert_eq!(found, expected, "{others:?} {before:?} {after:?} {fallback}");
        }
    }

    #[test]
    fn a_zero_that_means_unlimited_does_not_block() {
        let zero = record(0, 10, 20);
        let spans = [Span { content: &zero, is_before: false, is_after: true }];
        let now = Timestamp::from_secs(5);
        assert_eq!(effect(&spans, false, ZeroMeans::Unlimited, now), Effect::default());
    }
}
