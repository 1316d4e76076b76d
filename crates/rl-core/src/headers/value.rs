//! The values of header fields, and the buffer on the stack in which they are written.

use std::fmt;

use arrayvec::ArrayString;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The capacity of a value in bytes. The longest value is that of a field that is not a list: 16
/// limits, each with a name of 129 characters in about 170 bytes.
const CAPACITY: usize = 4_096;

/// The length from which a list continues on another line. Some proxies and clients refuse longer
/// lines.
const FULL: usize = 1_792;

/// The value of a header line: visible ASCII and spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValue<'a> {
    /// A constant text, or a number of up to four digits.
    ///
    /// Most values of rate limit headers are such numbers. An adapter can send them without
    /// allocating memory, because their digits come from a table of 40 kB.
    Static(&'static str),
    /// A value that is valid until the next line is written.
    Written(&'a str),
}

impl<'a> FieldValue<'a> {
    /// Returns the text of the value.
    #[must_use]
    pub const fn as_str(self) -> &'a str {
        match self {
            Self::Static(text) => text,
            Self::Written(text) => text,
        }
    }
}

impl fmt::Display for FieldValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A buffer for the text of a value.
pub(super) struct ValueBuffer {
    text: ArrayString<CAPACITY>,
    largest_number: u64,
}

impl ValueBuffer {
    /// Creates an empty buffer that writes every number unchanged.
    pub(super) const fn new() -> Self {
        Self { text: ArrayString::new_const(), largest_number: u64::MAX }
    }

    /// Begins another value, in which any number above `largest_number` is written as
    /// `largest_number`.
    pub(super) fn restart(&mut self, largest_number: u64) {
        self.text.clear();
        self.largest_number = largest_number;
    }

    /// Removes all text.
    pub(super) fn clear(&mut self) {
        self.text.clear();
    }

    /// Returns whether a list should continue on another line.
    pub(super) fn is_line_full(&self) -> bool {
        self.text.len() >= FULL
    }

    /// Appends bytes in base64.
    pub(super) fn push_base64(&mut self, bytes: &[u8; 16]) {
        let mut text = [0; 24];
        let length = STANDARD.encode_slice(bytes, &mut text).expect("24 digits encode 16 bytes");
        self.push(std::str::from_utf8(&text[..length]).expect("base64 is ASCII"));
    }

    /// Appends text.
    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Appends a number.
    pub(super) fn push_number(&mut self, number: u64) {
        self.push(itoa::Buffer::new().format(number.min(self.largest_number)));
    }

    /// Returns a value that is only a number.
    pub(super) fn number(&mut self, number: u64) -> FieldValue<'_> {
        if let Some(digits) = digits_of(number.min(self.largest_number)) {
            return FieldValue::Static(digits);
        }
        self.push_number(number);
        self.written()
    }

    /// Returns what was written since the last [`restart`](Self::restart).
    pub(super) fn written(&self) -> FieldValue<'_> {
        FieldValue::Written(&self.text)
    }

    /// Returns whether nothing was written since the last [`restart`](Self::restart).
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

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
fn digits_of(number: u64) -> Option<&'static str> {
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
