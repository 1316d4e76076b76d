//! Limits, parts and limiters in shadow, which deny nothing.

use super::{Decision, LimitStatus, Origin, Verdict};
use crate::policy::Policy;

impl Decision {
    /// Allows the request if the store decided. Used for a limiter in shadow.
    pub(crate) fn apply_shadow(&mut self) {
        if self.origin.is_of_store() {
            self.origin = Origin::Shadow;
            self.verdict = Verdict::Allowed;
        }
    }

    /// Returns whether the limiter or one of the limits is in shadow.
    pub(crate) fn has_shadow(&self) -> bool {
        self.origin == Origin::Shadow
            || self.statuses.policy().is_some_and(Policy::has_shadow)
            || self.decided_parts().is_some_and(|parts| parts.has_shadow)
    }

    /// Returns the limits that would have denied the request if they were not in shadow.
    pub fn over_in_shadow(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        self.parts().flat_map(|part| part.over_in_shadow())
    }

    /// Returns whether the request would have been denied if the limiter were not in shadow.
    pub(crate) fn is_denied_in_shadow(&self) -> bool {
        self.origin == Origin::Shadow
            && self
                .parts()
                .filter(|part| !part.is_shadow())
                .flat_map(|part| part.limits())
                .any(|limit| limit.is_over() && !limit.limit().is_shadow())
    }
}
