//! Calls to Redis that each concern one slot of a cluster.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use smallvec::smallvec;
use tokio::time::timeout;

use crate::maybe_ready::MaybeReady;
use crate::model::{FailureKind, StoreError};
use crate::store::StoreFuture;
use crate::store::part_groups::GroupDecisions;
use crate::store::redis::batching::Batcher;
use crate::store::redis::executor::ScriptExecutor;
use crate::store::redis::layer::{Amendment, Layer, Request};
use crate::store::redis::shortcuts::{DenialCache, Leases};

/// Runs the calls to one slot. Clones share their state. A call is sent when its future is polled,
/// except a check, which may join a batch earlier.
pub(crate) trait SlotCalls: Clone + Send + Sync + 'static {
    /// Decides a request whose parts are all in one slot, in one step.
    fn decide(&self, request: Arc<Request>) -> StoreFuture<GroupDecisions>;

    /// Changes the counts of one subject.
    fn amend(&self, amendment: Amendment) -> StoreFuture<Vec<u8>>;
}

/// Calls slots through the layers of the store: with leased units, by cached denials, or in script
/// calls, which they may share with other requests.
#[derive(Clone)]
pub(crate) struct LayerCalls {
    layers: Leases<DenialCache<Batcher<ScriptExecutor>>>,
    /// The longest time that a decision may take. The calls outlive the deadline of the request, so
    /// they need a bound of their own.
    response_timeout: Duration,
}

impl LayerCalls {
    /// Creates the calls of a store with these layers.
    pub(crate) fn new(
        layers: &Leases<DenialCache<Batcher<ScriptExecutor>>>,
        response_timeout: Duration,
    ) -> Self {
        Self { layers: layers.clone(), response_timeout }
    }
}

/// Waits for the result of a call, for at most `bound`.
fn within<T: Send + 'static>(bound: Duration, result: StoreFuture<T>) -> StoreFuture<T> {
    match result {
        MaybeReady::Ready(_) => result,
        MaybeReady::Boxed(pending) => MaybeReady::later(async move {
            let result = timeout(bound, pending).await;
            result.unwrap_or_else(|_| Err(StoreError::new(FailureKind::TimedOut)))
        }),
    }
}

impl SlotCalls for LayerCalls {
    fn decide(&self, request: Arc<Request>) -> StoreFuture<GroupDecisions> {
        within(self.response_timeout, self.layers.decide(request))
    }

    fn amend(&self, amendment: Amendment) -> StoreFuture<Vec<u8>> {
        self.layers.amend(smallvec![amendment])
    }
}

/// Waits for all results. They are awaited at the same time.
pub(crate) async fn join_all<T: Send + 'static>(
    mut pending: Vec<StoreFuture<T>>,
) -> Vec<Result<T, StoreError>> {
    let mut results: Vec<_> = pending.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut are_ready = true;
        for (pending, result) in pending.iter_mut().zip(&mut results) {
            if result.is_none() {
                match Pin::new(pending).poll(cx) {
                    Poll::Ready(ready) => *result = Some(ready),
                    Poll::Pending => are_ready = false,
                }
            }
        }
        if are_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}
