use std::thread::LocalKey;

use super::recycled::{Recycle, Recycled, Slots};
use crate::algorithm::fixed_window::{CompiledWindows, DecidedWindows, PackedStates};
use crate::model::{Cost, Limit, Outcome};
use crate::policy::{LimitSet, NamedLimit, Policy};
use crate::time::Timestamp;

/// The outcomes of a decision, in the order of the policy's limits.
///
/// Outcomes that do not fit into a decision are in a box, which the thread recycles.
#[derive(Clone, Debug)]
pub(crate) enum Outcomes {
    /// No outcome yet.
    None,
    /// The fixed windows after the decision. An outcome is computed only when it is read, because
    /// most callers read only the verdict. Computing six outcomes at once costs 200 instructions.
    Lazy {
        states: PackedStates,
        // The time of the decision in 48 bits, as in [`DecidedWindows`].
        decided_at_low: u32,
        decided_at_high: u16,
        required: u32,
    },
    /// The usages of at most six limits that all grant the request.
    Granted(FewUsages),
    /// The outcomes of at most two limits.
    Few { outcomes: [Outcome; FEW], count: u8 },
    /// The outcomes of more limits.
    Many { outcomes: Recycled<OutcomeArray>, count: u8 },
    /// Any number of fixed windows that were all open at an earlier decision, and are still open.
    Open(Recycled<OpenWindows>),
}

// With 72 bytes here, a decision has 128 bytes. Up to that size, the compiler moves it without a
// call of `memcpy`.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Outcomes>() == 72);

/// The number of outcomes that a decision stores in itself.
const FEW: usize = 2;

/// The number of usages that a decision stores in itself.
const FEW_USAGES: usize = 6;

/// The outcomes of up to sixteen limits, the most that a policy can have.
type OutcomeArray = [Outcome; Policy::MAX_LIMITS];

/// The usages of up to six limits.
pub(crate) type FewUsages = UsagesOf<FEW_USAGES>;

/// The usages of up to sixteen limits, the most that a policy can have.
pub(crate) type Usages = UsagesOf<{ Policy::MAX_LIMITS }>;

thread_local! {
    static RECYCLED_OUTCOMES: Slots<OutcomeArray> = const { Slots::empty() };
    static RECYCLED_WINDOWS: Slots<OpenWindows> = const { Slots::empty() };
}

impl Recycle for OutcomeArray {
    const SLOTS: &'static LocalKey<Slots<Self>> = &RECYCLED_OUTCOMES;

    fn unset() -> Self {
        [UNSET; Policy::MAX_LIMITS]
    }
}

impl Recycle for OpenWindows {
    const SLOTS: &'static LocalKey<Slots<Self>> = &RECYCLED_WINDOWS;

    fn unset() -> Self {
        Self { before: Usages::EMPTY, charged: 0, required: 0, later: 0 }
    }
}

/// A placeholder for an outcome that is set later.
const UNSET: Outcome = Outcome::granted(0, 0);

/// The used units of each limit, and the time until it is reset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsagesOf<const LIMITS: usize> {
    used: [u32; LIMITS],
    // 48 bits of microseconds, in two parts.
    reset_low: [u32; LIMITS],
    reset_high: [u16; LIMITS],
}

impl<const LIMITS: usize> UsagesOf<LIMITS> {
    const EMPTY: Self = Self { used: [0; LIMITS], reset_low: [0; LIMITS], reset_high: [0; LIMITS] };

    /// Sets the outcome of the limit at `index`, which grants the request. Returns the bits that do
    /// not fit, or 0.
    #[inline(always)]
    pub(crate) const fn set(&mut self, index: usize, outcome: Outcome) -> u64 {
        let (used, reset) = (outcome.used(), outcome.reset_micros());
        self.used[index] = used as u32;
        self.reset_low[index] = reset as u32;
        self.reset_high[index] = (reset >> 32) as u16;
        used >> 32 | reset >> 48
    }

    const fn outcome(&self, index: usize) -> Outcome {
        let reset = (self.reset_high[index] as u64) << 32 | self.reset_low[index] as u64;
        Outcome::granted(self.used[index] as u64, reset)
    }
}

/// Open windows, stored as the difference to an earlier decision. Since then only the time has
/// changed, and the same number of units was charged to every window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenWindows {
    /// The windows as the earlier decision left them.
    pub(crate) before: Usages,
    /// The units that were charged to every window since the earlier decision.
    pub(crate) charged: u32,
    /// The units that a limit must have left to grant the request.
    pub(crate) required: u32,
    /// The microseconds that have passed since the earlier decision.
    pub(crate) later: u64,
}

impl OpenWindows {
    /// Creates windows in a recycled box. `required` is the cost of a denied request.
    #[inline(always)]
    pub(crate) fn boxed(
        before: &Usages,
        charged: u32,
        required: Cost,
        later: u64,
    ) -> Recycled<Self> {
        let mut open: Recycled<Self> = Recycled::new();
        let required = u32::try_from(required.units()).unwrap_or(u32::MAX);
        *open.get_or_new() = Self { before: *before, charged, required, later };
        open
    }

    fn outcome(&self, index: usize, max: u64) -> Outcome {
        let before = self.before.outcome(index);
        let used = before.used() + u64::from(self.charged);
        let reset = before.reset_micros().saturating_sub(self.later);
        Outcome::of_window(max, used, reset, self.required.into())
    }
}

impl Outcomes {
    /// Returns the number of outcomes under a policy of `limits` limits.
    pub(crate) fn count(&self, limits: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Few { count, .. } | Self::Many { count, .. } => limits.min((*count).into()),
            _ => limits,
        }
    }

    /// Returns the outcome of `limit`, whose index is less than [`count`](Self::count).
    ///
    /// If the limits of the policy are fixed windows, `windows` describes them. `decided_at` is the
    /// time of the decision.
    pub(crate) fn outcome(
        &self,
        index: usize,
        limit: Limit,
        windows: Option<&CompiledWindows>,
        decided_at: Timestamp,
    ) -> Outcome {
        match (self, windows) {
            (Self::Granted(usages), _) => usages.outcome(index),
            (Self::Few { outcomes, .. }, _) => outcomes[index],
            (Self::Many { outcomes, .. }, _) => outcomes.get().map_or(UNSET, |all| all[index]),
            (Self::Open(windows), _) => {
                windows.get().map_or(UNSET, |windows| windows.outcome(index, limit.max()))
            }
            (Self::Lazy { .. }, Some(windows)) => match self.decided_windows() {
                Some(decided) => decided.outcome(windows, index, decided_at),
                None => UNSET,
            },
            (Self::Lazy { .. }, None) => unreachable!("only fixed windows have lazy outcomes"),
            (Self::None, _) => unreachable!("the index is less than the count"),
        }
    }

    /// Returns whether the arguments fit into the fields of [`lazy`](Self::lazy) outcomes: 48 and
    /// 32 bits.
    #[inline(always)]
    const fn fit_lazily(decided_at: u64, required: u64) -> bool {
        decided_at >> 48 | required >> 32 == 0
    }

    /// Creates lazy outcomes: the fixed windows after a decision, from which an outcome is computed
    /// when it is read. The numbers must fit (see `fit_lazily`).
    #[inline(always)]
    pub(super) const fn lazy(states: &PackedStates, decided_at: u64, required: u64) -> Self {
        debug_assert!(Self::fit_lazily(decided_at, required));
        Self::Lazy {
            states: *states,
            decided_at_low: decided_at as u32,
            decided_at_high: (decided_at >> 32) as u16,
            required: required as u32,
        }
    }

    /// Creates the outcomes of the fixed windows of `policy` after a decision at the time `at`.
    pub(crate) fn of_windows(policy: &Policy, decided: DecidedWindows<'_>, at: Timestamp) -> Self {
        let DecidedWindows { states, decided_at, required } = decided;
        if Self::fit_lazily(decided_at, required) {
            return Self::lazy(states, decided_at, required);
        }
        let windows = policy.compiled_windows().into_iter();
        let lanes = windows.flat_map(|windows| {
            (0..policy.limits().len()).map(move |lane| decided.outcome(windows, lane, at))
        });
        lanes.collect()
    }

    /// Returns the windows of lazy outcomes.
    #[inline]
    pub(super) const fn decided_windows(&self) -> Option<DecidedWindows<'_>> {
        match self {
            Self::Lazy { states, decided_at_low, decided_at_high, required } => {
                let decided_at = (*decided_at_high as u64) << 32 | *decided_at_low as u64;
                Some(DecidedWindows { states, decided_at, required: *required as u64 })
            }
            _ => None,
        }
    }

    /// Returns the usages of `count` limits that all grant the request. Returns `None` if a number
    /// does not fit, or if the outcomes have another form than `Many`.
    pub(crate) fn usages(&self, count: usize) -> Option<Usages> {
        let Self::Many { outcomes, .. } = self else { return None };
        let mut usages = Usages::EMPTY;
        let outcomes = outcomes.get()?.iter().take(count).enumerate();
        let misfits = outcomes.fold(0, |all, (index, outcome)| all | usages.set(index, *outcome));
        (misfits == 0).then_some(usages)
    }

    /// Returns the limits that deny the request, if the outcomes are stored. Returns `None` if they
    /// are computed only when they are read.
    #[inline]
    pub(super) fn over(&self, limits: &[NamedLimit]) -> Option<LimitSet> {
        let outcomes = match self {
            Self::None | Self::Granted(_) => return Some(LimitSet::EMPTY),
            Self::Lazy { .. } | Self::Open(_) => return None,
            Self::Few { outcomes, count } => &outcomes[..usize::from(*count)],
            Self::Many { outcomes, count } => &outcomes.get()?[..usize::from(*count)],
        };
        let over = outcomes.iter().zip(limits).map(|(outcome, _)| outcome.is_over());
        let bits =
            over.enumerate().fold(0, |set, (index, is_over)| set | u16::from(is_over) << index);
        Some(LimitSet::from_bits(bits))
    }

    /// Returns the outcomes as they will be in `micros` microseconds, if nothing is charged until
    /// then. Returns `None` unless they are lazy, and the later time fits.
    #[cfg(feature = "redis")]
    #[inline(always)]
    pub(super) fn at_later(&self, micros: u64) -> Option<Self> {
        let DecidedWindows { states, decided_at, required } = self.decided_windows()?;
        let decided_at = decided_at + micros;
        Self::fit_lazily(decided_at, required).then(|| Self::lazy(states, decided_at, required))
    }

    /// Replaces all outcomes with empty usages, for a request that all `count` limits grant. The
    /// store then sets the usage of each limit. Returns `None` if there are too many limits.
    #[inline(always)]
    pub(crate) fn grant(&mut self, count: usize) -> Option<&mut FewUsages> {
        if count > FEW_USAGES {
            return None;
        }
        *self = Self::Granted(FewUsages::EMPTY);
        match self {
            Self::Granted(usages) => Some(usages),
            _ => None,
        }
    }

    /// Replaces all outcomes with those of `count` limits. The store then sets each of them.
    #[inline(always)]
    pub(crate) fn renew(&mut self, count: usize) -> &mut [Outcome] {
        let stored = count as u8;
        *self = if count <= FEW {
            Self::Few { outcomes: [UNSET; FEW], count: stored }
        } else {
            Self::Many { outcomes: Recycled::new(), count: stored }
        };
        match self {
            Self::Few { outcomes, .. } => &mut outcomes[..count],
            Self::Many { outcomes, .. } => &mut outcomes.get_or_new()[..count],
            _ => unreachable!("they have just been put there"),
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
        let mut collected = Self::None;
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
            let mut outcomes = [Outcomes::None, Outcomes::None];
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
        outcomes.outcome(index, Limit::per_hour(9), None, Timestamp::EPOCH)
    }
}
