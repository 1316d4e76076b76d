//! How numbers and spans are written, and where: on the stack.

use std::time::Duration;

use arrayvec::ArrayString;

/// Room for the longest value there can be: a list of 16 limits with names of 64 characters, of
/// about 104 bytes each.
const CAPACITY: usize = 2_048;

/// A value that is being written.
pub(super) struct Text {
    written: ArrayString<CAPACITY>,
    largest: u64,
}

impl Text {
    /// Room for a value; numbers are written as they are.
    pub(super) const fn new() -> Self {
        Self { written: ArrayString::new_const(), largest: u64::MAX }
    }

    /// Begins another value, in which no number shows as more than `largest`.
    pub(super) fn restart(&mut self, largest: u64) {
        self.written.clear();
        self.largest = largest;
    }

    pub(super) fn push(&mut self, text: &str) {
        self.written.push_str(text);
    }

    pub(super) fn number(&mut self, number: u64) {
        self.push(itoa::Buffer::new().format(number.min(self.largest)));
    }

    pub(super) fn as_str(&self) -> &str {
        &self.written
    }
}

/// Whole seconds, rounded up: whoever waits that long does not come too early.
pub(super) const fn seconds_ceil(span: Duration) -> u64 {
    span.as_secs().saturating_add((span.subsec_nanos() != 0) as u64)
}
