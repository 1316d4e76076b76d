//! Releases units of concurrency limits that the store grants after their request has ended.
//!
//! A *place* is a unit of a concurrency limit that a request holds.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::stores::Pending;
use crate::decision::Decision;
use crate::model::{FailureKind, StoreError};
use crate::policy::Policy;

/// Waits for the store in a separate task, for up to `lease`.
///
/// If the store grants places after the request has ended or timed out, `free` gets the decision,
/// and releases them. Otherwise they would stay occupied until their lease ends.
pub(super) fn claim(
    pending: Pending<Result<Decision, StoreError>>,
    lease: Duration,
    free: impl FnOnce(&Decision) + Send + 'static,
) -> Pending<Result<Decision, StoreError>> {
    Box::pin(async move {
        let (reply, received) = oneshot::channel();
        tokio::spawn(async move {
            if let Ok(result) = timeout(lease, pending).await {
                // If the receiver is gone, the reply is dropped, and dropping it frees its places.
                let _ = reply.send(result.map(|decision| Granted(Some((decision, free)))));
            }
        });
        match received.await {
            Ok(granted) => granted.map(Granted::claim),
            // The runtime is shutting down, or the store has not replied for as long as a lease.
            Err(_) => Err(StoreError::new(FailureKind::Unavailable)),
        }
    })
}

/// Places that the store has granted. They are freed when this value is dropped.
struct Granted<F: FnOnce(&Decision)>(Option<(Decision, F)>);

impl<F: FnOnce(&Decision)> Granted<F> {
    /// Returns the decision, and leaves the places to the request.
    fn claim(mut self) -> Decision {
        let (decision, _) = self.0.take().expect("places are claimed once");
        decision
    }
}

impl<F: FnOnce(&Decision)> Drop for Granted<F> {
    fn drop(&mut self) {
        if let Some((decision, free)) = self.0.take()
            && decision.is_allowed()
        {
            free(&decision);
        }
    }
}

/// Returns a policy with the limits that are charged for finished work: all except concurrency
/// limits. Returns `None` if `policy` has no others.
pub(super) fn without_permits(policy: &Policy) -> Option<Policy> {
    policy.only(|_, limit| !limit.holds_permits())
}
