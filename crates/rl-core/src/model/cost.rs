use std::fmt;

use super::MAX_UNITS;

/// Units that one request takes; 1 unless said.
///
/// A cost of 0 only looks. Costs above the largest limit there can be are all alike (no state could
/// ever grant them), so they are held as one unit more than that.
///
/// # Examples
///
/// ```
/// use rl_core::Cost;
///
/// assert_eq!(Cost::from(3).units(), 3);
/// assert_eq!(Cost::default(), Cost::ONE);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

impl Cost {
    /// Looks, takes nothing.
    pub const ZERO: Self = Self(0);
    /// What a request takes unless said.
    pub const ONE: Self = Self(1);

    /// A cost of `units`.
    #[must_use]
    pub const fn new(units: u64) -> Self {
        if units > MAX_UNITS { Self(MAX_UNITS + 1) } else { Self(units) }
    }

    /// The number of units.
    #[must_use]
    pub const fn units(self) -> u64 {
        self.0
    }
}

impl Default for Cost {
    fn default() -> Self {
        Self::ONE
    }
}

impl From<u64> for Cost {
    fn from(units: u64) -> Self {
        Self::new(units)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
