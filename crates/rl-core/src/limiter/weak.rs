use std::fmt;
use std::sync::Weak;

use super::RateLimiter;
use super::pipeline::Pipeline;

/// A handle that does not keep its limiter alive, for tasks that watch a limiter.
///
/// [`RateLimiter::downgrade`] creates it.
#[derive(Clone)]
pub struct WeakRateLimiter(pub(super) Weak<Pipeline>);

impl WeakRateLimiter {
    /// Returns the limiter, or `None` after its last handle was dropped.
    #[must_use]
    pub fn upgrade(&self) -> Option<RateLimiter> {
        self.0.upgrade().map(|pipeline| RateLimiter { pipeline })
    }
}

impl fmt::Debug for WeakRateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakRateLimiter")
    }
}
