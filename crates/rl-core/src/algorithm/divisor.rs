/// A divisor of at most 2^63, prepared once so that many numbers can be divided by it quickly.
///
/// A division takes as long as a dozen other instructions. This type instead multiplies by the
/// reciprocal of the divisor, rounded up. With `2^(bits - 1) < divisor <= 2^bits`, the quotient of
/// a number below 2^63 is `number × (⌊2^(63 + bits) / divisor⌋ + 1) / 2^(63 + bits)`, rounded down
/// (Granlund and Montgomery, *Division by invariant integers using multiplication*, 1994).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Divisor {
    divisor: u64,
    reciprocal: u64,
    bits: u32,
}

impl Divisor {
    /// Creates a divisor. A divisor of 0 becomes 1.
    pub(super) const fn new(divisor: u64) -> Self {
        let divisor = if divisor == 0 { 1 } else { divisor };
        let bits = u64::BITS - (divisor - 1).leading_zeros();
        let reciprocal = (1_u128 << (63 + bits)) / divisor as u128 + 1;
        Self { divisor, reciprocal: reciprocal as u64, bits }
    }

    /// Returns the divisor.
    pub(super) const fn get(self) -> u64 {
        self.divisor
    }

    /// Returns ⌊number / divisor⌋.
    pub(super) const fn quotient(self, number: u64) -> u64 {
        if number >> 63 != 0 {
            return number / self.divisor;
        }
        ((number as u128 * self.reciprocal as u128) >> 63) as u64 >> self.bits
    }

    /// Returns ⌈number / divisor⌉.
    pub(super) const fn quotient_up(self, number: u64) -> u64 {
        let quotient = self.quotient(number);
        quotient + (quotient * self.divisor < number) as u64
    }

    /// Returns the remainder of `number`.
    pub(super) const fn remainder(self, number: u64) -> u64 {
        number - self.quotient(number) * self.divisor
    }

    /// Returns ⌊one × other / divisor⌋, or `u64::MAX` if that is larger.
    pub(super) fn of_product(self, one: u64, other: u64) -> u64 {
        match one.checked_mul(other) {
            Some(product) => self.quotient(product),
            None => {
                let quotient = u128::from(one) * u128::from(other) / u128::from(self.divisor);
                u64::try_from(quotient).unwrap_or(u64::MAX)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_quotient_is_that_of_the_division(
            number: u64, shift in 0..64_u32, divisor in 1..=1_u64 << 63, smaller in 0..64_u32, near in -2..3_i64,
        ) {
            let divisor = (divisor >> smaller).max(1);
            let multiple = (number >> shift) / divisor * divisor;
            for number in [number >> shift, multiple.wrapping_add_signed(near)] {
                let by = Divisor::new(divisor);
                prop_assert_eq!(by.quotient(number), number / divisor);
                prop_assert_eq!(by.quotient_up(number), number.div_ceil(divisor));
                prop_assert_eq!(by.remainder(number), number % divisor);
            }
        }
    }

    #[test]
    fn every_power_of_two_and_its_neighbours_divide_exactly() {
        for bits in 0..63 {
            let power = 1_u64 << bits;
            for divisor in [power - 1, power, power + 1].into_iter().filter(|divisor| *divisor > 0)
            {
                let by = Divisor::new(divisor);
                for number in [0, 1, divisor - 1, divisor, (1 << 63) - 1, 1 << 63, u64::MAX] {
                    assert_eq!(by.quotient(number), number / divisor, "{number} / {divisor}");
                }
            }
        }
    }
}
