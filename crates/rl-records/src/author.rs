use crate::ChangeError;

/// The person or program that makes a change, and whether it may block or unblock consumers by it.
///
/// A name alone (`"alice"`) converts to an author who may do both.
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

    /// Sets whether the author may make a change after which a consumer is blocked at a time at which
    /// it was not: by a block, or by limits of 0 that nothing else exceeds. Defaults to `true`.
    pub const fn may_block(mut self, may: bool) -> Self {
        self.may_block = may;
        self
    }

    /// Sets whether the author may make a change after which a consumer is no longer blocked at a
    /// time at which it was. Defaults to `true`.
    pub const fn may_unblock(mut self, may: bool) -> Self {
        self.may_unblock = may;
        self
    }

    pub(crate) const fn name(&self) -> &'a str {
        self.name
    }

    /// Returns whether the author may do both, so that no effect needs to be computed.
    pub(crate) const fn may_both(&self) -> bool {
        self.may_block && self.may_unblock
    }

    /// Returns an error if the author may not cause this effect.
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

/// The effect of a change on a consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    /// At some time the consumer is blocked, and was not before the change.
    pub(crate) blocks: bool,
    /// At some time the consumer is not blocked, and was before the change.
    pub(crate) unblocks: bool,
}

impl Effect {
    /// Returns the effect at one time.
    pub(crate) const fn of(was_blocked: bool, is_blocked: bool) -> Self {
        Self { blocks: !was_blocked && is_blocked, unblocks: was_blocked && !is_blocked }
    }

    /// Combines the effects at two times.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self { blocks: self.blocks || other.blocks, unblocks: self.unblocks || other.unblocks }
    }
}
