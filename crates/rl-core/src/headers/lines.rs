//! The header lines of a response, and the buffer for their values.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use smallvec::SmallVec;

use super::field_name::FieldName;

/// The length from which a list continues on another line. Some proxies and clients refuse longer
/// lines.
const FULL: usize = 1_792;

/// A header line to add to a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderLine {
    /// The name.
    pub name: FieldName,
    /// The value: visible ASCII and spaces.
    pub value: Bytes,
    /// Whether the field is a list. If limiters are nested, each adds a line to a list. Any other
    /// field has only one line, from the stricter limiter.
    pub is_list: bool,
}

impl fmt::Display for HeaderLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, String::from_utf8_lossy(&self.value))
    }
}

/// The header lines of a response.
///
/// Their values share one allocation. If all values are numbers of up to four digits, as most are,
/// there is none.
#[derive(Clone, Debug)]
#[must_use]
pub struct HeaderLines {
    lines: SmallVec<[PlacedLine; 4]>,
    /// The values that are texts, one after the other.
    text: Bytes,
    /// Whether only the lines of lists are left.
    has_only_lists: bool,
}

/// A line of eight bytes. Every request moves its lines several times.
#[derive(Clone, Copy, Debug)]
struct PlacedLine {
    name: FieldName,
    kind: LineKind,
    /// The number, or the end of the value in the text of all lines.
    value: u32,
}

#[derive(Clone, Copy, Debug)]
enum LineKind {
    /// A number whose digits are in a table.
    SmallNumber,
    Text,
    ListText,
}

impl HeaderLines {
    /// Returns the lines.
    pub fn iter(&self) -> impl Iterator<Item = HeaderLine> {
        let (mut lines, mut end) = (self.lines.iter(), 0);
        std::iter::from_fn(move || {
            loop {
                let line = lines.next()?;
                let (value, is_list) = match line.kind {
                    LineKind::SmallNumber => {
                        (Bytes::from_static(digits_of(line.value as u16).as_bytes()), false)
                    }
                    LineKind::Text | LineKind::ListText => {
                        let start = std::mem::replace(&mut end, line.value as usize);
                        (self.text.slice(start..end), matches!(line.kind, LineKind::ListText))
                    }
                };
                if is_list || !self.has_only_lists {
                    return Some(HeaderLine { name: line.name, value, is_list });
                }
            }
        })
    }

    /// Removes the lines that are not lines of lists.
    pub(crate) const fn retain_lists(&mut self) {
        self.has_only_lists = true;
    }
}

/// Writes the lines of a response.
pub(super) struct LineWriter {
    lines: SmallVec<[PlacedLine; 4]>,
    // The capacity is enough for the lines of most responses. With 128 bytes, the compiler would
    // move the text with calls of `memcpy`.
    text: SmallVec<[u8; 96]>,
    // Where the value of the next line begins in `text`.
    start: usize,
    largest_number: u64,
}

impl LineWriter {
    pub(super) fn new() -> Self {
        Self { lines: SmallVec::new(), text: SmallVec::new(), start: 0, largest_number: u64::MAX }
    }

    /// Returns the lines.
    #[inline]
    pub(super) fn finish(self) -> HeaderLines {
        let text = if self.text.is_empty() { Bytes::new() } else { Bytes::from_owner(self.text) };
        HeaderLines { lines: self.lines, text, has_only_lists: false }
    }

    /// Sets the largest number. From now on, any number above it is written as this number.
    pub(super) const fn set_largest_number(&mut self, largest_number: u64) {
        self.largest_number = largest_number;
    }

    /// Adds a line that contains only a number.
    pub(super) fn add_number(&mut self, name: FieldName, number: u64) {
        if number < SMALL.into() {
            let value = number as u32;
            self.lines.push(PlacedLine { name, kind: LineKind::SmallNumber, value });
        } else {
            self.push_number(number);
            self.end_line(name, false);
        }
    }

    /// Adds a line that contains only `text`.
    pub(super) fn add_text(&mut self, name: FieldName, text: &str) {
        self.push(text);
        self.end_line(name, false);
    }

    /// Adds a line with the text that was appended since the end of the previous line.
    pub(super) fn end_line(&mut self, name: FieldName, is_list: bool) {
        self.start = self.text.len();
        let kind = if is_list { LineKind::ListText } else { LineKind::Text };
        self.lines.push(PlacedLine { name, kind, value: self.start as u32 });
    }

    /// Begins an item of the list `name`. Each line of the list begins with `first`.
    pub(super) fn begin_item(&mut self, name: FieldName, first: &str) {
        if self.text.len() - self.start >= FULL {
            self.end_line(name, true);
        }
        self.push(if self.text.len() == self.start { first } else { ", " });
    }

    /// Adds the last line of the list `name`, if the list has an item.
    pub(super) fn end_list(&mut self, name: FieldName) {
        if self.text.len() > self.start {
            self.end_line(name, true);
        }
    }

    /// Appends text.
    pub(super) fn push(&mut self, text: &str) {
        self.text.extend_from_slice(text.as_bytes());
    }

    /// Appends a number.
    pub(super) fn push_number(&mut self, number: u64) {
        self.push(itoa::Buffer::new().format(number.min(self.largest_number)));
    }

    /// Appends bytes in base64.
    pub(super) fn push_base64(&mut self, bytes: &[u8; 16]) {
        let mut text = [0; 24];
        STANDARD.encode_slice(bytes, &mut text).expect("24 digits encode 16 bytes");
        self.text.extend_from_slice(&text);
    }
}

/// The number of values in the table: all numbers of up to four digits.
const SMALL: u16 = 10_000;
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
fn digits_of(number: u16) -> &'static str {
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
