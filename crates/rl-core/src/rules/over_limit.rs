use std::time::Duration;

/// How requests without a key are handled.
///
/// Requests with an [ambiguous](crate::key::AmbiguousKey) key are always rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissingKey {
    /// Rejects the request with 403. If the key is the client's address, and the server does not
    /// know it, rejects the request with 500.
    #[default]
    Reject,
    /// Allows the request without counting it.
    Allow,
    /// Counts all such requests together, as one subject in the realm `unknown`.
    Share,
}

/// How requests over their limits are handled.
///
/// The `deny_with` setting of the adapters replaces the response to a rejected request. The
/// `on_over_limit_by` setting chooses a variant for each request.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use rl_core::adapter::HttpLimiter;
/// use rl_core::{Limit, OverLimit, RateLimiter};
///
/// let limiter = RateLimiter::builder().limit(Limit::per_second(10)).build()?;
/// let limiter = HttpLimiter::new(limiter)
///     .on_over_limit(OverLimit::Wait { at_most: Duration::from_secs(2), queue: 100 });
/// # Ok::<(), rl_core::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OverLimit {
    /// Rejects the request.
    #[default]
    Reject,
    /// Lets the request wait, behind earlier requests of its subject, until the limits allow it.
    ///
    /// Requests of the subject that another setting handles take units without waiting behind the
    /// queue. The request is rejected if the wait would be too long or the queue is full. If its
    /// client disconnects, the request leaves the queue.
    /// [`LimiterRequest::wait`](crate::LimiterRequest::wait) has the details. In tests, a
    /// [`TokioClock`](crate::time::TokioClock) makes the waits take no real time.
    Wait {
        /// The longest time that a request may wait.
        at_most: Duration,
        /// The maximum number of waiting requests of one subject.
        queue: usize,
    },
    /// Passes the request on without charging it, so that it gets a reduced response.
    ///
    /// A handler can check whether the [`Decision`](crate::Decision) in the request's extensions
    /// [is degraded](crate::Decision::is_degraded). Alternatively, `Degrade` of the adapters calls
    /// another service in place of the handler.
    Degrade,
}

impl OverLimit {
    /// Returns the setting that applies if two rules deny. Rejecting takes precedence over waiting,
    /// and waiting over degrading. If both wait, the shorter wait and the shorter queue apply.
    pub(super) fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::Reject, _) | (_, Self::Reject) => Self::Reject,
            (
                Self::Wait { at_most, queue },
                Self::Wait { at_most: other_wait, queue: other_queue },
            ) => Self::Wait { at_most: at_most.min(other_wait), queue: queue.min(other_queue) },
            (wait @ Self::Wait { .. }, _) | (_, wait @ Self::Wait { .. }) => wait,
            (Self::Degrade, Self::Degrade) => Self::Degrade,
        }
    }
}
