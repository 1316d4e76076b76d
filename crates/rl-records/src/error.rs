use std::borrow::Cow;
use std::error::Error;
use std::fmt;

use rl_core::{FailureKind, StoreError};

use crate::record_id::RecordId;

/// The error for a field whose value cannot be stored. It says what was expected instead.
#[derive(Clone, PartialEq, Eq)]
pub struct InvalidField {
    field: &'static str,
    value: String,
    expected: Cow<'static, str>,
}

impl InvalidField {
    pub(crate) fn new(
        field: &'static str,
        value: impl fmt::Display,
        expected: impl Into<Cow<'static, str>>,
    ) -> Self {
        // A long value would make the message unreadable.
        let value = value.to_string().chars().take(80).collect();
        Self { field, value, expected: expected.into() }
    }

    /// Returns the name of the field, as it appears in tables and documents.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        self.field
    }

    /// Returns the first 80 characters of the value. The value may come from a client, so escape it
    /// before display.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Returns a description of what was expected.
    #[must_use]
    pub fn expected(&self) -> &str {
        &self.expected
    }
}

rl_core::debug_as_display!(InvalidField);

impl fmt::Display for InvalidField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}: expected {}", self.field, self.value, self.expected)
    }
}

impl Error for InvalidField {}

/// A failure of the database.
///
/// The text contains the failure, its cause, and the server if it could not be reached. It contains
/// no user name and no password. [`Error::source`] is the failure of the driver. Its type is not
/// part of the API, and its text may contain the user name.
pub struct DatabaseError {
    kind: FailureKind,
    detail: Option<String>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl DatabaseError {
    pub(crate) const fn new(kind: FailureKind) -> Self {
        Self { kind, detail: None, source: None }
    }

    /// Sets a detail for operators. It must not contain a user name, a password or input of
    /// clients.
    pub(crate) fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds the server to the detail, because it could not be reached.
    pub(crate) fn while_connecting_to(self, server: &str) -> Self {
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

    /// Returns the kind of the failure.
    #[must_use]
    pub const fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Returns a short text that may be shown to clients. It does not contain the cause.
    #[must_use]
    pub const fn summary(&self) -> &'static str {
        match self.kind {
            FailureKind::Unavailable => "the database is unavailable",
            FailureKind::TimedOut => "the database did not answer in time",
            FailureKind::Refused => "the database refused the credentials or a permission",
            FailureKind::Corrupt => "the database holds data that this crate did not write",
            FailureKind::Unsupported => {
                "unknown kind of database: expected a URL of sqlite:, postgres:, mysql: or mariadb:"
            }
            _ => "the database rejected the request",
        }
    }
}

rl_core::debug_as_display!(DatabaseError);

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

/// The reason why a change was not made. Unless the database failed, nothing was stored.
///
/// `T` is the type of the object to change, such as [`Record`](crate::Record).
#[non_exhaustive]
pub enum ChangeError<T> {
    /// A field has a value that cannot be stored.
    Invalid(InvalidField),
    /// There is no object with this id or name.
    NotFound,
    /// The object is not as [expected](crate::Expected), because another change came first.
    Conflict {
        /// The current object.
        current: Box<T>,
    },
    /// More than one record matches.
    Several {
        /// The ids of the first ten records that match.
        ids: Vec<RecordId>,
    },
    /// The change would block a consumer or an application, and its author has no right to block.
    MayNotBlock,
    /// The change would unblock a consumer or an application, and its author has no right to
    /// unblock.
    MayNotUnblock,
    /// The database failed. If it failed during the commit, the change may have been made.
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

rl_core::debug_as_display!(ChangeError<T>, T);

impl<T> fmt::Display for ChangeError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => error.fmt(f),
            Self::NotFound => f.write_str("the object to change was not found"),
            Self::Conflict { .. } => {
                f.write_str("another change came first: read the object and try again")
            }
            Self::Several { ids } => {
                write!(f, "{} records match:", ids.len())?;
                ids.iter().try_for_each(|id| write!(f, " {id}"))
            }
            Self::MayNotBlock => f.write_str("the change would block a consumer or an application"),
            Self::MayNotUnblock => {
                f.write_str("the change would unblock a consumer or an application")
            }
            Self::Database(error) => error.fmt(f),
        }
    }
}

impl<T> Error for ChangeError<T> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Database(error) => error.source(),
            _ => None,
        }
    }
}
