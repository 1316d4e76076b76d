//! The entry of one subject, packed if it fits.

use super::layout::{LayoutId, LayoutRegistry};
use super::packed_entry::{PackedEntry, TimeBase};
use super::run::{DecideArgs, TooManyStates, check_foreign_states, earliest_after_reset};
use super::unpacked_entry::UnpackedEntry;
use crate::algorithm::fixed_window::{LANES, PackedTime};
use crate::algorithm::{PlanStep, SubjectStatesMut};
use crate::decision::Decision;
use crate::policy::Policy;
use crate::store::{Refund, Renewal};
use crate::time::Timestamp;

/// The states of one subject.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    Packed(PackedEntry),
    Unpacked(UnpackedEntry),
}

// The unpacked form and the discriminant take no additional memory.
const _: () = assert!(size_of::<Entry>() == size_of::<PackedEntry>());

/// The data that all entries of a shard share.
#[derive(Debug)]
pub(super) struct ShardContext {
    pub(super) layouts: LayoutRegistry,
    pub(super) time_base: TimeBase,
}

impl Entry {
    /// Decides for a subject without an entry. Returns a new entry if something is charged.
    ///
    /// # Errors
    ///
    /// Fails like [`decide`](Self::decide).
    pub(super) fn of_newcomer(
        context: &mut ShardContext,
        args: DecideArgs<'_>,
        decision: &mut Decision,
    ) -> Result<Option<Self>, TooManyStates> {
        let policy = args.policy;
        if policy.compiled_windows().is_none() {
            let mut entry = UnpackedEntry::new(policy);
            entry.decide(args, decision)?;
            return Ok((decision.charged() > 0).then_some(Self::Unpacked(entry)));
        }
        let mut packed = PackedEntry::new(LayoutId::FIRST);
        let unpacked = packed.decide(context.time_base, args, decision);
        // A new subject without a charge must not use memory, not even for a layout.
        if decision.charged() == 0 {
            return Ok(None);
        }
        if let Some(unpacked) = unpacked {
            return Ok(Some(Self::Unpacked(unpacked)));
        }
        Ok(Some(match context.layouts.find_or_register(policy) {
            Some(layout) => {
                packed.set_layout(layout);
                Self::Packed(packed)
            }
            None => Self::Unpacked(packed.unpack(policy, context.time_base)),
        }))
    }

    /// Decides for all limits of the policy, and charges all of them or none.
    ///
    /// # Errors
    ///
    /// Fails and changes nothing if a charge would exceed the number of states that one subject may
    /// have.
    #[inline(always)]
    pub(super) fn decide(
        &mut self,
        context: &mut ShardContext,
        args: DecideArgs<'_>,
        decision: &mut Decision,
    ) -> Result<(), TooManyStates> {
        match self {
            Self::Packed(packed) => {
                let layout = context.layouts.get(packed.layout());
                if !layout.has_windows_of(args.policy) {
                    let mut entry = packed.unpack(layout.policy(), context.time_base);
                    entry.decide(args, decision)?;
                    if decision.charged() > 0 {
                        *self = Self::Unpacked(entry);
                        self.pack(args.policy, context);
                    }
                    return Ok(());
                }
                if let Some(unpacked) = packed.decide(context.time_base, args, decision) {
                    *self = Self::Unpacked(unpacked);
                } else if !layout.is_same_handle(args.policy) && decision.charged() > 0 {
                    set_layout_of(packed, args.policy, &mut context.layouts);
                }
            }
            Self::Unpacked(entry) => {
                entry.decide(args, decision)?;
                if args.policy.compiled_windows().is_some() && decision.charged() > 0 {
                    self.pack(args.policy, context);
                }
            }
        }
        Ok(())
    }

    /// Returns whether a check of `args` would be granted, and the time of this judgement. Returns
    /// `None` if the limits of the policy do not use the states of the entry.
    pub(super) fn try_judge(
        &self,
        context: &ShardContext,
        args: DecideArgs<'_>,
    ) -> Option<(bool, Timestamp)> {
        match self {
            Self::Packed(packed) => {
                let layout = context.layouts.get(packed.layout());
                let has_states = layout.has_windows_of(args.policy);
                has_states.then(|| packed.judge(context.time_base, args))
            }
            Self::Unpacked(entry) => entry.try_judge(args),
        }
    }

    /// Replaces an unpacked entry by a packed one, if the states of `policy` fit and the entry has
    /// no others.
    fn pack(&mut self, policy: &Policy, context: &mut ShardContext) {
        if let Self::Unpacked(entry) = self
            && entry.only_cells().is_some()
            && let Some(layout) = context.layouts.find_or_register(policy)
            && let Some(packed) = PackedEntry::pack(entry, policy, layout, context.time_base)
        {
            *self = Self::Packed(packed);
        }
    }

    /// Checks that a charge under `policy` at `at` would not exceed the number of states that one
    /// subject may have, if `further` states of other policies are added before it.
    ///
    /// # Errors
    ///
    /// Returns the error that [`decide`](Self::decide) would return.
    pub(super) fn check_states(
        &self,
        policy: &Policy,
        further: usize,
        at: Timestamp,
    ) -> Result<(), TooManyStates> {
        match self {
            // A packed entry has one state in each lane, so it alone never has too many.
            Self::Packed(_) if further == 0 => Ok(()),
            Self::Packed(_) => check_foreign_states(LANES + further),
            Self::Unpacked(entry) => entry.check_states(policy, further, at),
        }
    }

    /// Changes the states of the policy's limits. Calls `change` with the index of each limit that
    /// is in use, and skips unused limits.
    pub(super) fn amend(
        &mut self,
        context: &ShardContext,
        policy: &Policy,
        now: Timestamp,
        change: impl FnMut(usize, &PlanStep, &mut SubjectStatesMut<'_>, Timestamp),
    ) {
        let unpacked = match self {
            Self::Unpacked(entry) => return entry.amend(policy, now, change),
            Self::Packed(packed) => {
                let layout = context.layouts.get(packed.layout());
                if layout.has_windows_of(policy) {
                    packed.amend(context.time_base, policy, now, change)
                } else {
                    let mut entry = packed.unpack(layout.policy(), context.time_base);
                    entry.amend(policy, now, change);
                    Some(entry)
                }
            }
        };
        if let Some(unpacked) = unpacked {
            *self = Self::Unpacked(unpacked);
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
        let earliest = earliest_after_reset(self.last_change(context), now);
        self.amend(context, policy, now, |i, step, states, _| {
            if i == index {
                step.clear(states);
            }
        });
        match self {
            Self::Packed(packed) => packed.delay_until(earliest, context.time_base),
            Self::Unpacked(entry) => entry.delay_until(earliest),
        }
    }

    /// Resets all limits. Later decisions never use a time before `earliest`.
    pub(super) fn reset_all(&mut self, context: &ShardContext, earliest: Timestamp) {
        match self {
            Self::Packed(packed) => {
                *self = match packed.emptied(earliest, context.time_base) {
                    Some(packed) => Self::Packed(packed),
                    None => {
                        let policy = context.layouts.get(packed.layout()).policy();
                        let mut entry = UnpackedEntry::new(policy);
                        entry.delay_until(earliest);
                        Self::Unpacked(entry)
                    }
                };
            }
            Self::Unpacked(entry) => entry.reset_all(earliest),
        }
    }

    /// Renews the lease of permits, if every concurrency limit still holds some of them.
    ///
    /// Returns the time at which the renewed lease begins, or `None` if nothing was renewed.
    pub(super) fn renew(&mut self, renewal: &Renewal<'_>, now: Timestamp) -> Option<Timestamp> {
        match self {
            // A packed entry has no concurrency limits.
            Self::Packed(_) => None,
            Self::Unpacked(entry) => entry.renew(renewal, now),
        }
    }

    /// Returns whether the entry contains permits that `refund` would release.
    pub(super) fn holds(&self, refund: &Refund<'_>, now: Timestamp) -> bool {
        match self {
            Self::Packed(_) => false,
            Self::Unpacked(entry) => entry.holds(refund, now),
        }
    }

    /// Returns the time of the last change.
    pub(super) fn last_change(&self, context: &ShardContext) -> Timestamp {
        match self {
            Self::Packed(packed) => packed.last_change(context.time_base),
            Self::Unpacked(entry) => entry.last_change(),
        }
    }

    /// Returns whether all states are expired at `now`.
    pub(super) fn is_expired(&self, context: &ShardContext, now: PackedTime) -> bool {
        match self {
            Self::Packed(packed) => {
                let layout = context.layouts.get(packed.layout());
                packed.is_expired(layout, context.time_base, now)
            }
            Self::Unpacked(entry) => entry.is_expired(Timestamp::from_micros(now.absolute)),
        }
    }

    /// Returns whether a recorded denial still applies at `now`.
    pub(super) fn is_denied(&self, now: PackedTime) -> bool {
        match self {
            Self::Packed(packed) => packed.is_denied(now),
            Self::Unpacked(entry) => entry.is_denied(Timestamp::from_micros(now.absolute)),
        }
    }

    /// Returns the used fraction of the fullest limit, scaled to 0–255. Eviction prefers entries
    /// with a low fraction.
    pub(super) fn used_fraction(&self, context: &ShardContext) -> u8 {
        match self {
            Self::Packed(packed) => {
                let layout = context.layouts.get(packed.layout());
                packed.used_fraction(layout)
            }
            Self::Unpacked(entry) => entry.used_fraction(),
        }
    }
}

/// Sets the layout of the policy that was charged last, because eviction compares entries by the
/// limits of their layouts.
fn set_layout_of(packed: &mut PackedEntry, policy: &Policy, layouts: &mut LayoutRegistry) {
    if !layouts.is_crowded()
        && !layouts.get(packed.layout()).has_limits_of(policy)
        && let Some(layout) = layouts.find_or_register(policy)
    {
        packed.set_layout(layout);
    }
}
