use smallvec::SmallVec;

use crate::model::{Limit, Outcome};
use crate::policy::NamedLimit;

/// The outcomes of a decision, in the order of the policy's limits.
#[derive(Clone, Debug)]
pub(crate) enum Outcomes {
    /// The usages of all limits, of which there are at most six.
    Usages(Usages),
    /// Any outcomes. There are fewer than limits if the store has returned too few.
    Each(SmallVec<[Outcome; 2]>),
}

// With 72 bytes here, a decision has 128 bytes. Up to that size, the compiler moves it without a
// call of `memcpy`.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Outcomes>() == 72);

/// The used units of up to six limits, and the times until they are reset.
///
/// A limit denies the request until it is reset, if it has fewer than the required units left. This
/// describes each fixed window, and each other limit that grants the request. An outcome is computed
/// when it is read, because most callers read only the verdict.
///
/// ```text
/// used        6 × u32  units
/// reset_low   6 × u32  lower 32 of 48 bits, µs after the decision
/// reset_high  6 × u16  upper 16 of 48 bits
/// required    u32      units
/// later       u32      µs
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usages {
    used: [u32; Self::MAX],
    reset_low: [u32; Self::MAX],
    reset_high: [u16; Self::MAX],
    required: u32,
    /// The time by which the outcomes are later than the usages.
    later: u32,
}

impl Usages {
    /// The largest number of limits.
    pub(crate) const MAX: usize = 6;

    /// The usages of unused limits.
    pub(crate) const UNUSED: Self = Self {
        used: [0; Self::MAX],
        reset_low: [0; Self::MAX],
        reset_high: [0; Self::MAX],
        required: 0,
        later: 0,
    };

    /// Sets the used units of all limits.
    #[inline(always)]
    pub(crate) const fn set_used(&mut self, used: [u32; Self::MAX]) {
        self.used = used;
    }

    /// Sets the time until the limit at `index` is reset. The time must fit into 48 bits.
    #[inline(always)]
    pub(crate) const fn set_reset(&mut self, index: usize, micros: u64) {
        self.reset_low[index] = micros as u32;
        self.reset_high[index] = (micros >> 32) as u16;
    }

    /// Sets the usage of the limit at `index`. Returns whether the numbers fit.
    pub(crate) fn set(&mut self, index: usize, used: u64, reset_micros: u64) -> bool {
        if index >= Self::MAX || used >> 32 != 0 || reset_micros >> 48 != 0 {
            return false;
        }
        self.used[index] = used as u32;
        self.set_reset(index, reset_micros);
        true
    }

    /// Returns the usages with every number of used units lowered by `units`, but not below 0.
    #[cfg(feature = "redis")]
    pub(crate) fn less(mut self, units: u64) -> Self {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        for used in &mut self.used {
            *used = used.saturating_sub(units);
        }
        self
    }

    /// Returns the usages as they will be in `micros` microseconds, if nothing is charged until
    /// then.
    #[cfg(feature = "redis")]
    #[inline]
    pub(crate) fn at_later(mut self, micros: u64) -> Self {
        let later = micros.saturating_add(self.later.into());
        match u32::try_from(later) {
            Ok(later) => Self { later, ..self },
            Err(_) => {
                for index in 0..Self::MAX {
                    let left = self.reset(index).saturating_sub(later);
                    self.set_reset(index, left);
                    self.used[index] = if left == 0 { 0 } else { self.used[index] };
                }
                Self { later: 0, ..self }
            }
        }
    }

    const fn reset(&self, index: usize) -> u64 {
        (self.reset_high[index] as u64) << 32 | self.reset_low[index] as u64
    }

    fn outcome(&self, index: usize, limit: Limit) -> Outcome {
        let left = self.reset(index).saturating_sub(self.later.into());
        // A limit that has been reset meanwhile is unused.
        let used = if left == 0 && self.later > 0 { 0 } else { self.used[index].into() };
        Outcome::of_window(limit.capacity(), used, left, limit.units(self.required.into()))
    }
}

impl Outcomes {
    /// No outcomes.
    pub(super) const NONE: Self = Self::Each(SmallVec::new_const());

    /// Creates the outcomes of `limits` for a request that requires `required` units of each of them
    /// after the decision.
    pub(crate) fn new(
        limits: &[NamedLimit],
        required: u64,
        outcomes: impl IntoIterator<Item = Outcome>,
    ) -> Self {
        let each: SmallVec<[Outcome; 16]> = outcomes.into_iter().collect();
        match usages(limits, required, &each) {
            Some(usages) => Self::Usages(usages),
            None => Self::Each(SmallVec::from_slice(&each)),
        }
    }

    /// Creates the outcomes of `limits` with these usages, for a request that requires `required`
    /// units of each of them after the decision.
    #[inline]
    pub(crate) fn of_usages(limits: &[NamedLimit], usages: Usages, required: u64) -> Self {
        match u32::try_from(required) {
            Ok(required) => Self::Usages(Usages { required, ..usages }),
            Err(_) => {
                let usage = limits.iter().enumerate().map(|(index, named)| {
                    let (limit, usage) = (named.limit(), usages.outcome(index, named.limit()));
                    let (used, reset) = (usage.used(), usage.reset_micros());
                    Outcome::of_window(limit.capacity(), used, reset, limit.units(required))
                });
                Self::Each(usage.collect())
            }
        }
    }

    /// Returns the number of outcomes under a policy of `limits` limits.
    pub(super) fn count(&self, limits: usize) -> usize {
        match self {
            Self::Usages(_) => limits,
            Self::Each(each) => each.len().min(limits),
        }
    }

    /// Returns the outcome of `limit`. Its index is less than [`count`](Self::count).
    pub(super) fn outcome(&self, index: usize, limit: Limit) -> Outcome {
        match self {
            Self::Usages(usages) => usages.outcome(index, limit),
            Self::Each(each) => each[index],
        }
    }

    /// Returns the outcomes as they will be in `micros` microseconds, if nothing is charged until
    /// then. The limits that deny the request must still deny it then.
    #[cfg(feature = "redis")]
    #[inline]
    pub(super) fn at_later(&self, micros: u64) -> Self {
        match self {
            Self::Usages(usages) => Self::Usages(usages.at_later(micros)),
            Self::Each(each) => {
                Self::Each(each.iter().map(|outcome| outcome.at_later(micros)).collect())
            }
        }
    }
}

/// Returns the usages of `limits` that lead to these outcomes, if there are any.
fn usages(limits: &[NamedLimit], required: u64, outcomes: &[Outcome]) -> Option<Usages> {
    if outcomes.len() != limits.len() {
        return None;
    }
    let mut usages = Usages { required: u32::try_from(required).ok()?, ..Usages::UNUSED };
    for (index, (named, outcome)) in limits.iter().zip(outcomes).enumerate() {
        let fits = usages.set(index, outcome.used(), outcome.reset_micros())
            && usages.outcome(index, named.limit()) == *outcome;
        if !fits {
            return None;
        }
    }
    Some(usages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn outcomes_are_read_as_they_were_made(
            made in prop::collection::vec((0..2_u8, 0..12_u64, 0..1_u64 << 50, 0..3_u8), 0..=16),
            required in 0..12_u64,
        ) {
            let limits = (1..=16).map(|hours| match hours % 3 {
                0 => format!("9/{hours}h:gcra"),
                1 => format!("9/{hours}h:requests"),
                _ => format!("9/{hours}h"),
            });
            let limits = limits.map(|limit| limit.parse().unwrap());
            let policy = Policy::new(limits.take(made.len().max(1))).unwrap();
            let outcomes: Vec<_> = made.iter().map(|(large, used, reset, wait)| {
                let used = used << (32 * large);
                match wait {
                    0 => Outcome::granted(used, *reset),
                    1 => Outcome::denied(used, *reset, *reset),
                    _ => Outcome::never(used, *reset),
                }
            }).collect();
            let kept = Outcomes::new(policy.limits(), required, outcomes.iter().copied());
            prop_assert_eq!(kept.count(policy.limits().len()), outcomes.len());
            for (index, outcome) in outcomes.iter().enumerate() {
                prop_assert_eq!(kept.outcome(index, policy.limits()[index].limit()), *outcome);
            }
        }
    }
}
