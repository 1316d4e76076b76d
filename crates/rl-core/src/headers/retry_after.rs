//! The `Retry-After` of a denial, as a number of seconds.
//!
//! The other form that HTTP knows, a date, would be wrong wherever the client's clock is.

use super::names::place;
use super::text::seconds_ceil;
use crate::decision::{Decision, RetryAfter};

/// Where its name stands.
pub(super) const NAME: usize = place("retry-after");

/// Whole seconds to wait, rounded up and at least 1; nothing when the request goes on, and when no
/// wait helps.
pub(super) fn seconds(decision: &Decision) -> Option<u64> {
    if decision.is_forwarded() {
        return None;
    }
    match decision.retry_after() {
        RetryAfter::In(wait) => Some(seconds_ceil(wait).max(1)),
        RetryAfter::Now => Some(1),
        RetryAfter::Never => None,
    }
}
