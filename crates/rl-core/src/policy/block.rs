use super::Policy;
use crate::model::Outcome;
use crate::time::Timestamp;

/// A block of a [`Policy`]: every request is denied until it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub(super) until: Option<Timestamp>,
    // The limits of the policy with a max of 0, which a denial reports.
    pub(super) limits: Policy,
}

impl Block {
    /// Returns the first instant at which the block no longer holds; `None` if it never ends.
    #[must_use]
    pub const fn until(&self) -> Option<Timestamp> {
        self.until
    }

    /// Returns whether the block holds at `now`.
    #[must_use]
    pub fn holds_at(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Returns the outcome at `now` of each limit for a blocked request.
    pub(crate) const fn outcome(&self, now: Timestamp) -> Outcome {
        match self.until {
            Some(until) => {
                let wait = until.micros_since(now);
                Outcome::denied(0, wait, wait)
            }
            None => Outcome::never(0, 0),
        }
    }

    /// Returns the limits that deny a blocked request.
    pub(crate) const fn limits(&self) -> &Policy {
        &self.limits
    }
}
