//! A table of the decimal digits of small numbers.

/// The number of values in the table: all numbers of up to four digits.
pub(super) const SMALL: u16 = 10_000;
const DIGITS: usize = 4;

/// The decimal digits of 0 to 9999, four for each number, padded with zeros.
static NUMBERS: &str = {
    static BYTES: [u8; SMALL as usize * DIGITS] = all();
    match std::str::from_utf8(&BYTES) {
        Ok(numbers) => numbers,
        Err(_) => panic!("digits are ASCII"),
    }
};

const fn all() -> [u8; SMALL as usize * DIGITS] {
    let mut numbers = [b'0'; SMALL as usize * DIGITS];
    let mut number = 0;
    while number < SMALL as usize {
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

/// Returns the decimal digits of `number`, which is less than [`SMALL`].
pub(super) fn digits_of(number: u16) -> &'static str {
    let count = match number {
        0..=9 => 1,
        10..=99 => 2,
        100..=999 => 3,
        _ => 4,
    };
    let end = (usize::from(number) + 1) * DIGITS;
    &NUMBERS[end - count..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_contains_the_numbers_of_up_to_four_digits() {
        for number in 0..SMALL {
            assert_eq!(digits_of(number), number.to_string());
        }
    }
}
