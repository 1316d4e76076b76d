use std::error::Error;
use std::fmt;

use rl_core::FailureKind;
use rl_core::StoreError;

use crate::RecordId;

/// A value that cannot be stored: which field, what was given, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidField {
    field: &'static str,
    value: String,
    expected: &'static str,
}

impl InvalidField {
    pub(crate) fn new(
        field: &'static str,
        value: impl fmt::Display,
        expected: &'static str,
    ) -> Self {
        // Long values would drown the sentence.
        let value = value.to_string().chars().take(80).collect();
        Self { field, value, expected }
    }

    /// The field, as tables and documents call it.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        self.field
    }

    /// What was given, or its first 80 characters. It came from a client: escape it where it is shown.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// What was expected, in words.
    #[must_use]
    pub const fn expected(&self) -> &'static str {
        self.expected
    }
}

impl fmt::Display for InvalidField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}: expected {}", self.field, self.value, self.expected)
    }
}

impl Error for InvalidField {}

/// The database could not answer.
///
/// The text names the failure, its cause, and a server that was not reached. It holds no user and no
/// password. [`Error::source`] is the failure beneath; its type is not part of the API, and its text may name
/// the user.
#[derive(Debug)]
pub struct DatabaseError {
    kind: FailureKind,
    detail: Option<String>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl DatabaseError {
    pub(crate) const fn new(kind: FailureKind) -> Self {
        Self { kind, detail: None, source: None }
    }

    /// Sets a detail for operators: no user, no password, nothing that a client sent.
    pub(crate) fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds the server that could not be reached to the detail.
    pub(crate) fn at_connecting_to(self, server: &str) -> Self {
        let detail = match &self.detail {
            Some(detail) => format!("could not connect to {server}: {detail}"),
            None => format!("could not connect to {server}"),
        };
        self.with_detail(detail)
    }

    pub(crate) fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Why there is no answer, in the words that stores use.
    #[must_use]
    pub const fn kind(&self) -> FailureKind {
        self.kind
    }
}

impl DatabaseError {
    /// Returns the failure without its cause, as clients may see it.
    #[must_use]
    pub const fn summary(&self) -> &'static str {
        match self.kind {
            FailureKind::Unavailable => "the database is unavailable",
            FailureKind::TimedOut => "the database did not answer in time",
            FailureKind::Refused => "the database refused the credentials or a permission",
            FailureKind::Corrupt => "the database holds what was not written by this crate",
            FailureKind::Unsupported => {
                "no database that is known: expected a URL of sqlite: or postgres:"
            }
            _ => "the database rejected the request",
        }
    }
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.summary())?;
        match &self.detail {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

impl Error for DatabaseError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<DatabaseError> for StoreError {
    fn from(error: DatabaseError) -> Self {
        Self::new(error.kind).with_detail("the database of records").with_source(error)
    }
}

/// Why a change was not made. Nothing was stored.
///
/// `T` is what was to be changed: a [`Record`](crate::Record) or a
/// [`ResourceLimit`](crate::ResourceLimit).
#[derive(Debug)]
#[non_exhaustive]
pub enum ChangeError<T> {
    /// A value that cannot be stored.
    Invalid(InvalidField),
    /// There is none of this id or name.
    NotFound,
    /// Somebody else changed it meanwhile.
    Conflict {
        /// As it is.
        current: Box<T>,
    },
    /// There are several that could be meant.
    Several {
        /// Their ids, ten at most.
        ids: Vec<RecordId>,
    },
    /// The change would block a consumer, which its author may not do.
    MayNotBlock,
    /// The change would unblock a consumer, which its author may not do.
    MayNotUnblock,
    /// The database could not answer. If that was while the change was committed, it may have been
    /// made.
    Database(DatabaseError),
}

impl<T> From<InvalidField> for ChangeError<T> {
    fn from(error: InvalidField) -> Self {
        Self::Invalid(error)
    }
}

impl<T> From<DatabaseError> for ChangeError<T> {
    fn from(error: DatabaseError) -> Self {
        Self::Database(error)
    }
}

impl<T> fmt::Display for ChangeError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => error.fmt(f),
            Self::NotFound => f.write_str("there is no such limit"),
            Self::Conflict { .. } => {
                f.write_str("somebody else changed it meanwhile: look at it and try again")
            }
            Self::Several { ids } => {
                write!(f, "{} limits match:", ids.len())?;
                ids.iter().try_for_each(|id| write!(f, " {id}"))
            }
            Self::MayNotBlock => f.write_str("the change would block a consumer"),
            Self::MayNotUnblock => f.write_str("the change would unblock a consumer"),
            Self::Database(error) => error.fmt(f),
        }
    }
}

impl<T: fmt::Debug> Error for ChangeError<T> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Database(error) => error.source(),
            _ => None,
        }
    }
}
