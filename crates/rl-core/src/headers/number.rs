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

/// `text`, if it is the shortest text of such a number.
pub(super) fn known(text: &str) -> Option<&'static str> {
    let is_shortest = text.len() == 1 || !text.starts_with('0');
    if !(1..=DIGITS).contains(&text.len()) || !is_shortest {
        return None;
    }
    let digit = |byte: u8| byte.is_ascii_digit().then(|| usize::from(byte - b'0'));
    let number = text.bytes().try_fold(0, |number, byte| Some(number * 10 + digit(byte)?))?;
    let end = (number + 1) * DIGITS;
    std::str::from_utf8(NUMBERS.get(end - text.len()..end)?).ok()
}

#[cfg(test)]
mod tests {
    use super::known;

    #[test]
    fn numbers_of_up_to_four_digits_are_known() {
        for number in 0..10_000 {
            let text = number.to_string();
            assert_eq!(known(&text), Some(&*text));
        }
        for text in ["", "00", "01", "10000", "-1", "+1", " 1", "1 ", "a", "1a", "ü", "9,1"] {
            assert_eq!(known(text), None, "{text:?}");
        }
    }
}
