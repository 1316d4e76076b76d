use std::fmt;

/// The largest number of units that a limit may allow. A Lua double is exact for all integers up to
/// this one.
pub const MAX_UNITS: u64 = (1 << 53) - 1;

/// The units that a request uses, 1 by default.
///
/// A cost of 0 charges nothing: the decision only reports the status of the limits. No limit ever
/// grants more than [`MAX_UNITS`], so a higher cost is stored as `MAX_UNITS + 1`.
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
    /// No units.
    pub const ZERO: Self = Self(0);
    /// One unit, the default.
    pub const ONE: Self = Self(1);

    /// Creates a cost of `units`.
    #[must_use]
    pub const fn new(units: u64) -> Self {
        if units > MAX_UNITS { Self(MAX_UNITS + 1) } else { Self(units) }
    }

    /// Returns the number of units.
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

/// The way in which a store charges the cost of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Charges the whole cost, or nothing.
    Check,
    /// Charges as much of the cost as every limit grants.
    CheckUpTo,
    /// Charges nothing, and reports whether the cost would be granted.
    Peek,
    /// Charges the whole cost even beyond the limits, because the units have already been used.
    Charge,
}

impl Mode {
    /// Returns the units that must be available for the request to be allowed.
    pub(crate) const fn required(self, cost: Cost) -> u64 {
        match self {
            Self::Check | Self::Peek => cost.units(),
            Self::CheckUpTo => (cost.units() > 0) as u64,
            Self::Charge => 0,
        }
    }

    /// Returns the units to charge if every limit has at least `available` units remaining.
    pub(crate) const fn charged(self, cost: Cost, available: u64) -> u64 {
        let cost = cost.units();
        match self {
            Self::Check if cost <= available => cost,
            Self::Check | Self::Peek => 0,
            Self::CheckUpTo if cost <= available => cost,
            Self::CheckUpTo => available,
            Self::Charge => cost,
        }
    }

    /// Returns the number of units that must remain after the decision for a limit to be reported
    /// as granting the request. The decision has charged `charged` units. If `is_uncharged`, the
    /// limit itself was not charged, because it is in shadow and would have denied the request.
    #[cfg(any(test, feature = "redis"))]
    pub(crate) const fn required_after(self, cost: Cost, charged: u64, is_uncharged: bool) -> u64 {
        match charged {
            0 => self.required(cost),
            charged if is_uncharged => charged,
            // The state already contains the charge. If more were required, the granted request
            // would be reported as denied.
            _ => 0,
        }
    }
}

/// The name of a limit's units in messages to clients.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Unit {
    // The first `len` bytes are the name, the others are zero. An array, unlike a `String`, lets a
    // `Limit` be copied and be a constant.
    text: [u8; Unit::LONGEST],
    len: u8,
}

impl Unit {
    const LONGEST: usize = 16;

    pub(super) const REQUESTS: Self = Self { text: *b"requests\0\0\0\0\0\0\0\0", len: 8 };

    /// Creates the unit of this name; `None` unless the name is 1 to 16 characters of `a-z`, `0-9`
    /// and `-`.
    pub(super) fn new(name: &str) -> Option<Self> {
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let is_name = (1..=Self::LONGEST).contains(&name.len()) && name.bytes().all(fits);
        is_name.then(|| {
            let mut text = [0; Self::LONGEST];
            text[..name.len()].copy_from_slice(name.as_bytes());
            Self { text, len: name.len() as u8 }
        })
    }

    /// Returns the name.
    pub(super) fn as_str(&self) -> &str {
        // The default is never used, because `new` accepts only ASCII.
        std::str::from_utf8(&self.text[..usize::from(self.len)]).unwrap_or("units")
    }
}
