use super::Cost;

/// What is asked of the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Takes the whole cost or nothing.
    Check,
    /// Takes as much of the cost as every limit grants.
    CheckUpTo,
    /// Takes nothing: would the cost pass?
    Peek,
    /// Takes the whole cost even beyond the limits: it was used already.
    Charge,
}

impl Mode {
    /// The units without which the answer is a denial.
    pub(crate) const fn needed(self, cost: Cost) -> u64 {
        match self {
            Self::Check | Self::Peek => cost.units(),
            Self::CheckUpTo => (cost.units() > 0) as u64,
            Self::Charge => 0,
        }
    }

    /// The units to take when every limit has `available` left.
    pub(crate) const fn taken(self, cost: Cost, available: u64) -> u64 {
        let cost = cost.units();
        match self {
            Self::Check if cost <= available => cost,
            Self::Check | Self::Peek => 0,
            Self::CheckUpTo if cost <= available => cost,
            Self::CheckUpTo => available,
            Self::Charge => cost,
        }
    }
}
