//! Numbers up to four digits as texts that live for ever: most values of headers are such, and need no
//! memory of their own.

/// The numbers that there are.
const COUNT: usize = 10_000;
const DIGITS: usize = 4;

/// All of them, one after the other, with zeros before them.
static NUMBERS: [u8; COUNT * DIGITS] = {
    let mut numbers = [b'0'; COUNT * DIGITS];
    let mut number = 0;
    while number < COUNT {
        let (mut rest, mut place) = (number, DIGITS);
        while rest > 0 {
            place -= 1;
            numbers[number * DIGITS + place] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        number += 1;
    }
    numbers
};

/// All of them as a text.
const TEXT: &str = match std::str::from_utf8(&NUMBERS) {
    Ok(text) => text,
    Err(_) => panic!("digits are text"),
};

/// The text of `number`, if it is one of them.
pub(super) fn known(number: u64) -> Option<&'static str> {
    let length = match number {
        0..10 => 1,
        10..100 => 2,
        100..1_000 => 3,
        1_000..10_000 => 4,
        _ => return None,
    };
    let end = (number as usize + 1) * DIGITS;
    TEXT.get(end - length..end)
}

#[cfg(test)]
mod tests {
    use super::known;

    #[test]
    fn numbers_of_up_to_four_digits_are_known() {
        for number in 0..10_000 {
            assert_eq!(known(number), Some(&*number.to_string()));
        }
        for number in [10_000, u64::MAX] {
            assert_eq!(known(number), None, "{number}");
        }
    }
}
