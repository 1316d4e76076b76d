/// Some of the limits of a policy, known by their places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LimitSet(u16);

// A bit for each.
const _: () = assert!(super::Policy::MAX_LIMITS == u16::BITS as usize);

impl LimitSet {
    /// No limit.
    pub const EMPTY: Self = Self(0);

    /// Whether the limit at `place`, counted from 0, is one of them.
    #[must_use]
    pub const fn contains(self, place: usize) -> bool {
        place < u16::BITS as usize && self.0 >> place & 1 == 1
    }

    /// Takes the limit at `place` in.
    ///
    /// # Panics
    ///
    /// Panics if no policy has so many limits.
    pub const fn insert(&mut self, place: usize) {
        assert!(place < u16::BITS as usize, "a policy has at most 16 limits");
        self.0 |= 1 << place;
    }

    #[cfg(feature = "redis")]
    pub(crate) const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    #[cfg(feature = "redis")]
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
