//! Denied requests that are forwarded to get a reduced response.

use crate::decision::Decision;
use crate::limiter::{RateLimiter, UncountedKind};

/// Changes a denial by limits into a degraded request, and counts it as degraded. Returns any other
/// decision unchanged, and also a denial that no wait would end.
pub(super) fn degraded(limiter: &RateLimiter, decision: Decision) -> Decision {
    let was_allowed = decision.is_allowed();
    let decision = decision.degraded_if_denied();
    if !was_allowed && decision.is_forwarded() {
        limiter.count_uncounted(UncountedKind::Degraded);
    }
    decision
}
