use rl_core::time::Timestamp;

use crate::error::ChangeError;

/// A stored object: its content, its authors and its revision.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Revisioned<T> {
    /// The content that administrators write.
    pub content: T,
    /// The name of the author who created the object.
    pub created_by: String,
    /// The name of the author of the last change.
    pub updated_by: String,
    /// The time at which the object was created.
    pub created_at: Timestamp,
    /// The time of the last change.
    pub updated_at: Timestamp,
    /// The number of the change that wrote this content. A change can [expect](Expected) this
    /// number.
    pub revision: i64,
}

impl<T> Revisioned<T> {
    /// Creates the first revision of an object.
    pub(crate) fn new(content: T, by: &str, at: Timestamp, revision: i64) -> Self {
        Self {
            content,
            created_by: by.to_owned(),
            updated_by: by.to_owned(),
            created_at: at,
            updated_at: at,
            revision,
        }
    }

    /// Returns the next revision of this object.
    pub(crate) fn with_content(&self, content: T, by: &str, at: Timestamp, revision: i64) -> Self {
        Self {
            content,
            created_by: self.created_by.clone(),
            updated_by: by.to_owned(),
            created_at: self.created_at,
            updated_at: at,
            revision,
        }
    }
}

/// An object with revisions: [`Record`](crate::Record), [`Tier`](crate::Tier),
/// [`TierMember`](crate::TierMember) or [`ResourceLimit`](crate::ResourceLimit).
pub trait Revised {
    /// Returns the revision.
    fn revision(&self) -> i64;

    /// Returns the name of the author of the last change.
    fn updated_by(&self) -> &str;
}

impl<T> Revised for Revisioned<T> {
    fn revision(&self) -> i64 {
        self.revision
    }

    fn updated_by(&self) -> &str {
        &self.updated_by
    }
}

/// The state of the object that a change expects. It prevents an author from overwriting a state
/// that the author has not seen.
///
/// The number 0 converts to [`Expected::Nothing`], and any other number to that revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Any state. Such a change never has a conflict.
    Any,
    /// An object with any revision.
    Existing,
    /// No object.
    Nothing,
    /// An object with one of these revisions.
    OneOf(Vec<i64>),
}

impl Expected {
    /// Returns the current object, or an error if the state is not as expected.
    pub(crate) fn check<T: Revised>(
        &self,
        current: Option<T>,
    ) -> Result<Option<T>, ChangeError<T>> {
        let is_expected = match (self, &current) {
            (Self::Any, _) | (Self::Existing, Some(_)) | (Self::Nothing, None) => true,
            (Self::OneOf(revisions), Some(current)) => revisions.contains(&current.revision()),
            (Self::Existing | Self::OneOf(_), None) => return Err(ChangeError::NotFound),
            (Self::Nothing, Some(_)) => false,
        };
        match current {
            Some(current) if !is_expected => {
                Err(ChangeError::Conflict { current: Box::new(current) })
            }
            current => Ok(current),
        }
    }

    /// Returns the current object, or an error if it does not exist or is not as expected.
    pub(crate) fn check_existing<T: Revised>(
        &self,
        current: Option<T>,
    ) -> Result<T, ChangeError<T>> {
        self.check(current)?.ok_or(ChangeError::NotFound)
    }
}

impl From<i64> for Expected {
    fn from(revision: i64) -> Self {
        match revision {
            0 => Self::Nothing,
            revision => Self::OneOf(vec![revision]),
        }
    }
}
