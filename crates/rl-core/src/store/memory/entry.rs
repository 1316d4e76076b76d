//! The entry of one subject, packed if it fits.

use super::layout::{LayoutId, LayoutRegistry};
use super::packed_entry::{PackedEntry, TimeBase};
use super::unpacked_entry::{
    BoxedEntry, DecideArgs, LimitState, StackEntry, TooManyStates, UnpackedEntry,
};
use crate::algorithm::State;
use crate::algorithm::fixed_window::PackedTime;
use crate::decision::Decision;
use crate::model::Limit;
use crate::policy::Policy;
use crate::store::{Refund, Renewal};
use crate::time::Timestamp;

/// The states of one subject.
#[derive(Debug)]
pub(super) enum Entry {
    Packed(PackedEntry),
    Boxed(Box<BoxedEntry>),
}

// The box and the discriminant take no room of their own.
const _: () = assert!(size_of::<Entry>() == size_of::<PackedEntry>());

/// The data that all entries of a shard share.
#[derive(Debug)]
pub(super) struct ShardContext {
    pub(super) layouts: LayoutRegistry,
    pub(super) time_base: TimeBase,
}

impl Entry {
    /// Creates an entry in the smallest form that it fits. `layout` is that of its states.
    pub(super) fn pack(
        entry: StackEntry,
        layout: Option<LayoutId>,
        context: &ShardContext,
    ) -> Self {
        match layout.and_then(|id| packed(&entry, id, context)) {
            Some(packed) => Self::Packed(packed),
            None => Self::Boxed(entry.into_boxed()),
        }
    }

    /// Decides for all limits of the policy, and charges all of them or none.
    ///
    /// # Errors
    ///
    /// Fails and changes nothing if a charge would need more states than the store holds.
    pub(super) fn decide(
        &mut self,
        context: &mut ShardContext,
        args: DecideArgs<'_>,
        decision: &mut Decision,
    ) -> Result<(), TooManyStates> {
        let policy = args.policy;
        match self {
            Self::Packed(packed) => {
                if decide_packed_windows(packed, context, args, decision) {
                    return Ok(());
                }
                let layout = context.layouts.get(packed.layout());
                let mut entry = packed.unpack(layout, context.time_base);
                entry.decide(args, decision)?;
                let is_crowded = context.layouts.is_crowded();
                let keeps_layout = decision.charged() == 0
                    || layout.has_limits_of(policy)
                    || is_crowded && layout.has_states_of(policy);
                let layout = match keeps_layout {
                    true => Some(packed.layout()),
                    false => context.layouts.find_or_register(policy),
                };
                *self = Self::pack(entry, layout, context);
            }
            Self::Boxed(entry) => {
                entry.decide(args, decision)?;
                // Once the states of other policies are gone, the entry may fit again.
                if decision.charged() > 0
                    && entry.states().len() == policy.limits().len()
                    && let Some(id) = context.layouts.find_or_register(policy)
                    && let Some(packed) = packed(entry, id, context)
                {
                    *self = Self::Packed(packed);
                }
            }
        }
        Ok(())
    }

    /// Changes the states of the policy's limits. `change` gets the index of the limit in the policy.
    pub(super) fn amend(
        &mut self,
        context: &ShardContext,
        policy: &Policy,
        now: Timestamp,
        change: impl FnMut(usize, Limit, &mut State, Timestamp),
    ) {
        match self {
            Self::Packed(packed) => {
                let layout = context.layouts.get(packed.layout());
                let mut entry = packed.unpack(layout, context.time_base);
                entry.amend(policy, now, change);
                *self = Self::pack(entry, Some(packed.layout()), context);
            }
            Self::Boxed(entry) => entry.amend(policy, now, change),
        }
    }

    /// Resets the limit at `index` of the policy.
    pub(super) fn reset_limit(
        &mut self,
        context: &ShardContext,
        policy: &Policy,
        now: Timestamp,
        index: usize,
    ) {
        match self {
            Self::Packed(packed) => {
                let layout = context.layouts.get(packed.layout());
                let mut entry = packed.unpack(layout, context.time_base);
                entry.reset(policy, now, index);
                *self = Self::pack(entry, Some(packed.layout()), context);
            }
            Self::Boxed(entry) => entry.reset(policy, now, index),
        }
    }

    /// Resets all limits. The next decision is made at `earliest` or later.
    pub(super) fn reset_all(&mut self, context: &ShardContext, earliest: Timestamp) {
        let emptied = match self {
            Self::Packed(packed) => packed.emptied(earliest, context.time_base),
            Self::Boxed(_) => None,
        };
        *self = match emptied {
            Some(packed) => Self::Packed(packed),
            None => Self::Boxed(Box::new(UnpackedEntry::new([], earliest, Timestamp::EPOCH))),
        };
    }

    /// Renews the lease of permits, if every concurrency limit still holds some of them.
    ///
    /// Returns the time at which the renewed lease begins.
    pub(super) fn renew(&mut self, renewal: &Renewal<'_>, now: Timestamp) -> Option<Timestamp> {
        match self {
            // A packed entry has no concurrency limits.
            Self::Packed(_) => None,
            Self::Boxed(entry) => entry.renew(renewal, now),
        }
    }

    /// Returns whether the entry holds permits that `refund` names.
    pub(super) fn holds(&self, refund: &Refund<'_>, now: Timestamp) -> bool {
        match self {
            Self::Packed(_) => false,
            Self::Boxed(entry) => entry.holds(refund, now),
        }
    }

    /// Returns the time of the last change.
    pub(super) fn last_change(&self, context: &ShardContext) -> Timestamp {
        match self {
            Self::Packed(packed) => packed.last_change(context.time_base),
            Self::Boxed(entry) => entry.last_change(),
        }
    }

    /// Returns whether all states are expired at `now`.
    pub(super) fn is_expired(&self, context: &ShardContext, now: PackedTime) -> bool {
        match self {
            Self::Packed(packed) => {
                let layout = context.layouts.get(packed.layout());
                packed.is_expired(layout, context.time_base, now)
            }
            Self::Boxed(entry) => entry.is_expired(Timestamp::from_micros(now.absolute)),
        }
    }

    /// Returns whether a denial is known to hold at `now`.
    pub(super) fn is_denied(&self, now: PackedTime) -> bool {
        match self {
            Self::Packed(packed) => packed.is_denied(now),
            Self::Boxed(entry) => entry.is_denied(Timestamp::from_micros(now.absolute)),
        }
    }

    /// Returns the used fraction of the fullest limit, scaled to 0–255. Eviction prefers entries with a
    /// low fraction.
    pub(super) fn used_fraction(&self, context: &ShardContext) -> u8 {
        match self {
            Self::Packed(packed) => {
                let layout = context.layouts.get(packed.layout());
                packed.used_fraction(layout, context.time_base)
            }
            Self::Boxed(entry) => entry.used_fraction(),
        }
    }
}

/// Decides in place if the limits are fixed windows with the states of the entry.
///
/// Returns `false` and changes nothing if they are not, or a number or a time would not fit.
fn decide_packed_windows(
    packed: &mut PackedEntry,
    context: &mut ShardContext,
    args: DecideArgs<'_>,
    decision: &mut Decision,
) -> bool {
    let layouts = &mut context.layouts;
    let Some(windows) = args.policy.compiled_windows() else { return false };
    if !layouts.get(packed.layout()).has_states_of_windows(windows)
        || !packed.decide_windows(windows, context.time_base, args, decision)
    {
        return false;
    }
    if decision.charged() > 0
        && !layouts.is_crowded()
        && !layouts.get(packed.layout()).has_limits_of(args.policy)
        && let Some(layout) = layouts.find_or_register(args.policy)
    {
        packed.set_layout(layout);
    }
    true
}

fn packed<A: smallvec::Array<Item = LimitState>>(
    entry: &UnpackedEntry<A>,
    layout: LayoutId,
    context: &ShardContext,
) -> Option<PackedEntry> {
    PackedEntry::pack(entry, layout, context.layouts.get(layout), context.time_base)
}
