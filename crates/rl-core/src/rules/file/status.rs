//! The results of reading a rule file so far.

use super::error::RulesFileError;
use crate::time::Timestamp;

/// The results of reading a [`RulesFile`](super::RulesFile) so far.
#[derive(Clone, Debug, Default)]
pub struct RulesFileStatus {
    pub(super) applied: u64,
    pub(super) refused: u64,
    pub(super) error: Option<RulesFileError>,
    pub(super) version: String,
    pub(super) warnings: Vec<String>,
    pub(super) hanging_since: Option<Timestamp>,
}

impl RulesFileStatus {
    /// Returns how often the file was applied, at least once.
    #[must_use]
    pub const fn applied(&self) -> u64 {
        self.applied
    }

    /// Returns how often the file was refused because it was not valid or could not be read.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the error of the last reading; `None` if the rules in the file apply.
    #[must_use]
    pub const fn error(&self) -> Option<&RulesFileError> {
        self.error.as_ref()
    }

    /// Returns the version of the rules that apply: sixteen hexadecimal digits of a hash of the
    /// content, with that of the file of keys. Instances with the same version have the same files.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the warnings about the rules that apply. Each is about a value that is valid, but
    /// probably not intended, such as a rule that gives keys that clients invent counters of their
    /// own. The log has the same lines.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the time at which the present reading began, if it takes longer than the pause
    /// between two readings, because the file system hangs. The last valid rules continue to apply.
    #[must_use]
    pub const fn hanging_since(&self) -> Option<Timestamp> {
        self.hanging_since
    }
}
