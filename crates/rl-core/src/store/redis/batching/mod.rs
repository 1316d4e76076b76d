//! Sends the checks of concurrent requests in one script call, and their refunds in another.
//!
//! ```text
//!              nothing in flight
//! request ──────────────────────────────► call of its own ──────────────► decision
//!    │  a call of any subject is in flight
//!    ▼
//! queue ─► flush ─► batches ─► script call ─► fan-out ─► a decision for each request
//!            ▲                     │
//!            └─────────────────────┘  requests that arrived meanwhile are sent with the next flush
//! ```
//!
//! * **Several subjects in one call**: subjects under one policy share a call. Subjects under a
//!   policy with limits in shadow are sent in calls of their own. On a cluster, only subjects of
//!   one [group](super::encoding::placement) share a call.
//! * **One call per subject at a time**: requests of a subject with a call in flight wait for it,
//!   and are then sent together. They are decided in the order of their arrival. A request that was
//!   sent alone, because nothing was in flight, does not count as such a call.
//! * **Cancel safe**: a request that is cancelled before the flush is not charged. One that is
//!   cancelled later may be charged. Other requests of the batch are not affected.
//! * **Refunds share calls too**: a permit that is released is such a refund. Refunds do not wait
//!   for the checks of their subject, and a call has one refund of each subject.
//! * **Nothing is sent twice**: if a call fails, all its requests fail with its error.
//! * **Bounded**: a call has a bounded number of subjects and costs, so that it does not block the
//!   server. After the response timeout of its connection, a call without a reply fails.
//!
//! # Pacing
//!
//! If each request were sent as soon as possible, each call would contain a single decision,
//! because every reply wakes a single caller. Three rules keep client and server busy at the same
//! time:
//!
//! ```text
//! server    │ batch A │ batch B │ batch A' │ batch B' │
//! client         A wakes ──► A'     B wakes ──► B'
//! ```
//!
//! * The number of shared calls in flight is bounded ([`queue::BatchLimits`]). Further requests are
//!   collected until a call returns, until a call is overdue, or until there are enough of them for
//!   a full call. The slot group that has waited longest is sent first.
//! * If nothing is in flight, a flush sends two halves. The task that handles the second reply
//!   first yields to the callers of the first half, so that their next requests are sent before the
//!   second half is delivered. Otherwise the halves would merge, and client and server would take
//!   turns.
//! * If many callers share one subject, the first quarter of them is woken first. Their next
//!   requests are sent before the others are woken. If all were woken at once, 256 tasks of one
//!   subject would make 15 % fewer decisions.

mod batch;
mod fan_out;
mod overdue;
mod pace;
mod parts;
mod queue;
mod refunds;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use batch::{
    Batch, BatchCosts, CallKind, QueuedCall, ReplyReceiver, SubjectBatch, into_batches, take_batch,
};
use fan_out::{FanOut, fail};
use overdue::within_timeout;
use pace::{CallInFlight, DeliveryTurn, Flush, SharedQueue, Solo};
pub(crate) use parts::PartsBatcher;
use queue::{BatchLimits, BatchQueue, QueuedSubject};
use refunds::RefundBatcher;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::encoding::placement::Placement;
use super::encoding::reply::ScriptReply;
use super::encoding::reply_reader;
use super::encoding::request::{CallCosts, DecideCall};
use super::executor::Execute;
use super::layer::{AmendOperation, Amendment, Layer, LeaseRequest, PartRequest};
use super::subject_key::{KeyedSubject, KeyedSubjectRef};
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, StoreError};
use crate::policy::Policy;
use crate::store::{Mode, Reservations, StoreFuture};

/// A batch of fewer subjects is not divided into halves.
const MIN_HALF: usize = 8;

/// The layer that batches concurrent checks.
pub(crate) struct Batcher<E> {
    shared: Arc<BatcherShared<E>>,
}

struct BatcherShared<E> {
    inner: E,
    settings: BatchSettings,
    limits: BatchLimits,
    queue: SharedQueue<BatchQueue>,
    refunds: RefundBatcher<E>,
}

#[derive(Clone, Debug)]
pub(crate) struct BatchSettings {
    /// Whether checks are batched. If not, this layer forwards every request.
    pub(crate) is_enabled: bool,
    /// The placement of keys. On a cluster, only subjects of one slot group share a call.
    pub(crate) placement: Placement,
    /// The longest time that a call may take.
    pub(crate) response_timeout: Duration,
}

impl<E> Clone for Batcher<E> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<E: Execute> Batcher<E> {
    /// Creates the layer. Its tasks run in the runtime in which it is created.
    pub(crate) fn new(inner: E, settings: BatchSettings) -> Self {
        let limits = BatchLimits::new(&settings.placement);
        let queue = SharedQueue::new(limits.max_in_flight);
        let refunds = RefundBatcher::new(inner.clone(), limits, settings.response_timeout);
        Self { shared: Arc::new(BatcherShared { inner, settings, limits, queue, refunds }) }
    }

    /// Adds a check or a lease to the queue. If nothing is in flight, adds nothing: the caller then
    /// sends it in a script call of its own.
    fn enqueue(
        &self,
        subject: KeyedSubjectRef<'_>,
        policy: &Policy,
        kind: CallKind,
    ) -> Enqueued<E> {
        let mut queue = self.lock();
        if queue.subjects.is_empty() && !queue.pace.has_solo {
            queue.pace.has_solo = true;
            return Enqueued::Solo(Solo(self.clone()));
        }
        let (reply, receiver) = oneshot::channel();
        let call = QueuedCall { policy: policy.clone(), kind, reply };
        if let Some(waiting) = queue.subjects.get_mut(&subject.key) {
            waiting.push_back(call);
        } else {
            queue.subjects.insert(subject.key, VecDeque::from([call]));
            let group = self.shared.settings.placement.group_of(subject.namespace, subject.subject);
            let subject = QueuedSubject { subject: subject.to_owned(), group };
            queue.make_ready(subject, self.shared.limits);
            self.flush_soon(queue);
        }
        Enqueued::Queued(receiver)
    }

    fn send_soon(&self, batch: Batch, is_counted: bool) {
        let subjects = batch.subjects.iter().map(|batch| batch.subject.clone()).collect();
        // Created outside the task, so that the subjects are released even if the runtime has shut
        // down and drops the task.
        let (batcher, group) = (self.clone(), batch.group);
        let call = CallInFlight { batcher, is_counted };
        let in_flight = InFlightBatch { call, group, subjects };
        self.spawn(send(in_flight, batch));
    }

    /// Runs the script call of a batch.
    async fn call(
        &self,
        policy: &Policy,
        costs: BatchCosts,
        batches: &[SubjectBatch],
    ) -> Result<Vec<Option<ScriptReply>>, StoreError> {
        let subjects: Vec<_> = batches.iter().map(|batch| batch.subject.as_ref()).collect();
        let each: Vec<Cost>;
        let costs = match costs {
            BatchCosts::Same { cost, calls, least } => CallCosts::Same { cost, calls, least },
            BatchCosts::Mixed => {
                let calls = batches.iter().flat_map(|batch| &batch.calls);
                each = calls.map(|call| call.kind.cost()).collect();
                CallCosts::Each(&each)
            }
        };
        let (mode, reservations) = (Mode::Check, Reservations::Ignore);
        let call = DecideCall { subjects: &subjects, policy, mode, costs, reservations };
        self.shared.inner.execute(&call).await
    }

    /// Waits for the reply of a batch. An overdue call no longer counts as in flight, so that
    /// others can be sent.
    async fn reply(
        &self,
        batch: &Batch,
        in_flight: &mut InFlightBatch<E>,
    ) -> Result<Vec<Option<ScriptReply>>, StoreError> {
        let call = self.call(&batch.policy, batch.costs, &batch.subjects);
        let most = self.shared.settings.response_timeout;
        within_timeout(call, most, || in_flight.call.stop_counting()).await
    }
}

impl<E: Execute> Flush for Batcher<E> {
    type Queue = BatchQueue;

    fn queue(&self) -> &SharedQueue<BatchQueue> {
        &self.shared.queue
    }

    fn flush(&self, mut queue: MutexGuard<'_, BatchQueue>) {
        let limits = self.shared.limits;
        let (mut max_subjects, mut subjects) = (limits.max_subjects, Vec::new());
        let (due, collected) = queue.take_due(limits);
        if queue.pace.in_flight == 0 {
            max_subjects = max_subjects.min(collected.div_ceil(2).max(MIN_HALF));
        }
        for QueuedSubject { subject, group } in due {
            match queue.subjects.get_mut(&subject.key).and_then(take_batch) {
                Some((costs, calls)) => {
                    subjects.push((costs, SubjectBatch { subject, group, calls }));
                }
                // All requests of this subject were cancelled.
                None => drop(queue.subjects.swap_remove(&subject.key)),
            }
        }
        drop(queue);
        let batches = into_batches(subjects, max_subjects);
        let is_shared = |batch: &Batch| limits.can_share_call(&batch.policy);
        let mut queue = self.lock();
        queue.pace.in_flight += batches.iter().filter(|batch| is_shared(batch)).count();
        // If all requests of a group were cancelled, there is room for another group.
        self.flush_soon(queue);
        for batch in batches {
            let is_counted = is_shared(&batch);
            self.send_soon(batch, is_counted);
        }
    }
}

impl<E: Execute> Layer for Batcher<E> {
    fn decide(&self, request: PartRequest<'_>) -> StoreFuture<Decision> {
        let inner = &self.shared.inner;
        let can_be_batched = request.charges_cost() && request.reservations == Reservations::Ignore;
        if !self.shared.settings.is_enabled || !can_be_batched {
            return inner.decide(request);
        }
        match self.enqueue(request.subject, request.policy, CallKind::Check(request.cost)) {
            Enqueued::Solo(solo) => hold_during(solo, inner.decide(request)),
            Enqueued::Queued(receiver) => MaybeReady::later(fan_out::wait_for_decision(receiver)),
        }
    }

    fn lease(&self, request: LeaseRequest<'_>) -> StoreFuture<ScriptReply> {
        let inner = &self.shared.inner;
        if !self.shared.settings.is_enabled {
            return inner.lease(request);
        }
        let kind = CallKind::Lease { units: request.units, least: request.least };
        match self.enqueue(request.subject, request.policy, kind) {
            Enqueued::Solo(solo) => hold_during(solo, inner.lease(request)),
            Enqueued::Queued(receiver) => MaybeReady::later(fan_out::wait_for_reply(receiver)),
        }
    }

    fn amend(&self, amendment: Amendment<'_>) -> StoreFuture<Vec<u8>> {
        let BatcherShared { inner, settings, limits, refunds, .. } = &*self.shared;
        let Amendment { subject, operation: AmendOperation::Refund(refund) } = amendment else {
            return inner.amend(amendment);
        };
        if !settings.is_enabled || !limits.can_share_call(refund.policy) {
            return inner.amend(amendment);
        }
        let group = settings.placement.group_of(subject.namespace, subject.subject);
        refunds.enqueue(subject, &refund, group)
    }
}

/// Sends a batch, and distributes the replies to its callers.
async fn send<E: Execute>(mut in_flight: InFlightBatch<E>, batch: Batch) {
    let batcher = in_flight.call.batcher.clone();
    let replies = batcher.reply(&batch, &mut in_flight).await;
    let turn = DeliveryTurn::take(&batcher).await;
    let is_alone = batch.subjects.len() == 1;
    match replies {
        Err(error) => batch.subjects.into_iter().for_each(|batch| fail(batch, &error)),
        Ok(replies) => {
            for (subject, reply) in batch.subjects.into_iter().zip(replies) {
                match reply {
                    Some(reply) if is_alone => {
                        deliver_paced(FanOut::new(subject, reply), &mut in_flight).await;
                    }
                    Some(reply) => FanOut::new(subject, reply).complete(),
                    None if is_alone => fail(subject, &reply_reader::undecided()),
                    // The script changed nothing for this subject, so its requests are sent again,
                    // in a call of their own, unless they were cancelled.
                    None => {
                        let key = subject.subject.key;
                        let Some(alone) = subject.into_batch() else { continue };
                        in_flight.subjects.retain(|other| other.key != key);
                        batcher.send_soon(alone, false);
                    }
                }
            }
        }
    }
    drop(in_flight);
    turn.end(&batcher).await;
}

/// Distributes a reply to the callers of one subject.
///
/// If there are many callers, the first quarter is woken first. Their next requests are enqueued at
/// the first yield, and sent at the second, so the server works while the others are woken.
async fn deliver_paced<E: Execute>(mut fan_out: FanOut, in_flight: &mut InFlightBatch<E>) {
    if fan_out.is_large() {
        fan_out.complete_first_quarter();
        yield_now().await;
        in_flight.release();
        yield_now().await;
    }
    fan_out.complete();
}

/// The result of enqueuing a call.
enum Enqueued<E: Execute> {
    /// Nothing is in flight, so the caller sends the call itself.
    Solo(Solo<Batcher<E>>),
    Queued(ReplyReceiver),
}

/// Returns the future, which then holds the mark of a call without the queue until it ends.
fn hold_during<T: Send + 'static>(
    solo: Solo<Batcher<impl Execute>>,
    future: StoreFuture<T>,
) -> StoreFuture<T> {
    MaybeReady::later(async move {
        let _solo = solo;
        future.await
    })
}

/// The subjects of a call in flight. When this is dropped, their waiting requests can be sent.
struct InFlightBatch<E: Execute> {
    call: CallInFlight<Batcher<E>>,
    group: u16,
    subjects: Vec<KeyedSubject>,
}

impl<E: Execute> InFlightBatch<E> {
    /// Marks the requests that wait for this call as due.
    fn release(&mut self) {
        let CallInFlight { batcher, is_counted } = &mut self.call;
        let mut queue = batcher.lock();
        queue.pace.in_flight -= usize::from(std::mem::take(is_counted));
        for subject in self.subjects.drain(..) {
            if queue.subjects.get(&subject.key).is_some_and(|waiting| !waiting.is_empty()) {
                let group = self.group;
                queue.make_ready(QueuedSubject { subject, group }, batcher.shared.limits);
            } else {
                queue.subjects.swap_remove(&subject.key);
            }
        }
        batcher.flush_soon(queue);
    }
}

impl<E: Execute> Drop for InFlightBatch<E> {
    fn drop(&mut self) {
        self.release();
    }
}
