//! The error of a rule file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::rules::invalid_rules::InvalidRules;

/// The error for a rule file, or a file of keys, that cannot be applied.
///
/// Its text has the path, and the line and column if the error has a place. It names the value as
/// it stands in the file, and says what is accepted. It contains no secret, no key, and no value of
/// a variable.
#[derive(Clone)]
pub struct RulesFileError(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    place: Option<(usize, usize)>,
    reason: FileFailure,
}

#[derive(Debug)]
pub(super) enum FileFailure {
    /// The file cannot be read.
    Read(Arc<io::Error>),
    /// The thread that reads the file cannot be started.
    Thread(io::Error),
    /// The text is not valid, or the file is not stable.
    Text(String),
    /// The rules are not valid together.
    Rules(InvalidRules),
}

impl RulesFileError {
    pub(super) fn new(path: &Path, place: Option<(usize, usize)>, reason: FileFailure) -> Self {
        Self(Arc::new(Inner { path: path.to_owned(), place, reason }))
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns the line of the error, counted from 1, if the error has a place in the file.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        self.0.place.map(|(line, _)| line)
    }

    /// Returns the column of the error, counted from 1 in characters, if the error has a place in
    /// the file.
    #[must_use]
    pub fn column(&self) -> Option<usize> {
        self.0.place.map(|(_, column)| column)
    }
}

debug_as_display!(RulesFileError);

impl fmt::Display for RulesFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.path.display())?;
        if let Some((line, column)) = self.0.place {
            write!(f, ":{line}:{column}")?;
        }
        match &self.0.reason {
            FileFailure::Read(error) => write!(f, ": {error}"),
            FileFailure::Thread(error) => write!(f, ": no thread can be started: {error}"),
            FileFailure::Text(reason) => write!(f, ": {reason}"),
            FileFailure::Rules(error) => write!(f, ": {error}"),
        }
    }
}

impl std::error::Error for RulesFileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.reason {
            FileFailure::Read(error) => Some(&**error),
            FileFailure::Thread(error) => Some(error),
            FileFailure::Rules(error) => Some(error),
            FileFailure::Text(_) => None,
        }
    }
}
