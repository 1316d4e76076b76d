//! How numbers and spans are written, and where: on the stack.

use std::time::Duration;

use arrayvec::ArrayString;

use super::{HeaderLine, NAMES, number};

/// Room for the longest value there can be: a list of 16 limits with names of 64 characters, of
/// about 104 bytes each.
const CAPACITY: usize = 2_048;

/// A value that is being written.
pub(super) struct Text {
    written: ArrayString<CAPACITY>,
    // All there is, as long as that is one text that lives for ever.
    known: Option<&'static str>,
    largest: u64,
}

impl Text {
    /// Room for a value; numbers are written as they are.
    pub(super) const fn new() -> Self {
        Self { written: ArrayString::new_const(), known: None, largest: u64::MAX }
    }

    /// Begins another value, in which no number shows as more than `largest`.
    pub(super) fn restart(&mut self, largest: u64) {
        self.written.clear();
        (self.known, self.largest) = (None, largest);
    }

    pub(super) fn push(&mut self, text: &str) {
        if let Some(known) = self.known.take() {
            self.written.push_str(known);
        }
        self.written.push_str(text);
    }

    pub(super) fn number(&mut self, number: u64) {
        let number = number.min(self.largest);
        let is_first = self.known.is_none() && self.written.is_empty();
        match number::known(number) {
            known @ Some(_) if is_first => self.known = known,
            Some(known) => self.push(known),
            None => self.push(itoa::Buffer::new().format(number)),
        }
    }

    pub(super) fn as_str(&self) -> &str {
        self.known.unwrap_or(&self.written)
    }

    /// The line of this value, whose name stands at `place`.
    pub(super) fn line(&self, place: usize, is_list: bool) -> HeaderLine<'_> {
        let (name, value) = (NAMES[place], self.as_str());
        HeaderLine { name, value, is_list, place, known: self.known }
    }
}

/// Whole seconds, rounded up: whoever waits that long does not come too early.
pub(super) const fn seconds_ceil(span: Duration) -> u64 {
    span.as_secs().saturating_add((span.subsec_nanos() != 0) as u64)
}
