use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

/// The `rate_limiting_id` of a record: a random UUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(Uuid);

impl RecordId {
    pub(crate) fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordId({self})")
    }
}

impl FromStr for RecordId {
    type Err = InvalidRecordId;

    fn from_str(text: &str) -> Result<Self, InvalidRecordId> {
        Uuid::try_parse(text).map(Self).map_err(|_| InvalidRecordId)
    }
}

/// The error for a text that is not a [`RecordId`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InvalidRecordId;

rl_core::debug_as_display!(InvalidRecordId);

impl fmt::Display for InvalidRecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not the id of a record: expected a UUID")
    }
}

impl std::error::Error for InvalidRecordId {}
