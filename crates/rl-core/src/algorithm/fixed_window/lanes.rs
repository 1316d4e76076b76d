//! Six 32-bit numbers that are added and compared as three 64-bit words, and the states that
//! contain them. `mod.rs` of this folder has a picture of the layout.

/// The number of lanes: the maximum number of windows that are decided together.
pub(crate) const LANES: usize = 6;

/// The top bits of both lanes of a word. They are 0 in every number below 2^31.
const TOP_BITS: u64 = 1 << 63 | 1 << 31;

/// The time of a decision in two forms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedTime {
    /// Microseconds since the epoch.
    pub(crate) absolute: u64,
    /// The same time as [`PackedStates`] stores it: microseconds after the base of the store, plus
    /// one.
    pub(crate) relative: u64,
}

/// A 32-bit number for each lane. Each word contains two lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lanes([u64; LANES / 2]);

impl Lanes {
    pub(super) fn new(numbers: [u32; LANES]) -> Self {
        Self::each(|i| u64::from(numbers[2 * i + 1]) << 32 | u64::from(numbers[2 * i]))
    }

    /// Adds `units`, which must be less than 2^31, to the lanes of `mask`. Compares each sum with
    /// the limit that `bias` encodes.
    #[inline(always)]
    pub(super) fn add(self, units: u32, mask: Self, bias: Self) -> LaneSum {
        let units = u64::from(units) << 32 | u64::from(units);
        let sums = Self::each(|i| self.0[i].wrapping_add(units & mask.0[i]));
        let biased = Self::each(|i| sums.0[i].wrapping_add(bias.0[i]));
        let large = Self::each(|i| self.0[i] | sums.0[i]);
        LaneSum { sums, large, biased }
    }

    /// Returns the bits that are set in at least one of the words.
    const fn union(self) -> u64 {
        self.0[0] | self.0[1] | self.0[2]
    }

    fn each(word: impl Fn(usize) -> u64) -> Self {
        Self([word(0), word(1), word(2)])
    }

    const fn numbers(self) -> [u32; LANES] {
        let [a, b, c] = self.0;
        [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32, c as u32, (c >> 32) as u32]
    }
}

/// The result of [`Lanes::add`].
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneSum {
    pub(super) sums: Lanes,
    // Contains the top bit of each lane whose number was at least 2^31 before or after the
    // addition.
    large: Lanes,
    // Contains the top bit of each lane whose sum exceeds the limit.
    biased: Lanes,
}

impl LaneSum {
    /// Returns whether every sum fits into 31 bits and is within its limit.
    pub(super) fn is_within_limits(&self) -> bool {
        (self.large.union() | self.biased.union()) & TOP_BITS == 0
    }

    /// Returns whether every number fits into 31 bits.
    pub(super) const fn fits(&self) -> bool {
        self.large.union() & TOP_BITS == 0
    }

    /// Returns the lanes whose sum exceeds the limit, or no lane if a number does not fit into 31
    /// bits.
    pub(super) fn exceeding(&self) -> LaneSet {
        if !self.fits() {
            return LaneSet(0);
        }
        LaneSet::of_top_bits(self.biased)
    }
}

/// A set of lanes, one bit for each.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneSet(u16);

impl LaneSet {
    /// Returns the lanes whose top bit is set.
    fn of_top_bits(Lanes([a, b, c]): Lanes) -> Self {
        // The lower lanes of the words get the bits 0, 2 and 4. The upper lanes get the bits 32, 34
        // and 36, which the second line shifts to 1, 3 and 5.
        let apart = (a & TOP_BITS) >> 31 | (b & TOP_BITS) >> 29 | (c & TOP_BITS) >> 27;
        Self((apart | apart >> 31) as u16)
    }
}

impl Iterator for LaneSet {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(bit % LANES)
    }
}

/// The states of up to six fixed windows. Each lane has the used units in 32 bits, and the time of
/// the first charge in 48 bits. Times are relative to a base that the store chooses; 0 means no
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedStates {
    numbers: [u32; LANES],
    times_low: [u32; LANES],
    times_high: [u16; LANES],
}

impl PackedStates {
    /// The states of a subject that has used nothing.
    pub(crate) const EMPTY: Self =
        Self { numbers: [0; LANES], times_low: [0; LANES], times_high: [0; LANES] };

    pub(crate) const fn time(&self, lane: usize) -> u64 {
        (self.times_high[lane] as u64) << 32 | self.times_low[lane] as u64
    }

    pub(crate) const fn number(&self, lane: usize) -> u64 {
        self.numbers[lane] as u64
    }

    /// Returns the numbers of all lanes.
    pub(crate) fn numbers(&self) -> Lanes {
        Lanes::new(self.numbers)
    }

    /// Replaces the numbers of all lanes.
    pub(crate) fn set_numbers(&mut self, numbers: Lanes) {
        self.numbers = numbers.numbers();
    }

    /// Returns the states with every number lowered by `units`, but not below 0.
    #[cfg(feature = "redis")]
    pub(crate) fn less(mut self, units: u64) -> Self {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        for number in &mut self.numbers {
            *number = number.saturating_sub(units);
        }
        self
    }

    /// Sets the time and the number of a lane, truncated to their bits. Returns the bits that were
    /// cut off, which are 0 if both values fit.
    pub(crate) const fn set(&mut self, lane: usize, time: u64, number: u64) -> u64 {
        self.times_low[lane] = time as u32;
        self.times_high[lane] = (time >> 32) as u16;
        self.numbers[lane] = number as u32;
        time >> 48 | number >> 32
    }
}
