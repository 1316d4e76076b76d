use std::error::Error;
use std::fmt;

use crate::model::StoreError;

/// The error of a reset.
#[derive(Debug)]
#[non_exhaustive]
pub enum ResetError {
    /// The policy has no limit of this name.
    UnknownLimit(String),
    /// The store, or the source of policies, failed.
    Store(StoreError),
}

impl From<StoreError> for ResetError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl fmt::Display for ResetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownLimit(name) => write!(f, "no limit is called {name:?}"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl Error for ResetError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::UnknownLimit(_) => None,
            Self::Store(error) => error.source(),
        }
    }
}
