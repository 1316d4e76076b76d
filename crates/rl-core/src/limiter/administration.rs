//! Operations of administrators, which read or reset counters. The failure policy does not apply to
//! them.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tokio::time::timeout;

use super::pipeline::Pipeline;
use super::stores::timed_out;
use crate::maybe_ready::MaybeReady;
use crate::model::{StoreError, Subject};
use crate::policy::Policy;

/// Looks up the policy of `subject`, then runs `operation` with it.
pub(super) fn with_policy<T, E>(
    pipeline: &Arc<Pipeline>,
    subject: &Subject,
    operation: impl FnOnce(&Pipeline, &Subject, Option<&Policy>) -> MaybeReady<Result<T, E>>
    + Send
    + 'static,
) -> MaybeReady<Result<T, E>>
where
    T: Send + 'static,
    E: From<StoreError> + Send + 'static,
{
    match pipeline.policies.find(subject) {
        MaybeReady::Ready(Some(Ok(policy))) => operation(pipeline, subject, policy.as_ref()),
        lookup => {
            let (pipeline, subject) = (Arc::clone(pipeline), subject.clone());
            MaybeReady::later(async move {
                let operation = async {
                    let policy = lookup.await?;
                    operation(&pipeline, &subject, policy.as_ref()).await
                };
                let result = timeout(pipeline.stores.deadline, operation).await;
                result.unwrap_or_else(|_| Err(timed_out().into()))
            })
        }
    }
}

/// The error of a reset.
#[non_exhaustive]
pub enum ResetError {
    /// The policy has no limit of this name.
    UnknownLimit(String),
    /// The store, or the source of policies, failed.
    Store(StoreError),
}

impl From<StoreError> for ResetError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

debug_as_display!(ResetError);

impl fmt::Display for ResetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownLimit(name) => write!(f, "no limit is called {name:?}"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl Error for ResetError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::UnknownLimit(_) => None,
            Self::Store(error) => error.source(),
        }
    }
}
