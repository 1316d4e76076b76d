use smallvec::SmallVec;

use super::Outcome;
use crate::model::{Moment, Packed, WindowPlan};
use crate::time::Timestamp;

/// The outcomes of a decision, in the order of the policy's limits.
#[derive(Clone, Debug)]
pub(crate) enum Outcomes {
    /// Not yet any.
    None,
    /// As they were told; six need no memory of their own.
    Told(SmallVec<[Outcome; 6]>),
    /// Of windows that were decided in one pass: told when somebody looks.
    Windows(Windows),
}

/// How a decision left windows behind: most who ask look at nothing but whether they may pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    pub(crate) states: Packed,
    /// When it was made, as times are kept there.
    pub(crate) kept: u64,
    /// The units that are asked of what is left.
    pub(crate) needed: u64,
}

impl Windows {
    #[inline]
    fn outcome(&self, plan: &WindowPlan, place: usize, now: Timestamp) -> Outcome {
        let Self { states, kept, needed } = self;
        let at = Moment { now: now.as_micros(), kept: *kept };
        let (end, used) = plan.window(states, place, at);
        Outcome::of_window(plan.max[place], used, end.saturating_sub(*kept), *needed)
    }
}

impl Outcomes {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self::None
    }

    /// How many there are under a policy of so many limits.
    pub(crate) fn count(&self, limits: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Told(outcomes) => outcomes.len().min(limits),
            Self::Windows(_) => limits,
        }
    }

    /// What came out for the limit at `place`, one of those that there are: `now` is when it was
    /// decided, and `plan` says how, of what was decided in one pass.
    #[inline]
    pub(crate) fn outcome(
        &self,
        place: usize,
        plan: Option<&WindowPlan>,
        now: Timestamp,
    ) -> Outcome {
        match (self, plan) {
            (Self::Told(outcomes), _) => outcomes[place],
            (Self::Windows(windows), Some(plan)) => windows.outcome(plan, place, now),
            (Self::Windows(_), None) => unreachable!("windows are decided as a plan says"),
            (Self::None, _) => unreachable!("there are none"),
        }
    }

    /// The same so many microseconds later, if nothing was used since.
    #[cfg(feature = "redis")]
    #[inline(always)]
    pub(super) fn later(&self, micros: u64) -> Self {
        match self {
            Self::None => Self::None,
            Self::Told(outcomes) => outcomes.iter().map(|outcome| outcome.after(micros)).collect(),
            Self::Windows(windows) => {
                Self::Windows(Windows { kept: windows.kept + micros, ..*windows })
            }
        }
    }

    pub(crate) fn push(&mut self, outcome: Outcome) {
        match self {
            Self::Told(outcomes) => outcomes.push(outcome),
            Self::None | Self::Windows(_) => *self = [outcome].into_iter().collect(),
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::None;
    }
}

impl FromIterator<Outcome> for Outcomes {
    fn from_iter<I: IntoIterator<Item = Outcome>>(outcomes: I) -> Self {
        Self::Told(outcomes.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_all_of_a_policy() {
        for count in 0..=16 {
            let outcome = |used| Outcome::granted(used, 1);
            let outcomes: Outcomes = (0..count).map(outcome).collect();
            assert_eq!(outcomes.count(16), count as usize);
            for used in 0..count {
                let told = outcomes.outcome(used as usize, None, Timestamp::EPOCH);
                assert_eq!(told, outcome(used));
            }
        }
    }
}
