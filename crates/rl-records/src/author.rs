use crate::effect::Effect;
use crate::error::ChangeError;

/// The person or program that makes a change.
///
/// An author can have two rights: to block and to unblock consumers and the applications of
/// resources.
///
/// A plain name (`"alice"`) converts to an author with both rights.
///
/// # Examples
///
/// ```
/// use rl_core::time::{Clock, SystemClock};
/// use rl_records::{Author, CallLimits, ChangeError, RecordContent, Records};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let records = Records::connect("sqlite::memory:").await?;
/// let now = SystemClock.now();
/// let content = RecordContent::new("abc123", now, now.plus_micros(1_000_000), CallLimits::BLOCKED);
///
/// let alice = Author::new("alice").may_block(false);
/// let refused = records.create(content, alice).await.unwrap_err();
/// assert!(matches!(refused, ChangeError::MayNotBlock));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Author<'a> {
    name: &'a str,
    may_block: bool,
    may_unblock: bool,
}

impl<'a> Author<'a> {
    /// Creates an author of this name, who may block and unblock.
    ///
    /// The name is stored with the change: 1 to 250 bytes without control characters.
    pub const fn new(name: &'a str) -> Self {
        Self { name, may_block: true, may_unblock: true }
    }

    /// Sets whether the author may make a change that blocks. Defaults to `true`.
    ///
    /// A change blocks if there is a time at which a consumer or an application is blocked after
    /// the change, but was not blocked before the change. A limit of 0 also blocks, if no other
    /// record has a larger limit and 0 does not mean *no limit* (`ZeroMeans::Unlimited`).
    pub const fn may_block(mut self, may: bool) -> Self {
        self.may_block = may;
        self
    }

    /// Sets whether the author may make a change that unblocks. Defaults to `true`.
    ///
    /// A change unblocks if there is a time at which a consumer or an application was blocked
    /// before the change, but is not blocked after it.
    pub const fn may_unblock(mut self, may: bool) -> Self {
        self.may_unblock = may;
        self
    }

    pub(crate) const fn name(&self) -> &'a str {
        self.name
    }

    /// Returns whether the author has both rights, so that the effect of a change need not be
    /// computed.
    pub(crate) const fn may_both(&self) -> bool {
        self.may_block && self.may_unblock
    }

    /// Returns an error if the author may not make a change with this effect.
    pub(crate) fn check<T>(&self, effect: Effect) -> Result<(), ChangeError<T>> {
        match effect {
            Effect { blocks: true, .. } if !self.may_block => Err(ChangeError::MayNotBlock),
            Effect { unblocks: true, .. } if !self.may_unblock => Err(ChangeError::MayNotUnblock),
            _ => Ok(()),
        }
    }
}

impl<'a> From<&'a str> for Author<'a> {
    fn from(name: &'a str) -> Self {
        Self::new(name)
    }
}

impl<'a> From<&'a String> for Author<'a> {
    fn from(name: &'a String) -> Self {
        Self::new(name)
    }
}
