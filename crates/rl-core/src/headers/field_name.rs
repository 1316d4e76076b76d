//! The names of the header fields that a limiter may write.

use std::fmt;

/// The name of a header field that a limiter may write.
///
/// The names are few, and each has a number. An adapter converts [all](Self::ALL) of them once to
/// names of its framework, and finds a converted name by its [index](Self::index), without
/// comparing text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FieldName(u8);

impl FieldName {
    /// The text of each name, in lower case as HTTP/2 requires.
    pub const ALL: [&'static str; 15] = [
        "x-rate-limit-limit",
        "x-rate-limit-remaining",
        "x-rate-limit-reset",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-used",
        "x-ratelimit-reset",
        "x-ratelimit-resource",
        "ratelimit-policy",
        "ratelimit",
        "ratelimit-limit",
        "ratelimit-remaining",
        "ratelimit-reset",
        "x-rate-limit-warning",
        "retry-after",
    ];

    /// Returns the name with this text.
    ///
    /// # Panics
    ///
    /// Panics if [`ALL`](Self::ALL) does not contain the text. In a constant, this is a
    /// compile-time error.
    pub(super) const fn new(text: &str) -> Self {
        let mut index = 0;
        while !is_same(Self::ALL[index], text) {
            index += 1;
        }
        Self(index as u8)
    }

    /// Returns the position of the name in [`ALL`](Self::ALL).
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the text of the name, in lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        Self::ALL[self.index()]
    }
}

impl fmt::Display for FieldName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Compares two texts in a constant, where `==` is not available.
const fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut equal = 0;
    while equal < one.len() && equal < other.len() && one[equal] == other[equal] {
        equal += 1;
    }
    equal == one.len() && equal == other.len()
}
