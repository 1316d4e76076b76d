//! Writes header values on the stack.

use std::time::Duration;

use arrayvec::ArrayString;

/// The capacity of a value. The longest value is a list of 16 limits whose names have 64
/// characters; each takes about 104 bytes.
const CAPACITY: usize = 2_048;

/// A header value that is being written.
pub(super) struct Value {
    text: ArrayString<CAPACITY>,
    largest_number: u64,
}

impl Value {
    /// Creates an empty value that writes every number unchanged.
    pub(super) const fn new() -> Self {
        Self { text: ArrayString::new_const(), largest_number: u64::MAX }
    }

    /// Begins another value, in which any number above `largest_number` is written as
    /// `largest_number`.
    pub(super) fn restart(&mut self, largest_number: u64) {
        self.text.clear();
        self.largest_number = largest_number;
    }

    /// Appends text.
    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Appends a number.
    pub(super) fn push_number(&mut self, number: u64) {
        self.push(itoa::Buffer::new().format(number.min(self.largest_number)));
    }

    /// Returns what was written since the last [`restart`](Self::restart).
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }
}

/// Returns a duration in whole seconds, rounded up, so that a client that waits for it is not too
/// early.
pub(super) const fn seconds_ceil(span: Duration) -> u64 {
    span.as_secs().saturating_add((span.subsec_nanos() != 0) as u64)
}
