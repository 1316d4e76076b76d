use super::WindowPlan;

/// When a decision is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// In µs since the epoch.
    pub(crate) now: u64,
    /// The same as it is kept.
    pub(crate) kept: u64,
}

/// A number for each place.
type Numbers = [u32; Packed::PLACES];

/// The uppermost bits of both numbers of a pair: of numbers below 2^31 they are free.
const UPPERMOST: u64 = 1 << 63 | 1 << 31;

/// A number of 32 bits for each place, two in a word: they are added and compared as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pairs([u64; Packed::PLACES / 2]);

impl Pairs {
    #[inline(always)]
    pub(crate) fn of(numbers: Numbers) -> Self {
        let pair = |i: usize| u64::from(numbers[2 * i + 1]) << 32 | u64::from(numbers[2 * i]);
        Self([pair(0), pair(1), pair(2)])
    }

    /// The first of some places: the first of a pair stands in the lower half.
    #[inline]
    pub(crate) const fn place(places: u64) -> usize {
        let bit = places.trailing_zeros() as usize;
        (2 * (bit % 32) + bit / 32) % Packed::PLACES
    }

    #[inline(always)]
    const fn numbers(self) -> Numbers {
        let [a, b, c] = self.0;
        [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32, c as u32, (c >> 32) as u32]
    }
}

/// The states of several limits, each a number of 32 bits and a time of 48: windows, or what else has
/// two cells.
///
/// Times are in µs from some origin; 0 is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed {
    numbers: Numbers,
    lower: [u32; Packed::PLACES],
    upper: [u16; Packed::PLACES],
}

impl Packed {
    /// The most states.
    pub(crate) const PLACES: usize = 6;

    /// Of nobody.
    pub(crate) const NONE: Self =
        Self { numbers: [0; Self::PLACES], lower: [0; Self::PLACES], upper: [0; Self::PLACES] };

    #[inline]
    pub(crate) const fn time(&self, place: usize) -> u64 {
        (self.upper[place] as u64) << 32 | self.lower[place] as u64
    }

    #[inline]
    pub(crate) const fn number(&self, place: usize) -> u64 {
        self.numbers[place] as u64
    }

    /// The numbers with `units` added, which are fewer than 2^31, and the [places](Pairs::place) where that is
    /// more than the plan's room. Nothing, if a number does not fit.
    #[inline(always)]
    pub(crate) fn plus(&self, units: u32, plan: &WindowPlan) -> Option<(Pairs, u64)> {
        let units = u64::from(units) << 32 | u64::from(units);
        let (mut sum, mut over, mut short) = (self.pairs(), 0, 0);
        for (i, pair) in sum.0.iter_mut().enumerate() {
            over |= *pair;
            *pair = pair.wrapping_add(units & plan.places.0[i]);
            over |= *pair;
            // What is taken from the uppermost bit was too much.
            let within = (plan.room.0[i] | UPPERMOST).wrapping_sub(*pair);
            short |= (!within & UPPERMOST) >> (31 - i);
        }
        (over & UPPERMOST == 0).then_some((sum, short))
    }

    /// Keeps these numbers.
    #[inline(always)]
    pub(crate) fn set_numbers(&mut self, pairs: Pairs) {
        self.numbers = pairs.numbers();
    }

    /// The same with other numbers.
    #[inline(always)]
    pub(crate) fn with(&self, pairs: Pairs) -> Self {
        Self { numbers: pairs.numbers(), lower: self.lower, upper: self.upper }
    }

    /// The same with so many units fewer in each place, as far as there are any.
    #[cfg(feature = "redis")]
    pub(crate) fn less(mut self, units: u64) -> Self {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        for number in &mut self.numbers {
            *number = number.saturating_sub(units);
        }
        self
    }

    #[inline(always)]
    pub(crate) fn pairs(&self) -> Pairs {
        Pairs::of(self.numbers)
    }

    /// Keeps both if they fit.
    #[inline]
    pub(crate) const fn set(&mut self, place: usize, time: u64, number: u64) -> Option<()> {
        if time >> 48 | number >> 32 != 0 {
            return None;
        }
        (self.lower[place], self.upper[place]) = (time as u32, (time >> 32) as u16);
        self.numbers[place] = number as u32;
        Some(())
    }
}
