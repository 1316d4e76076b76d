//! Calls to Redis that each concern one slot of a cluster.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use smallvec::smallvec;
use tokio::time::timeout;

use crate::maybe_ready::MaybeReady;
use crate::model::{FailureKind, Mode, StoreError};
use crate::store::StoreFuture;
use crate::store::part_groups::{GroupDecisions, PartGroup};
use crate::store::redis::batching::{Batcher, PartsBatcher};
use crate::store::redis::executor::ScriptExecutor;
use crate::store::redis::layer::{Amendment, Layer, PartRequest};
use crate::store::redis::shortcuts::{DenialCache, Leases, MonotonicClock, RequestStamp};
use crate::store::redis::subject_key::SubjectKey;

/// Runs the calls to one slot. Clones share their state. A call is sent when its future is polled,
/// except a check, which may join a batch earlier.
pub(crate) trait SlotCalls: Clone + Send + Sync + 'static {
    /// Decides groups in one slot, in one step. `stamps` has an entry for each group.
    fn decide(
        &self,
        groups: &[PartGroup<'_, SubjectKey>],
        stamps: &[Option<RequestStamp>],
        mode: Mode,
    ) -> StoreFuture<GroupDecisions>;

    /// Changes the counts of one subject.
    fn amend(&self, amendment: Amendment<'_>) -> StoreFuture<Vec<u8>>;
}

/// Calls slots through the layers of the store.
///
/// A group that is alone in its slot is decided by the layers like a request of one part: with
/// leased units, by a cached denial, or in a batch. Several groups are decided in one script call,
/// which they may share with those of other requests.
#[derive(Clone)]
pub(crate) struct LayerCalls {
    layers: Leases<DenialCache<Batcher<ScriptExecutor>>>,
    parts_batcher: PartsBatcher,
    clock: Arc<MonotonicClock>,
    /// The longest time that a decision may take. The calls outlive the deadline of the request, so
    /// they need a bound of their own.
    response_timeout: Duration,
}

impl LayerCalls {
    /// Creates the calls of a store with these layers.
    pub(crate) fn new(
        layers: &Leases<DenialCache<Batcher<ScriptExecutor>>>,
        parts_batcher: &PartsBatcher,
        clock: &Arc<MonotonicClock>,
        response_timeout: Duration,
    ) -> Self {
        Self {
            layers: layers.clone(),
            parts_batcher: parts_batcher.clone(),
            clock: Arc::clone(clock),
            response_timeout,
        }
    }

    fn decide_one(
        &self,
        group: &PartGroup<'_, SubjectKey>,
        mode: Mode,
    ) -> StoreFuture<GroupDecisions> {
        // A part in shadow is charged the whole cost or nothing.
        let mode = if group.is_shadow && mode == Mode::CheckUpTo { Mode::Check } else { mode };
        let request = PartRequest::of_group(group, mode, self.clock.now());
        self.layers.decide(request).map(|decision| Ok(smallvec![decision?]))
    }

    fn decide_several(
        &self,
        groups: &[PartGroup<'_, SubjectKey>],
        stamps: &[Option<RequestStamp>],
        mode: Mode,
    ) -> StoreFuture<GroupDecisions> {
        let pending = match self.parts_batcher.decide(groups, mode) {
            Ok(pending) => pending,
            Err(error) => return MaybeReady::ready(Err(error)),
        };
        let keys = groups.iter().map(|group| group.key);
        let keys: Vec<_> = keys.zip(stamps.iter().copied()).collect();
        let this = self.clone();
        MaybeReady::later(async move {
            let decisions = pending.decisions().await?;
            for ((key, stamp), decision) in keys.into_iter().zip(&decisions) {
                this.layers.denials().remember(key, decision, stamp);
            }
            Ok(decisions)
        })
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
    fn decide(
        &self,
        groups: &[PartGroup<'_, SubjectKey>],
        stamps: &[Option<RequestStamp>],
        mode: Mode,
    ) -> StoreFuture<GroupDecisions> {
        let decisions = match groups {
            [group] => self.decide_one(group, mode),
            groups => self.decide_several(groups, stamps, mode),
        };
        within(self.response_timeout, decisions)
    }

    fn amend(&self, amendment: Amendment<'_>) -> StoreFuture<Vec<u8>> {
        self.layers.amend(amendment)
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
