//! Decisions on one part of a request of several parts.

use arrayvec::ArrayVec;

use super::Shard;
use crate::decision::{Decision, DecisionList};
use crate::model::Mode;
use crate::policy::Policy;
use crate::store::Part;
use crate::store::fingerprint::Fingerprint;
use crate::store::memory::entry::Entry;
use crate::store::memory::packed_entry::{FastDecision, PackedEntry};
use crate::store::memory::run::{DecideArgs, TooManyStates};
use crate::time::Timestamp;

/// The charges to the parts of a request so far.
#[derive(Debug)]
pub(in crate::store::memory) struct PackedCharges {
    pub(in crate::store::memory) decisions: DecisionList,
    /// A copy of each entry from before its charge. If a charge failed, there may be one copy more
    /// than decisions.
    before: ArrayVec<PackedEntry, { Part::MAX }>,
}

/// The result of charging a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::memory) enum PartCharge {
    Charged,
    /// The part denies its cost now. No counter was changed.
    Denied,
    /// The part must be judged before a charge. Nothing was changed.
    Undecided,
}

impl PackedCharges {
    #[inline(always)]
    pub(in crate::store::memory) fn new() -> Self {
        Self { decisions: DecisionList::new(), before: ArrayVec::new() }
    }

    /// Returns the entries as they were before their charges, in the order of the parts.
    pub(in crate::store::memory) fn entries_before(self) -> impl Iterator<Item = PackedEntry> {
        self.before.into_iter().take(self.decisions.all().len())
    }
}

impl Shard {
    /// Charges a part at the time `now`, if its subject has a packed entry with the states of its
    /// policy. Adds the decision, and the entry as it was before, to `charges`.
    #[inline(always)]
    pub(in crate::store::memory) fn charge_packed(
        &mut self,
        subject: Fingerprint,
        part: &Part<'_>,
        now: Timestamp,
        charges: &mut PackedCharges,
    ) -> PartCharge {
        let Part { policy, cost, .. } = *part;
        if let Some((packed, windows, time_base)) = self.packed_windows(subject, policy) {
            charges.before.push(*packed);
            let args = DecideArgs::new(part, Mode::Check, now);
            if let Some(fast) = packed.try_decide_fast(windows, time_base, args) {
                let FastDecision { at, is_allowed, states, .. } = fast;
                if !is_allowed {
                    return PartCharge::Denied;
                }
                if at.absolute == now.as_micros() {
                    charges.decisions.push_windows(policy, cost, at, states);
                    return PartCharge::Charged;
                }
                // The entry was last changed after `now`, so its decision has a later time. All
                // parts must have the same time, so this charge is undone.
                if let Some(before) = charges.before.pop() {
                    *packed = before;
                }
                return PartCharge::Undecided;
            }
            charges.before.pop();
        }
        self.charge_packed_by_plan(subject, part, now, charges)
    }

    #[inline(never)]
    fn charge_packed_by_plan(
        &mut self,
        subject: Fingerprint,
        part: &Part<'_>,
        now: Timestamp,
        charges: &mut PackedCharges,
    ) -> PartCharge {
        let args = DecideArgs::new(part, Mode::Check, now);
        let Some(entry) = self.entries.get_mut(subject) else { return PartCharge::Undecided };
        let Entry::Packed(packed) = entry else { return PartCharge::Undecided };
        let layout = self.context.layouts.get(packed.layout());
        let is_later = packed.last_change(self.context.time_base) > args.now;
        if is_later || !layout.has_states_of(args.policy) {
            return PartCharge::Undecided;
        }
        charges.before.push(*packed);
        let decision = charges.decisions.push_pending(args.policy, args.cost);
        let decided = entry.decide(&mut self.context, args, decision);
        decided.expect("a packed entry has too few states to exceed their number");
        if !decision.is_allowed() {
            charges.decisions.pop();
            return PartCharge::Denied;
        }
        PartCharge::Charged
    }

    /// Takes back a charge that has just been made. `before` is the entry before that charge.
    pub(in crate::store::memory) fn undo(&mut self, subject: Fingerprint, before: PackedEntry) {
        if let Some(entry) = self.entries.get_mut(subject) {
            *entry = Entry::Packed(before);
        }
    }

    /// Returns whether a check of `args` would be granted, and the time of this judgement. Returns
    /// `None` if the subject has no entry with the states of the policy.
    pub(in crate::store::memory) fn try_judge(
        &self,
        subject: Fingerprint,
        args: DecideArgs<'_>,
    ) -> Option<(bool, Timestamp)> {
        self.entries.get(subject)?.try_judge(&self.context, args)
    }

    /// Returns the decision on a peek, if the subject is known and all limits are fixed windows;
    /// otherwise `None`. The status of each limit is computed when it is read.
    pub(in crate::store::memory) fn try_peek_windows(
        &mut self,
        subject: Fingerprint,
        args: DecideArgs<'_>,
    ) -> Option<Decision> {
        let DecideArgs { policy, cost, .. } = args;
        let (packed, windows, time_base) = self.packed_windows(subject, policy)?;
        let FastDecision { at, is_allowed, states, .. } =
            packed.try_peek_fast(windows, time_base, args)?;
        Some(Decision::from_windows(policy, cost, at, is_allowed, states).with_units(cost, 0))
    }

    /// Returns whether the shard may lack room for `count` new subjects, one of which is `subject`.
    /// Returns false if `subject` has an entry already.
    ///
    /// # Errors
    ///
    /// Fails if a charge under `policy` at `at` would exceed the number of states that one subject
    /// may have.
    pub(in crate::store::memory) fn may_lack_room(
        &self,
        subject: Fingerprint,
        policy: &Policy,
        at: Timestamp,
        count: usize,
    ) -> Result<bool, TooManyStates> {
        match self.entries.get(subject) {
            Some(entry) => entry.check_states(policy, at).map(|()| false),
            None => Ok(self.vacancies() < count),
        }
    }
}
