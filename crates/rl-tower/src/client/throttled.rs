use std::error::Error;
use std::fmt;
use std::time::Duration;

use http::Request;
use rl_core::{Decision, RetryAfter};

/// The error of a call: [`Throttled`], or that of the client.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The error of a call that was not sent. Find it with `error.downcast_ref::<Throttled>()`.
///
/// With the feature `tonic`, a gRPC call gets a `tonic::Status` with the code `ResourceExhausted`,
/// or `Unavailable` if the limiter could not decide. Its source is this error.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Throttled {
    /// The limits, or a pause, let the call pass later than it may wait, or too many calls wait.
    TooLong {
        /// The time after which the limits would have allowed the call. If other calls wait, it
        /// would have taken longer.
        wait: Duration,
        /// The longest time that a call may wait.
        at_most: Duration,
    },
    /// The limits never allow the call: a limit is 0, or the cost is above a limit.
    Never,
    /// The limiter could not decide, because its store failed.
    Undecided,
    /// The destination rejects most calls, and [`adaptive`](super::ThrottleLayer::adaptive) is set.
    Adaptive,
}

impl Throttled {
    /// Creates the error of a call that `decision` denies.
    pub(super) fn new(decision: &Decision, at_most: Duration) -> Self {
        match decision.retry_after() {
            _ if decision.origin().is_failure() => Self::Undecided,
            RetryAfter::Never => Self::Never,
            RetryAfter::In(wait) => Self::TooLong { wait, at_most },
            RetryAfter::Now => Self::TooLong { wait: Duration::ZERO, at_most },
        }
    }

    /// Returns the error as the client of `request` reads it.
    #[cfg_attr(not(feature = "tonic"), expect(unused_variables, reason = "for gRPC alone"))]
    pub(super) fn into_error<B>(self, request: &Request<B>) -> BoxError {
        #[cfg(feature = "tonic")]
        if let Some(content_type) = request.headers().get(http::header::CONTENT_TYPE)
            && rl_core::denial::Protocol::from_content_type(content_type.as_bytes())
                == rl_core::denial::Protocol::Grpc
        {
            let mut status = match self {
                Self::Undecided => tonic::Status::unavailable(self.to_string()),
                Self::TooLong { .. } | Self::Never | Self::Adaptive => {
                    tonic::Status::resource_exhausted(self.to_string())
                }
            };
            status.set_source(std::sync::Arc::new(self));
            return status.into();
        }
        self.into()
    }
}

rl_core::debug_as_display!(Throttled);

impl fmt::Display for Throttled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { wait, at_most } => write!(
                f,
                "call not sent: the limit of its destination allows it in {wait:?} at the \
                 earliest, and it may wait for {at_most:?}"
            ),
            Self::Never => {
                f.write_str("call not sent: the limit of its destination never allows it")
            }
            Self::Undecided => f.write_str("call not sent: the store of the limiter cannot decide"),
            Self::Adaptive => f.write_str("call not sent: its destination rejects most calls"),
        }
    }
}

impl Error for Throttled {}
