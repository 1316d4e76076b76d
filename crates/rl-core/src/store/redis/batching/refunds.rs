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

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use smallvec::smallvec;
use tokio::sync::oneshot;

use super::pace::{CallInFlight, Flush, Pace, Queue, SharedQueue, within_timeout};
use super::queue::BatchLimits;
use crate::maybe_ready::MaybeReady;
use crate::model::StoreError;
use crate::store::StoreFuture;
use crate::store::redis::encoding::policy::max_subjects as max_subjects_of;
use crate::store::redis::executor::Execute;
use crate::store::redis::layer::{Amendment, runtime_has_ended};

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
    queue: SharedQueue<RefundQueue>,
}

#[derive(Default)]
pub(crate) struct RefundQueue {
    waiting: Vec<QueuedRefund>,
    pace: Pace,
}

/// A refund that waits to be sent.
struct QueuedRefund {
    refund: Amendment,
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
        let queue = SharedQueue::new(limits.max_in_flight);
        let shared = RefundBatcherShared { inner, limits, response_timeout, queue };
        Self { shared: Arc::new(shared) }
    }

    /// Adds a refund to the queue.
    pub(super) fn enqueue(&self, refund: Amendment, group: u16) -> StoreFuture<Vec<u8>> {
        let (reply, receiver) = oneshot::channel();
        let mut queue = self.lock();
        queue.waiting.push(QueuedRefund { refund, group, reply });
        self.flush_soon(queue);
        MaybeReady::later(
            async move { receiver.await.unwrap_or_else(|_| Err(runtime_has_ended())) },
        )
    }

    fn send_soon(&self, batch: RefundBatch, is_counted: bool) {
        // Created outside the task, so that the call stops counting even if the runtime has shut
        // down and drops the task.
        let in_flight = CallInFlight { batcher: self.clone(), is_counted };
        self.spawn(send(in_flight, batch));
    }
}

impl<E: Execute> Flush for RefundBatcher<E> {
    type Queue = RefundQueue;

    fn queue(&self) -> &SharedQueue<RefundQueue> {
        &self.shared.queue
    }

    fn flush(&self, mut queue: MutexGuard<'_, RefundQueue>) {
        let waiting = std::mem::take(&mut queue.waiting);
        let batches = into_batches(waiting, self.shared.limits.max_subjects);
        queue.pace.in_flight += batches.len();
        drop(queue);
        batches.into_iter().for_each(|batch| self.send_soon(batch, true));
    }
}

impl Queue for RefundQueue {
    fn pace(&mut self) -> &mut Pace {
        &mut self.pace
    }

    fn is_due(&self) -> bool {
        !self.waiting.is_empty() && self.pace.has_room()
    }

    fn discard(&mut self) {
        self.waiting.clear();
    }
}

/// Sends the refunds of a batch, and distributes the results to their callers.
async fn send<E: Execute>(mut in_flight: CallInFlight<RefundBatcher<E>>, batch: RefundBatch) {
    let batcher = in_flight.batcher.clone();
    let RefundBatcherShared { inner, response_timeout: most, .. } = &*batcher.shared;
    let overdue = || in_flight.stop_counting();
    let sent = match &batch.refunds[..] {
        [alone] => {
            let amended = inner.amend(smallvec![alone.refund.clone()]);
            within_timeout(amended, *most, overdue).await.map(|_| Vec::new())
        }
        several => {
            let refunds: Vec<_> = several.iter().map(|queued| &queued.refund).collect();
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
