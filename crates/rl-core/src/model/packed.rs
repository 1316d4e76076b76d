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

    /// The bits of all of them.
    #[inline(always)]
    const fn all(self) -> u64 {
        self.0[0] | self.0[1] | self.0[2]
    }

    #[inline(always)]
    fn each(pair: impl Fn(usize) -> u64) -> Self {
        Self([pair(0), pair(1), pair(2)])
    }

    #[inline(always)]
    const fn numbers(self) -> Numbers {
        let [a, b, c] = self.0;
        [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32, c as u32, (c >> 32) as u32]
    }
}

/// Numbers to which units were added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sum {
    pub(crate) left: Pairs,
    // The uppermost bit is set of what is above 2^31, before or after.
    too_large: Pairs,
    // … and of what is more than the plan's room.
    beyond: Pairs,
}

impl Sum {
    /// Whether all of them fit, and are within the plan's room.
    #[inline(always)]
    pub(crate) fn is_within(&self) -> bool {
        (self.too_large.all() | self.beyond.all()) & UPPERMOST == 0
    }

    /// The places where it is more than the plan's room; none, if a number does not fit.
    #[inline]
    pub(crate) fn places_beyond(&self) -> Places {
        if self.too_large.all() & UPPERMOST != 0 {
            return Places(0);
        }
        let beyond = self.beyond.0.iter().enumerate();
        Places(beyond.fold(0, |places, (i, pair)| places | (pair & UPPERMOST) >> (31 - i)))
    }
}

/// Some places, a bit for each: the first of a pair stands in the lower half.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places(u64);

impl Iterator for Places {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some((2 * (bit % 32) + bit / 32) % Packed::PLACES)
    }
}

/// The states of several limits, each a number of 32 bits and a time of 48: windows, or what else has
/// two cells.
///
/// Times are in µs from some origin; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// The first `count` begin at `time`, which fits, with these numbers.
    #[inline]
    pub(crate) fn begun(count: usize, time: u64, numbers: Pairs) -> Self {
        let mut packed = Self { numbers: numbers.numbers(), ..Self::NONE };
        for place in 0..count.min(Self::PLACES) {
            (packed.lower[place], packed.upper[place]) = (time as u32, (time >> 32) as u16);
        }
        packed
    }

    #[inline]
    pub(crate) const fn time(&self, place: usize) -> u64 {
        (self.upper[place] as u64) << 32 | self.lower[place] as u64
    }

    #[inline]
    pub(crate) const fn number(&self, place: usize) -> u64 {
        self.numbers[place] as u64
    }

    /// The numbers with `units` added, which are fewer than 2^31.
    #[inline(always)]
    pub(crate) fn plus(&self, units: u32, plan: &WindowPlan) -> Sum {
        let units = u64::from(units) << 32 | u64::from(units);
        let numbers = self.pairs().0;
        let left = Pairs::each(|i| numbers[i].wrapping_add(units & plan.places.0[i]));
        let beyond = Pairs::each(|i| left.0[i].wrapping_add(plan.taken.0[i]));
        let too_large = Pairs::each(|i| numbers[i] | left.0[i]);
        Sum { left, too_large, beyond }
    }

    /// The last place where nothing is left, if its number still counts. Nowhere, if a number is 2^31 or more.
    #[inline(always)]
    pub(crate) fn last_used_up(&self, plan: &WindowPlan) -> Option<usize> {
        let numbers = self.pairs();
        if numbers.all() & UPPERMOST != 0 {
            return None;
        }
        // There is room for one unit less than the most: who is beyond has used up all.
        let beyond = |i: usize| numbers.0[i].wrapping_add(plan.taken.0[i]) & UPPERMOST;
        let last = (0..Self::PLACES / 2).rev().find(|i| beyond(*i) != 0)?;
        Some(2 * last + (beyond(last) >> 63) as usize)
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
