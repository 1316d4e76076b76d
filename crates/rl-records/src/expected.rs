use crate::{ChangeError, Record, ResourceLimit, Tier, TierMember};

/// The state that a change expects, so that it does not overwrite a state that its author has not seen.
///
/// A revision is the one of [`Record`], [`Tier`], [`TierMember`] or [`ResourceLimit`]. The number 0
/// converts to [`Expected::Nothing`], any other number to that one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Any state. Such a change never conflicts with another.
    Any,
    /// An object at any revision.
    Existing,
    /// No object.
    Nothing,
    /// One of these revisions.
    OneOf(Vec<i64>),
}

impl Expected {
    /// Returns the object, if the state is as expected.
    pub(crate) fn check<T: Revised>(&self, there: Option<T>) -> Result<Option<T>, ChangeError<T>> {
        let is_expected = match (self, &there) {
            (Self::Any, _) | (Self::Existing, Some(_)) | (Self::Nothing, None) => true,
            (Self::OneOf(revisions), Some(there)) => revisions.contains(&there.revision()),
            (Self::Existing | Self::OneOf(_), None) => return Err(ChangeError::NotFound),
            (Self::Nothing, Some(_)) => false,
        };
        match there {
            Some(current) if !is_expected => {
                Err(ChangeError::Conflict { current: Box::new(current) })
            }
            there => Ok(there),
        }
    }

    /// Returns the object, if it exists and is as expected.
    pub(crate) fn check_existing<T: Revised>(&self, there: Option<T>) -> Result<T, ChangeError<T>> {
        self.check(there)?.ok_or(ChangeError::NotFound)
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

/// An object with revisions.
pub(crate) trait Revised {
    fn revision(&self) -> i64;
}

macro_rules! revised {
    ($($what:ty),*) => {
        $(
            impl Revised for $what {
                fn revision(&self) -> i64 {
                    self.revision
                }
            }
        )*
    };
}

revised!(Record, ResourceLimit, Tier, TierMember);
