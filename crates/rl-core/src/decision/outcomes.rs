use smallvec::SmallVec;

use crate::algorithm::fixed_window::{CompiledWindows, DecidedWindows};
use crate::model::Outcome;
use crate::time::Timestamp;

/// The outcomes of a decision, in the order of the policy's limits.
#[derive(Clone, Debug)]
pub(crate) enum Outcomes {
    /// No outcome yet.
    None,
    /// Outcomes that the store has computed. Six of them fit without an allocation.
    Computed(SmallVec<[Outcome; 6]>),
    /// The fixed windows after the decision. Each read computes an outcome, because most callers
    /// read only the verdict.
    Lazy(DecidedWindows),
}

impl Outcomes {
    /// Returns the number of outcomes under a policy of `limits` limits.
    pub(crate) fn count(&self, limits: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Computed(outcomes) => outcomes.len().min(limits),
            Self::Lazy(_) => limits,
        }
    }

    /// Returns the outcome of the limit at `index`, which is less than [`count`](Self::count).
    ///
    /// If the limits of the policy are fixed windows, `windows` describes them. `decided_at` is the
    /// time of the decision.
    #[inline]
    pub(crate) fn outcome(
        &self,
        index: usize,
        windows: Option<&CompiledWindows>,
        decided_at: Timestamp,
    ) -> Outcome {
        match (self, windows) {
            (Self::Computed(outcomes), _) => outcomes[index],
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
            Self::Lazy(windows) => {
                Self::Lazy(DecidedWindows { decided_at: windows.decided_at + micros, ..*windows })
            }
        }
    }

    /// Adds the outcome of the next limit.
    pub(crate) fn push(&mut self, outcome: Outcome) {
        match self {
            Self::Computed(outcomes) => outcomes.push(outcome),
            Self::None | Self::Lazy(_) => *self = [outcome].into_iter().collect(),
        }
    }

    /// Removes all outcomes.
    pub(crate) fn clear(&mut self) {
        *self = Self::None;
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
