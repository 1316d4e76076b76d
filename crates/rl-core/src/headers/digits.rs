//! A table of the decimal digits of small numbers.

/// The number of values in the table: all numbers of up to four digits.
const COUNT: usize = 10_000;
const DIGITS: usize = 4;

/// The decimal digits of 0 to 9999, four for each number, padded with zeros.
static NUMBERS: &str = {
    static BYTES: [u8; COUNT * DIGITS] = all();
    match std::str::from_utf8(&BYTES) {
        Ok(numbers) => numbers,
        Err(_) => panic!("digits are ASCII"),
    }
};

const fn all() -> [u8; COUNT * DIGITS] {
    let mut numbers = [b'0'; COUNT * DIGITS];
    let mut number = 0;
    while number < COUNT {
        let mut rest = number;
        let mut digit = DIGITS;
        while rest > 0 {
            digit -= 1;
            numbers[number * DIGITS + digit] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        number += 1;
    }
    numbers
}

/// Returns the decimal digits of `number`, or `None` if it has more than four digits.
pub(super) fn digits_of(number: u64) -> Option<&'static str> {
    let count = match number {
        0..=9 => 1,
        10..=99 => 2,
        100..=999 => 3,
        1_000..=9_999 => 4,
        _ => return None,
    };
    let end = (number as usize + 1) * DIGITS;
    NUMBERS.get(end - count..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_contains_the_numbers_of_up_to_four_digits() {
        for number in 0..10_000 {
            assert_eq!(digits_of(number), Some(&*number.to_string()));
        }
        assert_eq!([10_000, 1 << 32, u64::MAX].map(digits_of), [None; 3]);
    }
}
