//! The entry of one subject, packed if it fits.

use super::packed_entry::{PackedEntry, TimeBase};
use super::plain_entry::PlainEntry;
use crate::algorithm::{Available, PlanStep, SubjectStates, SubjectStatesMut};
use crate::decision::Outcomes;
use crate::policy::Policy;
use crate::store::{Refund, Renewal};
use crate::time::Timestamp;

/// The states of one subject.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    Packed(PackedEntry),
    Plain(PlainEntry),
}

// The plain form and the discriminant take no additional memory.
const _: () = assert!(size_of::<Entry>() == size_of::<PackedEntry>());

/// The error of a charge that would exceed the number of states that one subject may have. Nothing
/// was changed.
#[derive(Debug)]
pub(super) struct TooManyStates;

impl Entry {
    /// Creates an entry without any used units.
    pub(super) fn new(policy: &Policy) -> Self {
        match PackedEntry::new(policy) {
            Some(packed) => Self::Packed(packed),
            None => Self::Plain(PlainEntry::new(policy)),
        }
    }

    /// Arranges the states as `policy` needs them. Returns the policy that was charged last, if the
    /// entry had other states. If nothing is charged, the caller arranges them for that policy again.
    #[inline]
    pub(super) fn arrange(&mut self, policy: &Policy, base: TimeBase) -> Option<Policy> {
        let has_states = match self {
            Self::Packed(packed) => packed.has_states_of(policy),
            Self::Plain(plain) => plain.has_states_of(policy),
        };
        if has_states { None } else { Some(self.rearrange(policy, base)) }
    }

    #[cold]
    fn rearrange(&mut self, policy: &Policy, base: TimeBase) -> Policy {
        if let Self::Packed(packed) = self {
            *self = Self::Plain(packed.to_plain(base));
        }
        let Self::Plain(plain) = self else { unreachable!("it has just been converted") };
        let before = plain.adopt(policy);
        self.pack(base);
        before
    }

    /// Replaces a plain entry by a packed one, if its states fit.
    fn pack(&mut self, base: TimeBase) {
        if let Self::Plain(plain) = self
            && let Some(packed) = PackedEntry::of_plain(plain, base)
        {
            *self = Self::Packed(packed);
        }
    }

    /// Returns the units that the limits of `policy` grant at `at`. They are [arranged](Self::arrange).
    /// If the limits grant more than `enough`, may return any number above `enough`.
    #[inline]
    pub(super) fn available(
        &self,
        policy: &Policy,
        enough: u64,
        at: Timestamp,
        base: TimeBase,
    ) -> Available {
        match self {
            Self::Packed(packed) if packed.has_more_than(policy, enough, at, base) => {
                Available::at_least(enough + 1)
            }
            _ => self.read(base, |states| policy.plan().available(states, at)),
        }
    }

    /// Charges `units` at `at`, even if fewer are available. Returns the status of each limit of
    /// `policy` afterwards. `available` is what the limits granted before. If `is_done`, the units are
    /// those of work that was done.
    #[inline]
    pub(super) fn charge(
        &mut self,
        policy: &Policy,
        (units, available): (u64, Available),
        is_done: bool,
        at: Timestamp,
        base: TimeBase,
    ) -> Outcomes {
        if let Self::Packed(packed) = self
            && packed.has_more_than(policy, units, at, base)
        {
            return Outcomes::Usages(packed.charge_open(policy, units, at, base));
        }
        let outcomes = self.change(policy, at, base, |states| {
            let mut outcomes = smallvec::SmallVec::<[_; Policy::MAX_LIMITS]>::new();
            policy.plan().charge(states, at, units, is_done, |outcome| outcomes.push(outcome));
            Outcomes::new(policy.limits(), 0, outcomes)
        });
        if available.is_used_up_by(units) {
            let until = self.read(base, |states| policy.plan().denied_until(states, at, 1));
            self.note_denial(until, base);
        }
        outcomes
    }

    /// Returns the status of each limit of `policy`, for a request that requires `required` units, and
    /// the time until which the enforced limits deny it. The time is the epoch if they do not deny it,
    /// or always will.
    pub(super) fn status(
        &self,
        policy: &Policy,
        required: u64,
        at: Timestamp,
        base: TimeBase,
    ) -> (Outcomes, Timestamp) {
        self.read(base, |states| {
            let mut wait = None;
            let outcomes = policy.plan().steps().iter().map(|step| {
                let outcome = step.outcome(states, at, required);
                if !step.limit().is_shadow() {
                    wait = outcome.wait_micros().max(wait);
                }
                outcome
            });
            let outcomes = Outcomes::new(policy.limits(), required, outcomes);
            (outcomes, wait.map_or(Timestamp::EPOCH, |wait| at.plus_micros(wait)))
        })
    }

    /// Records that requests are denied until `until`, unless a later time is recorded.
    pub(super) fn note_denial(&mut self, until: Timestamp, base: TimeBase) {
        match self {
            Self::Packed(packed) => packed.note_denial(until, base),
            Self::Plain(plain) => plain.note_denial(until),
        }
    }

    /// Checks that a charge at `at` would not leave more states of other policies than an entry may
    /// hold. The states are [arranged](Self::arrange) for the policy of the charge.
    ///
    /// # Errors
    ///
    /// Fails if it would.
    pub(super) fn check_states(&self, at: Timestamp) -> Result<(), TooManyStates> {
        match self {
            Self::Packed(_) => Ok(()),
            Self::Plain(plain) => plain.check_states(at),
        }
    }

    /// Changes the states of the limits of `policy` at `now`. Calls `change` with the index of each
    /// limit that is in use, and skips unused limits.
    pub(super) fn amend(
        &mut self,
        policy: &Policy,
        now: Timestamp,
        base: TimeBase,
        mut change: impl FnMut(usize, &PlanStep, &mut SubjectStatesMut<'_>, Timestamp),
    ) {
        self.arrange(policy, base);
        let at = now.max(self.last_change(base));
        self.change(policy, at, base, |states| {
            for (index, step) in policy.plan().steps().iter().enumerate() {
                if !step.is_unused(states.read()) {
                    change(index, step, states, at);
                }
            }
        });
        // The change may have ended the recorded denial. If there are states of other policies,
        // they may deny too, so the denial is kept.
        let had_denial = match self {
            Self::Packed(packed) => packed.forget_denial(),
            Self::Plain(plain) => plain.forget_denial(at),
        };
        if had_denial {
            let until = self.read(base, |states| policy.plan().denied_until(states, at, 1));
            self.note_denial(until, base);
        }
    }

    /// Resets the limit at `index` of the policy. Later decisions never use a time before `earliest`.
    pub(super) fn reset_limit(
        &mut self,
        policy: &Policy,
        index: usize,
        (now, earliest): (Timestamp, Timestamp),
        base: TimeBase,
    ) {
        self.amend(policy, now, base, |i, step, states, _| {
            if i == index {
                step.clear(states);
            }
        });
        self.delay_until(earliest, base);
    }

    /// Resets all limits. Later decisions never use a time before `earliest`.
    pub(super) fn reset_all(&mut self, earliest: Timestamp, base: TimeBase) {
        *self = Self::new(self.policy());
        self.delay_until(earliest, base);
    }

    fn delay_until(&mut self, earliest: Timestamp, base: TimeBase) {
        if let Self::Packed(packed) = self {
            if packed.delay_until(earliest, base) {
                return;
            }
            *self = Self::Plain(packed.to_plain(base));
        }
        if let Self::Plain(plain) = self {
            plain.delay_until(earliest);
        }
    }

    /// Renews the lease of permits, if every concurrency limit still holds some of them.
    ///
    /// Returns the time at which the renewed lease begins, or `None` if nothing was renewed.
    pub(super) fn renew(
        &mut self,
        renewal: &Renewal<'_>,
        now: Timestamp,
        base: TimeBase,
    ) -> Option<Timestamp> {
        // A packed entry has no concurrency limits.
        let Self::Plain(plain) = self else { return None };
        let refund = renewal.as_refund();
        let mut limits = 0..renewal.policy.limits().len();
        if !limits.all(|index| refund.units_of(index) == 0 || plain.held(&refund, index, now) > 0) {
            return None;
        }
        let renewed_at = now.max(plain.last_change());
        self.amend(renewal.policy, now, base, |index, step, states, now| {
            step.renew(states, now, renewal.charged, refund.units_of(index));
        });
        Some(renewed_at)
    }

    /// Returns whether the entry contains permits that `refund` would release.
    pub(super) fn holds(&self, refund: &Refund<'_>, now: Timestamp) -> bool {
        match self {
            Self::Packed(_) => false,
            Self::Plain(plain) => {
                (0..refund.policy.limits().len()).any(|index| plain.held(refund, index, now) > 0)
            }
        }
    }

    /// Returns the policy that was charged last, by which eviction judges the entry.
    fn policy(&self) -> &Policy {
        match self {
            Self::Packed(packed) => packed.policy(),
            Self::Plain(plain) => plain.policy(),
        }
    }

    /// Returns the time of the last change. No decision is made at an earlier time.
    #[inline]
    pub(super) fn last_change(&self, base: TimeBase) -> Timestamp {
        match self {
            Self::Packed(packed) => packed.last_change(base),
            Self::Plain(plain) => plain.last_change(),
        }
    }

    /// Returns whether all states are expired at `now`.
    #[inline]
    pub(super) fn is_expired(&self, now: Timestamp, base: TimeBase) -> bool {
        match self {
            Self::Packed(packed) => packed.is_expired(now, base),
            Self::Plain(plain) => plain.is_expired(now),
        }
    }

    /// Returns whether a recorded denial still applies at `now`.
    #[inline]
    pub(super) fn is_denied(&self, now: Timestamp, base: TimeBase) -> bool {
        match self {
            Self::Packed(packed) => packed.is_denied(now, base),
            Self::Plain(plain) => plain.is_denied(now),
        }
    }

    /// Returns the used fraction of the fullest limit, scaled to 0–255. Eviction prefers entries
    /// with a low fraction.
    #[inline]
    pub(super) fn used_fraction(&self) -> u8 {
        match self {
            Self::Packed(packed) => packed.used_fraction(),
            Self::Plain(plain) => plain.used_fraction(),
        }
    }

    /// Calls `read` with the states, as they are arranged.
    #[inline]
    fn read<T>(&self, base: TimeBase, read: impl FnOnce(SubjectStates<'_>) -> T) -> T {
        match self {
            Self::Packed(packed) => packed.read(base, read),
            Self::Plain(plain) => read(plain.states()),
        }
    }

    /// Changes the states at the time `at`. They are [arranged](Self::arrange) for `policy`.
    #[inline]
    fn change<T>(
        &mut self,
        policy: &Policy,
        at: Timestamp,
        base: TimeBase,
        change: impl FnOnce(&mut SubjectStatesMut<'_>) -> T,
    ) -> T {
        match self {
            Self::Packed(packed) => {
                let (changed, plain) = packed.change(policy, at, base, change);
                if let Some(plain) = plain {
                    *self = Self::Plain(plain);
                }
                changed
            }
            Self::Plain(plain) => {
                let changed = plain.change(policy, at, change);
                self.pack(base);
                changed
            }
        }
    }
}
