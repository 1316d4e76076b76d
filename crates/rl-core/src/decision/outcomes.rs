use std::thread::LocalKey;

use super::recycled::{Recycle, Recycled, Slots};
use crate::algorithm::fixed_window::{CompiledWindows, DecidedWindows, PackedStates};
use crate::model::Outcome;
use crate::policy::Policy;
use crate::time::Timestamp;

/// The outcomes of a decision, in the order of the policy's limits.
#[derive(Clone, Debug)]
pub(crate) enum Outcomes {
    /// The fixed windows after the decision. An outcome is computed only when it is read, because
    /// most callers read only the verdict. Computing six outcomes at once costs 200 instructions.
    Windows {
        states: PackedStates,
        // The time of the decision in 48 bits, as in [`DecidedWindows`].
        decided_at_low: u32,
        decided_at_high: u16,
        required: u32,
    },
    /// The outcomes of limits of any algorithm.
    List(OutcomeList),
}

// With 72 bytes here, a decision has 128 bytes. Up to that size, the compiler moves it without a
// call of `memcpy`.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Outcomes>() == 72);

/// A list of outcomes: up to two in place, and more in a box, which the thread recycles.
#[derive(Clone, Debug)]
pub(crate) struct OutcomeList {
    few: [Outcome; FEW],
    many: Recycled<OutcomeArray>,
    count: u8,
}

/// The number of outcomes that a list stores in place.
const FEW: usize = 2;

/// The outcomes of up to sixteen limits, the most that a policy can have.
type OutcomeArray = [Outcome; Policy::MAX_LIMITS];

/// A placeholder for an outcome that is set later.
const UNSET: Outcome = Outcome::granted(0, 0);

thread_local! {
    static RECYCLED: Slots<OutcomeArray> = const { Slots::empty() };
}

impl Recycle for OutcomeArray {
    const SLOTS: &'static LocalKey<Slots<Self>> = &RECYCLED;

    fn unset() -> Self {
        [UNSET; Policy::MAX_LIMITS]
    }
}

impl OutcomeList {
    const EMPTY: Self = Self { few: [UNSET; FEW], many: Recycled::NONE, count: 0 };

    fn all(&self) -> &[Outcome] {
        match self.many.get() {
            Some(many) => &many[..usize::from(self.count)],
            None => &self.few[..usize::from(self.count)],
        }
    }

    fn all_mut(&mut self) -> &mut [Outcome] {
        match self.many.get_mut() {
            Some(many) => &mut many[..usize::from(self.count)],
            None => &mut self.few[..usize::from(self.count)],
        }
    }
}

impl Outcomes {
    /// No outcome yet.
    pub(crate) const NONE: Self = Self::List(OutcomeList::EMPTY);

    /// Returns the number of outcomes under a policy of `limits` limits.
    pub(crate) fn count(&self, limits: usize) -> usize {
        match self {
            Self::Windows { .. } => limits,
            Self::List(list) => limits.min(list.all().len()),
        }
    }

    /// Returns the outcome at `index`, which is less than [`count`](Self::count).
    ///
    /// If the limits of the policy are fixed windows, `windows` describes them. `decided_at` is the
    /// time of the decision.
    pub(crate) fn outcome(
        &self,
        index: usize,
        windows: Option<&CompiledWindows>,
        decided_at: Timestamp,
    ) -> Outcome {
        match (self, self.decided_windows(), windows) {
            (Self::List(list), ..) => list.all()[index],
            (_, Some(decided), Some(windows)) => decided.outcome(windows, index, decided_at),
            _ => unreachable!("only a policy of fixed windows has outcomes of windows"),
        }
    }

    /// Returns whether the arguments fit into the fields of [`windows`](Self::windows): 48 and 32
    /// bits.
    const fn fit(decided_at: u64, required: u64) -> bool {
        decided_at >> 48 | required >> 32 == 0
    }

    /// Creates the outcomes of the fixed windows `states`. The numbers must [fit](Self::fit).
    pub(super) const fn windows(states: &PackedStates, decided_at: u64, required: u64) -> Self {
        debug_assert!(Self::fit(decided_at, required));
        Self::Windows {
            states: *states,
            decided_at_low: decided_at as u32,
            decided_at_high: (decided_at >> 32) as u16,
            required: required as u32,
        }
    }

    /// Creates the outcomes of the fixed windows of `policy` after a decision at the time `at`.
    #[cfg(feature = "redis")]
    pub(crate) fn of_windows(policy: &Policy, decided: DecidedWindows<'_>, at: Timestamp) -> Self {
        let DecidedWindows { states, decided_at, required } = decided;
        if Self::fit(decided_at, required) {
            return Self::windows(states, decided_at, required);
        }
        let windows = policy.compiled_windows().into_iter();
        let lanes = windows.flat_map(|windows| {
            (0..policy.limits().len()).map(move |lane| decided.outcome(windows, lane, at))
        });
        lanes.collect()
    }

    const fn decided_windows(&self) -> Option<DecidedWindows<'_>> {
        match self {
            Self::Windows { states, decided_at_low, decided_at_high, required } => {
                let decided_at = (*decided_at_high as u64) << 32 | *decided_at_low as u64;
                Some(DecidedWindows { states, decided_at, required: *required as u64 })
            }
            Self::List(_) => None,
        }
    }

    /// Returns the outcomes as they will be in `micros` microseconds, if nothing is charged until
    /// then. Returns `None` unless they are windows, and the later time fits.
    #[cfg(feature = "redis")]
    pub(super) fn at_later(&self, micros: u64) -> Option<Self> {
        let DecidedWindows { states, decided_at, required } = self.decided_windows()?;
        let decided_at = decided_at + micros;
        Self::fit(decided_at, required).then(|| Self::windows(states, decided_at, required))
    }

    /// Replaces all outcomes with a list for `count` limits. The caller then sets each of them.
    #[inline(always)]
    pub(crate) fn renew(&mut self, count: usize) -> &mut [Outcome] {
        let many = if count <= FEW { Recycled::NONE } else { Recycled::new() };
        *self = Self::List(OutcomeList { many, count: count as u8, ..OutcomeList::EMPTY });
        match self {
            Self::List(list) => list.all_mut(),
            Self::Windows { .. } => unreachable!("the list has just been put there"),
        }
    }
}

impl FromIterator<Outcome> for Outcomes {
    fn from_iter<I: IntoIterator<Item = Outcome>>(outcomes: I) -> Self {
        let mut all = [UNSET; Policy::MAX_LIMITS];
        let mut count = 0;
        for (place, outcome) in all.iter_mut().zip(outcomes) {
            *place = outcome;
            count += 1;
        }
        let mut collected = Self::NONE;
        collected.renew(count).copy_from_slice(&all[..count]);
        collected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_of_sixteen_limits_are_kept_in_order() {
        for count in 0..=16 {
            let outcome = |used| Outcome::granted(used, 1);
            let outcomes: Outcomes = (0..count).map(outcome).collect();
            assert_eq!(outcomes.count(16), count as usize);
            for used in 0..count {
                assert_eq!(read(&outcomes, used as usize), outcome(used));
            }
        }
    }

    #[test]
    fn outcomes_that_a_store_sets_are_kept_by_the_decision_and_its_clone() {
        for count in 1..=16 {
            let outcome = |index: usize| Outcome::denied(index as u64, 2, 1 + index as u64);
            let mut outcomes = [Outcomes::NONE, Outcomes::NONE];
            for outcomes in &mut outcomes {
                let places = outcomes.renew(count).iter_mut().enumerate();
                places.for_each(|(index, place)| *place = outcome(index));
            }
            let [kept, dropped] = outcomes;
            let clone = kept.clone();
            drop(dropped);
            assert!((0..count).all(|index| read(&kept, index) == outcome(index)));
            assert!((0..count).all(|index| read(&clone, index) == outcome(index)));
        }
    }

    fn read(outcomes: &Outcomes, index: usize) -> Outcome {
        outcomes.outcome(index, None, Timestamp::EPOCH)
    }
}
