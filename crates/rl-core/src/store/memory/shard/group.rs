//! Decisions on one part of a request of several parts.

use arrayvec::ArrayVec;

use super::Shard;
use crate::decision::{Decision, DecisionList};
use crate::model::Mode;
use crate::policy::Policy;
use crate::store::Part;
use crate::store::fingerprint::Fingerprint;
use crate::store::memory::entry::Entry;
use crate::store::memory::packed_entry::{FastDecision, OpenCharge, PackedEntry};
use crate::store::memory::run::{DecideArgs, TooManyStates};
use crate::store::memory::table::Table;
use crate::time::Timestamp;

/// The charges to the parts of a request so far.
#[derive(Debug)]
pub(in crate::store::memory) struct PackedCharges {
    pub(in crate::store::memory) decisions: DecisionList,
    /// How to undo each charge. If a charge failed, there may be one more than decisions.
    undos: ArrayVec<Undo, { Part::MAX }>,
}

/// The changes to undo after a charge to a packed entry.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::memory) enum Undo {
    /// The numbers of open windows, and the time of the last change. `last_change` is the relative
    /// time before the charge.
    OpenWindows { last_change: u64 },
    /// Any state of this entry.
    Entry(PackedEntry),
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
        Self { decisions: DecisionList::new(), undos: ArrayVec::new() }
    }

    /// Returns how to undo each charge, in the order of the parts.
    pub(in crate::store::memory) fn undos(&self) -> impl Iterator<Item = &Undo> {
        self.undos.iter().take(self.decisions.all().len())
    }
}

impl Shard {
    /// Charges a part at the time `now`, if all limits of its policy are open windows that grant its
    /// cost. Adds the decision, and how to undo the charge, to `charges`. Nearly all parts of allowed
    /// requests are charged here. Otherwise returns false, and changes nothing.
    #[inline(always)]
    pub(in crate::store::memory) fn try_charge_open(
        &mut self,
        subject: Fingerprint,
        part: &Part<'_>,
        now: Timestamp,
        charges: &mut PackedCharges,
    ) -> bool {
        let Part { policy, cost, .. } = *part;
        let find = |entries| Table::get_mut(entries, subject);
        let Some((packed, windows, time_base)) = self.packed_windows(policy, find) else {
            return false;
        };
        let Some(charge) = packed.try_charge_open(windows, time_base, now, cost) else {
            return false;
        };
        let OpenCharge { at, states, numbers, last_change } = charge;
        charges.decisions.push_windows(policy, cost, at, states, numbers);
        charges.undos.push(Undo::OpenWindows { last_change });
        true
    }

    /// Charges a part at the time `now`, if its subject has a packed entry with the states of its
    /// policy. Adds the decision, and how to undo the charge, to `charges`.
    #[inline(never)]
    pub(in crate::store::memory) fn charge_packed(
        &mut self,
        subject: Fingerprint,
        part: &Part<'_>,
        now: Timestamp,
        charges: &mut PackedCharges,
    ) -> PartCharge {
        let args = DecideArgs::new(part, Mode::Check, now);
        let find = |entries| Table::get_mut(entries, subject);
        if let Some((packed, windows, time_base)) = self.packed_windows(args.policy, find) {
            let before = *packed;
            match packed.try_decide_fast(windows, time_base, args) {
                Some(fast) if !fast.is_allowed => return PartCharge::Denied,
                // The charge may have a later time than `now`, so the plan makes it.
                _ => *packed = before,
            }
        }
        let Some(entry) = self.entries.get_mut(subject) else { return PartCharge::Undecided };
        let Entry::Packed(packed) = entry else { return PartCharge::Undecided };
        let layout = self.context.layouts.get(packed.layout());
        let is_later = packed.last_change(self.context.time_base) > args.now;
        if is_later || !layout.has_states_of(args.policy) {
            return PartCharge::Undecided;
        }
        charges.undos.push(Undo::Entry(*packed));
        let decision = charges.decisions.push_pending(args.policy, args.cost);
        let decided = entry.decide(&mut self.context, args, decision);
        decided.expect("a packed entry has too few states to exceed their number");
        if !decision.is_allowed() {
            charges.decisions.pop();
            return PartCharge::Denied;
        }
        PartCharge::Charged
    }

    /// Undoes the charge of a part that has just been made.
    pub(in crate::store::memory) fn undo(
        &mut self,
        subject: Fingerprint,
        part: &Part<'_>,
        undo: Undo,
    ) {
        let Part { policy, cost, .. } = *part;
        match (self.entries.get_mut(subject), policy.compiled_windows(), undo) {
            (Some(entry), _, Undo::Entry(before)) => *entry = Entry::Packed(before),
            (Some(Entry::Packed(packed)), Some(windows), Undo::OpenWindows { last_change }) => {
                packed.undo_open(windows, cost, last_change);
            }
            _ => unreachable!("the subject has just been charged"),
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
        let find = |entries| Table::get_mut(entries, subject);
        let (packed, windows, time_base) = self.packed_windows(policy, find)?;
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
