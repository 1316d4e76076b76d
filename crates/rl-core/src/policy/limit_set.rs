/// A set of limits of a policy, by their positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LimitSet(u16);

/// The maximum number of limits in a policy, because the set has one bit for each.
pub(super) const MAX_LIMITS: usize = u16::BITS as usize;

impl LimitSet {
    /// The empty set.
    pub const EMPTY: Self = Self(0);

    /// Returns whether the set contains the limit at position `place`, counted from 0.
    #[must_use]
    pub const fn contains(self, place: usize) -> bool {
        place < u16::BITS as usize && self.0 >> place & 1 == 1
    }

    /// Adds the limit at position `place`.
    ///
    /// # Panics
    ///
    /// Panics if `place` is not below [`Policy::MAX_LIMITS`](crate::Policy::MAX_LIMITS).
    pub const fn insert(&mut self, place: usize) {
        assert!(place < u16::BITS as usize, "a policy has at most 16 limits");
        self.0 |= 1 << place;
    }

    /// Creates a set with one bit for each position.
    #[cfg(any(test, feature = "redis"))]
    pub(crate) const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Returns the positions, one bit for each.
    pub(crate) const fn bits(self) -> u16 {
        self.0
    }
}

impl FromIterator<usize> for LimitSet {
    fn from_iter<I: IntoIterator<Item = usize>>(places: I) -> Self {
        let mut set = Self::EMPTY;
        places.into_iter().for_each(|place| set.insert(place));
        set
    }
}
