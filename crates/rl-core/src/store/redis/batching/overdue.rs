//! The time that requests wait for a call in flight.

use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

use crate::model::{FailureKind, StoreError};

/// The time after which a call without a reply is overdue, so that requests no longer wait for it.
const OVERDUE: Duration = Duration::from_millis(5);

/// Waits for the reply to a call, at most for the time `most`. Runs `overdue` as soon as
/// `OVERDUE` has passed without a reply.
pub(super) async fn within_timeout<T>(
    call: impl Future<Output = Result<T, StoreError>>,
    most: Duration,
    overdue: impl FnOnce(),
) -> Result<T, StoreError> {
    let mut call = pin!(call);
    if let Ok(reply) = timeout(OVERDUE, call.as_mut()).await {
        return reply;
    }
    overdue();
    let reply = timeout(most.saturating_sub(OVERDUE), call).await;
    reply.unwrap_or_else(|_| Err(StoreError::new(FailureKind::TimedOut)))
}
