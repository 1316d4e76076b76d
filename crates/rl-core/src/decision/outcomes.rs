use std::cell::Cell;

use smallvec::SmallVec;

use crate::algorithm::fixed_window::{CompiledWindows, DecidedWindows};
use crate::model::{Limit, Outcome};
use crate::policy::{LimitSet, NamedLimit, Policy};
use crate::time::Timestamp;

/// The outcomes of a decision, in the order of the policy's limits.
#[derive(Clone, Debug)]
pub(crate) enum Outcomes {
    /// No outcome yet.
    None,
    /// Outcomes that the store has computed. Six of them fit without an allocation.
    Computed(SmallVec<[Outcome; 6]>),
    /// The fixed windows after the decision. An outcome is computed only when it is read, because
    /// most callers read only the verdict. Computing six outcomes at once costs 200 instructions.
    Lazy(DecidedWindows),
    /// The usages of limits that all grant the request.
    Granted(Usages),
    /// The outcomes of at most six limits, some of which may deny the request.
    Few([Outcome; FEW]),
    /// The outcomes of more than six limits, some of which may deny the request.
    Many(RecycledOutcomes),
    /// Any number of fixed windows that were all open at an earlier decision, and are still open.
    Open(OpenWindows),
}

/// The number of outcomes that a decision stores in itself, without an allocation.
const FEW: usize = 6;

/// The used units of each limit, and the time until it is reset.
///
/// A policy has at most sixteen limits. Their usages take 160 bytes, which a decision stores in
/// itself, without an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usages {
    used: [u32; Policy::MAX_LIMITS],
    // 48 bits of microseconds, in two parts.
    reset_low: [u32; Policy::MAX_LIMITS],
    reset_high: [u16; Policy::MAX_LIMITS],
}

impl Usages {
    const EMPTY: Self = Self {
        used: [0; Policy::MAX_LIMITS],
        reset_low: [0; Policy::MAX_LIMITS],
        reset_high: [0; Policy::MAX_LIMITS],
    };

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
    fn outcome(&self, index: usize, max: u64) -> Outcome {
        let before = self.before.outcome(index);
        let used = before.used() + u64::from(self.charged);
        let reset = before.reset_micros().saturating_sub(self.later);
        Outcome::of_window(max, used, reset, self.required.into())
    }
}

/// The outcomes of more than six limits. Each thread recycles their memory.
///
/// They take 384 bytes. Stored in the decision itself, they would double the cost of moving it.
#[derive(Debug)]
pub(crate) struct RecycledOutcomes(Option<Box<[Outcome; Policy::MAX_LIMITS]>>);

thread_local! {
    /// The outcomes that this thread dropped last.
    static RECYCLED: Cell<Option<Box<[Outcome; Policy::MAX_LIMITS]>>> = const { Cell::new(None) };
}

impl RecycledOutcomes {
    /// Returns outcomes that are still to be set.
    fn new() -> Self {
        let recycled = RECYCLED.try_with(Cell::take).ok().flatten();
        Self(Some(
            recycled.unwrap_or_else(|| Box::new([Outcome::granted(0, 0); Policy::MAX_LIMITS])),
        ))
    }

    fn get(&self) -> &[Outcome] {
        self.0.as_deref().map_or(&[], |outcomes| outcomes)
    }

    fn get_mut(&mut self) -> &mut [Outcome] {
        self.0.as_deref_mut().map_or(&mut [], |outcomes| outcomes)
    }
}

impl Clone for RecycledOutcomes {
    fn clone(&self) -> Self {
        let mut clone = Self::new();
        clone.get_mut().copy_from_slice(self.get());
        clone
    }
}

impl Drop for RecycledOutcomes {
    fn drop(&mut self) {
        // The slot no longer exists while the thread ends.
        let _ = RECYCLED.try_with(|slot| slot.set(self.0.take()));
    }
}

impl Outcomes {
    /// Returns the number of outcomes under a policy of `limits` limits.
    pub(crate) fn count(&self, limits: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Computed(outcomes) => outcomes.len().min(limits),
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
            (Self::Computed(outcomes), _) => outcomes[index],
            (Self::Granted(usages), _) => usages.outcome(index),
            (Self::Few(outcomes), _) => outcomes[index],
            (Self::Many(outcomes), _) => outcomes.get()[index],
            (Self::Open(windows), _) => windows.outcome(index, limit.max()),
            (Self::Lazy(decided), Some(windows)) => decided.outcome(windows, index, decided_at),
            (Self::Lazy(_), None) => unreachable!("only fixed windows have lazy outcomes"),
            (Self::None, _) => unreachable!("the index is less than the count"),
        }
    }

    /// Returns the limits that deny the request, without computing whole outcomes if possible. Returns
    /// `None` if the outcomes are computed only when they are read.
    #[inline]
    pub(super) fn over(&self, limits: &[NamedLimit]) -> Option<LimitSet> {
        let outcomes = match self {
            Self::None | Self::Granted(_) => return Some(LimitSet::EMPTY),
            Self::Lazy(_) | Self::Open(_) => return None,
            Self::Computed(outcomes) => outcomes,
            Self::Few(outcomes) => &outcomes[..],
            Self::Many(outcomes) => outcomes.get(),
        };
        let over = outcomes.iter().zip(limits).map(|(outcome, _)| outcome.is_over());
        let bits =
            over.enumerate().fold(0, |set, (index, is_over)| set | u16::from(is_over) << index);
        Some(LimitSet::from_bits(bits))
    }

    /// Returns the outcomes as they will be after `micros` microseconds without further use.
    /// Returns `None` if they are not stored in a form that depends on the time.
    #[cfg(feature = "redis")]
    #[inline(always)]
    pub(super) fn at_later(&self, micros: u64) -> Option<Self> {
        match self {
            Self::Lazy(windows) => {
                let decided_at = windows.decided_at + micros;
                Some(Self::Lazy(DecidedWindows { decided_at, ..*windows }))
            }
            _ => None,
        }
    }

    /// Replaces all outcomes with empty usages of a granted request. The store then sets the usage
    /// of each limit.
    #[inline(always)]
    pub(crate) fn grant(&mut self) -> &mut Usages {
        *self = Self::Granted(Usages::EMPTY);
        match self {
            Self::Granted(usages) => usages,
            _ => unreachable!("they have just been put there"),
        }
    }

    /// Replaces all outcomes with those of `count` limits. The store then sets each of them.
    #[inline(always)]
    pub(crate) fn renew(&mut self, count: usize) -> &mut [Outcome] {
        *self = if count <= FEW {
            Self::Few([Outcome::granted(0, 0); FEW])
        } else {
            Self::Many(RecycledOutcomes::new())
        };
        match self {
            Self::Few(outcomes) => &mut outcomes[..count],
            Self::Many(outcomes) => outcomes.get_mut(),
            _ => unreachable!("they have just been put there"),
        }
    }
}

impl FromIterator<Outcome> for Outcomes {
    fn from_iter<I: IntoIterator<Item = Outcome>>(outcomes: I) -> Self {
        Self::Computed(outcomes.into_iter().collect())
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
