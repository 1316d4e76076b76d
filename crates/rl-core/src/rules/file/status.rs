//! The results of reading a rule file so far.

use super::error::RulesFileError;

/// The results of reading a [`RulesFile`](super::RulesFile) so far.
#[derive(Clone, Debug, Default)]
pub struct RulesFileStatus {
    pub(super) applied: u64,
    pub(super) refused: u64,
    pub(super) error: Option<RulesFileError>,
    pub(super) version: String,
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
    /// content. Instances with the same version have the same file.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }
}
