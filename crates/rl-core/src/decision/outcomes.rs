use smallvec::SmallVec;

use crate::algorithm::fixed_window::{CompiledWindows, DecidedWindows};
use crate::model::Outcome;
use crate::policy::Policy;
use crate::time::Timestamp;

/// The outcomes of a decision, in the order of the policy's limits.
#[derive(Clone, Debug)]
pub(crate) enum Outcomes {
    /// No outcome yet.
    None,
    /// Outcomes that the store has computed. Six of them fit without an allocation.
    Computed(SmallVec<[Outcome; 6]>),
    /// The fixed windows after the decision. Each read computes an outcome, because most callers
    /// read only the verdict. Computing all outcomes of six windows at once takes 200 instructions more.
    Lazy(DecidedWindows),
    /// Limits that all grant the request.
    Granted(GrantedOutcomes),
}

/// The used units of each limit, and the time until it is reset, for a request that all of them grant.
///
/// Sixteen take 160 bytes, so that a decision under any policy is made without an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrantedOutcomes {
    used: [u32; Policy::MAX_LIMITS],
    // 48 bits of microseconds, in two parts.
    reset_low: [u32; Policy::MAX_LIMITS],
    reset_high: [u16; Policy::MAX_LIMITS],
}

impl GrantedOutcomes {
    const EMPTY: Self = Self {
        used: [0; Policy::MAX_LIMITS],
        reset_low: [0; Policy::MAX_LIMITS],
        reset_high: [0; Policy::MAX_LIMITS],
    };

    /// Sets the outcome of the limit at `index`, which grants the request. Returns the bits that do not fit,
    /// or 0.
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

impl Outcomes {
    /// Returns the number of outcomes under a policy of `limits` limits.
    pub(crate) fn count(&self, limits: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Computed(outcomes) => outcomes.len().min(limits),
            Self::Lazy(_) | Self::Granted(_) => limits,
        }
    }

    /// Returns the outcome of the limit at `index`, which is less than [`count`](Self::count).
    ///
    /// If the limits of the policy are fixed windows, `windows` describes them. `decided_at` is the
    /// time of the decision.
    pub(crate) fn outcome(
        &self,
        index: usize,
        windows: Option<&CompiledWindows>,
        decided_at: Timestamp,
    ) -> Outcome {
        match (self, windows) {
            (Self::Computed(outcomes), _) => outcomes[index],
            (Self::Granted(granted), _) => granted.outcome(index),
            (Self::Lazy(decided), Some(windows)) => decided.outcome(windows, index, decided_at),
            (Self::Lazy(_), None) => unreachable!("only fixed windows have lazy outcomes"),
            (Self::None, _) => unreachable!("the index is less than the count"),
        }
    }

    /// Returns the outcomes as they are `micros` later, if nothing has been used since.
    #[cfg(feature = "redis")]
    #[inline(always)]
    pub(super) fn at_later(&self, micros: u64) -> Self {
        match self {
            Self::None => Self::None,
            Self::Computed(outcomes) => {
                outcomes.iter().map(|outcome| outcome.at_later(micros)).collect()
            }
            // Only denials are cached.
            Self::Granted(granted) => Self::Granted(*granted),
            Self::Lazy(windows) => {
                Self::Lazy(DecidedWindows { decided_at: windows.decided_at + micros, ..*windows })
            }
        }
    }

    /// Replaces all outcomes by those of a granted request, to which a store adds the outcome of each limit.
    #[inline(always)]
    pub(crate) fn grant(&mut self) -> &mut GrantedOutcomes {
        *self = Self::Granted(GrantedOutcomes::EMPTY);
        match self {
            Self::Granted(granted) => granted,
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
                let read = outcomes.outcome(used as usize, None, Timestamp::EPOCH);
                assert_eq!(read, outcome(used));
            }
        }
    }
}
