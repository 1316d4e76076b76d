//! Finds the policy of a subject.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::reply_progress::{Lateness, ReplyProgress};
use super::stores::timed_out;
use crate::maybe_ready::MaybeReady;
use crate::model::{FailureKind, StoreError, Subject};
use crate::policy::Policy;
use crate::source::{PolicyFuture, PolicySource};

/// The policies of a limiter.
pub(super) enum Policies {
    /// The same policy for all subjects.
    One(Policy),
    /// A source that looks policies up.
    Source {
        source: Arc<dyn PolicySource>,
        /// The replies of the source, which distinguish an outage from an overload.
        replies: ReplyProgress,
    },
}

impl Policies {
    /// Uses the policies that `source` returns.
    pub(super) fn from_source(source: impl PolicySource) -> Self {
        Self::Source { source: Arc::new(source), replies: ReplyProgress::default() }
    }

    /// Returns the policy of `subject` if it is available without waiting.
    #[inline]
    pub(super) fn cached(&self, subject: &Subject) -> Option<&Policy> {
        match self {
            Self::One(policy) => Some(policy),
            Self::Source { source, .. } => source.cached(subject),
        }
    }

    /// Looks up the policy of `subject`.
    pub(super) fn find(&self, subject: &Subject) -> PolicyFuture {
        match self {
            Self::One(policy) => MaybeReady::ready(Ok(Some(policy.clone()))),
            Self::Source { source, .. } => source.policy(subject),
        }
    }

    /// Waits for a look-up, at most until the deadline.
    ///
    /// A look-up that is late fails as [`FailureKind::Overloaded`] if the source has answered
    /// others meanwhile.
    pub(super) async fn wait_for(
        &self,
        lookup: PolicyFuture,
        deadline: Duration,
    ) -> Result<Option<Policy>, StoreError> {
        let Self::Source { replies, .. } = self else { return lookup.await };
        let sent = replies.send();
        let found = timeout_at(sent.at + deadline, lookup).await;
        let found = found.unwrap_or_else(|_| Err(timed_out()));
        match &found {
            Ok(_) => replies.answered(sent),
            Err(error) if error.kind() == FailureKind::TimedOut => {
                if replies.judge(sent, deadline, Instant::now()) != Lateness::Outage {
                    return Err(StoreError::new(FailureKind::Overloaded));
                }
            }
            Err(_) => {}
        }
        found
    }
}
