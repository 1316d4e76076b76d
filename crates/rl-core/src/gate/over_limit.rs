use std::time::Duration;

/// What becomes of a request that is over its limits.
///
/// Two more strategies are settings of their own: your own answer is
/// [`Gate::deny_with`](crate::Gate::deny_with), and a choice for each request is
/// [`Gate::over_limit_by`](crate::Gate::over_limit_by).
///
/// # Examples
///
/// ```
/// use rl_core::gate::OverLimit;
/// use rl_core::{Gate, Limit, RateLimiter};
/// use std::time::Duration;
///
/// # let limiter = RateLimiter::builder().limit(Limit::per_second(10)).build()?;
/// let gate = Gate::new(limiter)
///     .over_limit(OverLimit::Wait { at_most: Duration::from_secs(2), queue: 100 });
/// # Ok::<(), rl_core::limiter::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OverLimit {
    /// It is turned away.
    #[default]
    Reject,
    /// It waits until the limits grant it, behind the requests of its subject that wait already.
    ///
    /// It is turned away if that would take too long, and if the queue is full. A client that gives
    /// up leaves the queue. [`RateLimiter::check_waiting`](crate::RateLimiter::check_waiting) has the
    /// particulars. Tests that let requests wait without real time use a
    /// [`TokioClock`](crate::time::TokioClock).
    Wait {
        /// The longest that a request may wait.
        at_most: Duration,
        /// How many requests of one subject may wait.
        queue: usize,
    },
    /// It goes on without being charged, and is answered with less: by a handler that finds the
    /// [`Decision`](crate::Decision) in the request's extensions to be
    /// [degraded](crate::Decision::is_degraded), or by another service that the adapters' `Degrade`
    /// puts in the handler's place.
    Degrade,
}
