//! Sends the refunds of concurrent requests in one script call. A released permit is a refund.
//!
//! ```text
//! refund ─► queue ─► flush ─► batches ─► script call ─► a result for each refund
//!             ▲                               │
//!             └───────────────────────────────┘  refunds that arrived while many calls were in
//!                                                flight are sent with the next flush
//! ```
//!
//! A call has one refund of each subject, so it reads each state once. Refunds have no order: none
//! changes the result of another.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::overdue::within_timeout;
use super::queue::BatchLimits;
use crate::maybe_ready::MaybeReady;
use crate::model::StoreError;
use crate::store::redis::encoding::policy::max_subjects as max_subjects_of;
use crate::store::redis::executor::Execute;
use crate::store::redis::layer::{OwnedRefund, runtime_has_ended};
use crate::store::redis::subject_key::KeyedSubjectRef;
use crate::store::{Refund, StoreFuture};

/// The result of an amendment: the reply of its script.
type AmendResult = Result<Vec<u8>, StoreError>;

/// Sends refunds, several in one call. All clones share one queue.
pub(super) struct RefundBatcher<E> {
    shared: Arc<RefundBatcherShared<E>>,
}

struct RefundBatcherShared<E> {
    inner: E,
    limits: BatchLimits,
    /// The longest time that a call may take.
    response_timeout: Duration,
    queue: Mutex<RefundQueue>,
    runtime: Handle,
}

#[derive(Default)]
struct RefundQueue {
    waiting: Vec<QueuedRefund>,
    /// The number of calls in flight that are not overdue.
    in_flight: usize,
    /// Whether a task is about to flush the queue.
    is_flushing: bool,
}

/// A refund that waits to be sent.
struct QueuedRefund {
    refund: OwnedRefund,
    /// The slot group of the subject: only subjects of one slot group share a call.
    group: u16,
    reply: oneshot::Sender<AmendResult>,
}

/// The refunds of one script call: one for each subject, all under one policy.
struct RefundBatch {
    refunds: Vec<QueuedRefund>,
}

impl QueuedRefund {
    /// Passes the result to the caller. If no caller waits any more, nothing happens.
    fn complete(self, result: AmendResult) {
        let _ = self.reply.send(result);
    }
}

impl RefundBatch {
    /// Returns whether `refund` may be added to the batch.
    fn accepts(&self, queued: &QueuedRefund, max_subjects: usize) -> bool {
        let (first, refund) = (&self.refunds[0], &queued.refund);
        let is_other = |other: &QueuedRefund| other.refund.subject.key != refund.subject.key;
        first.group == queued.group
            && self.refunds.len() < max_subjects.min(max_subjects_of(&refund.policy))
            && first.refund.policy == refund.policy
            && self.refunds.iter().all(is_other)
    }
}

/// Divides refunds into script calls. The refunds of a call have one policy and different subjects,
/// all of one slot group: at most `max_subjects`, or fewer if the policy is heavy.
fn into_batches(refunds: Vec<QueuedRefund>, max_subjects: usize) -> Vec<RefundBatch> {
    /// The number of batches, counted from the newest, in which room for a refund is sought.
    const MAX_TRIED: usize = 8;
    let mut batches: Vec<RefundBatch> = Vec::new();
    for refund in refunds {
        let fits = |batch: &&mut RefundBatch| batch.accepts(&refund, max_subjects);
        match batches.iter_mut().rev().take(MAX_TRIED).find(fits) {
            Some(batch) => batch.refunds.push(refund),
            None => batches.push(RefundBatch { refunds: vec![refund] }),
        }
    }
    batches
}

impl<E> Clone for RefundBatcher<E> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<E: Execute> RefundBatcher<E> {
    /// Creates a batcher. Its tasks run in the runtime in which it is created.
    pub(super) fn new(inner: E, limits: BatchLimits, response_timeout: Duration) -> Self {
        let (queue, runtime) = (Mutex::default(), Handle::current());
        let shared = RefundBatcherShared { inner, limits, response_timeout, queue, runtime };
        Self { shared: Arc::new(shared) }
    }

    fn lock(&self) -> MutexGuard<'_, RefundQueue> {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a refund to the queue.
    pub(super) fn enqueue(
        &self,
        subject: KeyedSubjectRef<'_>,
        refund: &Refund<'_>,
        group: u16,
    ) -> StoreFuture<Vec<u8>> {
        let (reply, receiver) = oneshot::channel();
        let mut queue = self.lock();
        let refund = OwnedRefund::new(subject, refund);
        queue.waiting.push(QueuedRefund { refund, group, reply });
        self.flush_soon(queue);
        MaybeReady::later(
            async move { receiver.await.unwrap_or_else(|_| Err(runtime_has_ended())) },
        )
    }

    /// Spawns a task that flushes the queue, unless many calls are in flight.
    ///
    /// The task runs after the tasks that are ready now, so the flush includes their refunds.
    fn flush_soon(&self, mut queue: MutexGuard<'_, RefundQueue>) {
        let is_due =
            !queue.waiting.is_empty() && queue.in_flight < self.shared.limits.max_in_flight;
        if !is_due || std::mem::replace(&mut queue.is_flushing, true) {
            return;
        }
        // Release the lock before the spawn: a runtime that has shut down drops the task at once,
        // and the drop locks the queue.
        drop(queue);
        let mut flush = RefundFlushTask(Some(self.clone()));
        self.shared.runtime.spawn(async move {
            if let Some(batcher) = flush.0.take() {
                batcher.flush();
            }
        });
    }

    /// Sends all refunds that wait.
    fn flush(&self) {
        let waiting = {
            let mut queue = self.lock();
            queue.is_flushing = false;
            std::mem::take(&mut queue.waiting)
        };
        for batch in into_batches(waiting, self.shared.limits.max_subjects) {
            self.lock().in_flight += 1;
            self.send_soon(batch, true);
        }
    }

    fn send_soon(&self, batch: RefundBatch, is_counted: bool) {
        // Created outside the task, so that the call stops counting even if the runtime has shut
        // down and drops the task.
        let in_flight = InFlightRefunds { batcher: self.clone(), is_counted };
        self.shared.runtime.spawn(send(in_flight, batch));
    }
}

/// Sends the refunds of a batch, and distributes the results to their callers.
async fn send<E: Execute>(mut in_flight: InFlightRefunds<E>, batch: RefundBatch) {
    let batcher = in_flight.batcher.clone();
    let RefundBatcherShared { inner, response_timeout: most, .. } = &*batcher.shared;
    let overdue = || in_flight.stop_counting();
    let sent = match &batch.refunds[..] {
        [alone] => {
            let amended = inner.amend(alone.refund.amendment());
            within_timeout(amended, *most, overdue).await.map(|_| Vec::new())
        }
        several => {
            let refunds: Vec<_> = several.iter().map(|queued| queued.refund.as_ref()).collect();
            within_timeout(inner.refund(&refunds), *most, overdue).await
        }
    };
    drop(in_flight);
    for (place, refund) in (0_u8..).zip(batch.refunds) {
        match &sent {
            // The script changed nothing for this subject, so the refund is sent again, alone.
            Ok(left) if left.contains(&place) => {
                batcher.send_soon(RefundBatch { refunds: vec![refund] }, false);
            }
            Ok(_) => refund.complete(Ok(Vec::new())),
            Err(error) => refund.complete(Err(error.again())),
        }
    }
}

/// The task that flushes the queue. If its runtime shuts down before it runs, the refunds that wait
/// are dropped, and fail.
struct RefundFlushTask<E: Execute>(Option<RefundBatcher<E>>);

impl<E: Execute> Drop for RefundFlushTask<E> {
    fn drop(&mut self) {
        let Some(batcher) = self.0.take() else { return };
        let mut queue = batcher.lock();
        queue.is_flushing = false;
        queue.waiting.clear();
    }
}

/// A call in flight. When this is dropped, refunds that wait can be sent.
struct InFlightRefunds<E: Execute> {
    batcher: RefundBatcher<E>,
    /// Whether the call counts in [`RefundQueue::in_flight`].
    is_counted: bool,
}

impl<E: Execute> InFlightRefunds<E> {
    /// Stops counting this call, although it may have no reply yet.
    fn stop_counting(&mut self) {
        let mut queue = self.batcher.lock();
        queue.in_flight -= usize::from(std::mem::take(&mut self.is_counted));
        self.batcher.flush_soon(queue);
    }
}

impl<E: Execute> Drop for InFlightRefunds<E> {
    fn drop(&mut self) {
        self.stop_counting();
    }
}
