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
//! * **Several subjects in one call**: requests whose parts have the same policies share a call.
//!   Requests with limits in shadow are sent in calls of their own, and so are requests of several
//!   parts with logs or with a part in shadow. On a cluster, only subjects of one
//!   [group](super::encoding::placement) share a call.
//! * **One call per subject at a time**: requests of a subject with a call in flight wait for it,
//!   and are then sent together. They are decided in the order of their arrival. A request that was
//!   sent alone, because nothing was in flight, does not count as such a call.
//! * **Requests of several parts** may share subjects. The script decides those of a call one after
//!   the other, in the order of their arrival. They wait for no call of their subjects.
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
mod pace;
mod queue;
mod refunds;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use batch::{
    Batch, BatchCosts, CallKind, CallerReply, QueuedCall, ReplyReceiver, SubjectBatch,
    into_batches, take_batch,
};
use fan_out::{FanOut, fail};
use pace::{CallInFlight, DeliveryTurn, Flush, SharedQueue, Solo, within_timeout};
use queue::{BatchLimits, BatchQueue, MIN_HALF, QueuedSubject};
use refunds::RefundBatcher;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::encoding::parts_reply::PartsReplies;
use super::encoding::placement::Placement;
use super::encoding::policy::has_fast_path;
use super::encoding::reply::ScriptReply;
use super::encoding::reply_reader;
use super::encoding::request::{CallCosts, DecideCall};
use super::executor::Execute;
use super::layer::{Amendment, Amendments, Layer, LeaseRequest, Request};
use super::subject_key::{KeyedSubject, SubjectKey};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, StoreError};
use crate::store::part_groups::GroupDecisions;
use crate::store::{Mode, Reservations, StoreFuture};

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
    fn enqueue(&self, request: &Arc<Request>, kind: CallKind) -> Enqueued<E> {
        let mut queue = self.lock();
        if queue.is_idle() {
            queue.pace.has_solo = true;
            return Enqueued::Solo(Solo(self.clone()));
        }
        let (reply, receiver) = oneshot::channel();
        let call = QueuedCall { request: Arc::clone(request), kind, reply };
        // All subjects of a request are in one slot, and so in one group: that of the first.
        let KeyedSubject { namespace, subject, key } = &request.parts[0].subject;
        let group = || self.shared.settings.placement.group_of(namespace, subject);
        if request.parts.len() > 1 {
            queue.add_request(call, group());
            self.flush_soon(queue);
        } else if let Some(waiting) = queue.subjects.get_mut(key) {
            waiting.push_back(call);
        } else {
            queue.subjects.insert(*key, VecDeque::from([call]));
            let subject = QueuedSubject { subject: *key, group: group() };
            queue.make_ready(subject, self.shared.limits);
            self.flush_soon(queue);
        }
        Enqueued::Queued(receiver)
    }

    fn send_soon(&self, batch: Batch, is_counted: bool) {
        let subjects = batch.subjects.iter().filter(|batch| batch.first().parts.len() == 1);
        let subjects = subjects.map(|batch| batch.calls[0].part().subject.key).collect();
        // Created outside the task, so that the subjects are released even if the runtime has shut
        // down and drops the task.
        let (batcher, group) = (self.clone(), batch.group);
        let call = CallInFlight { batcher, is_counted };
        let in_flight = InFlightBatch { call, group, subjects };
        self.spawn(send(in_flight, batch));
    }

    /// Runs the script call of a batch.
    async fn call(&self, batch: &Batch) -> Result<BatchReply, StoreError> {
        let [part] = &batch.first().parts[..] else {
            let requests: Vec<_> = batch.calls().map(|call| &*call.request).collect();
            let replies = self.shared.inner.execute_requests(&requests).await?;
            return Ok(BatchReply::Requests(Arc::new(replies)));
        };
        let subjects = batch.subjects.iter();
        let subjects: Vec<_> = subjects.map(|batch| &batch.first().parts[0].subject).collect();
        let each: Vec<Cost>;
        let costs = match batch.costs {
            BatchCosts::Same { cost, calls, least } => CallCosts::Same { cost, calls, least },
            BatchCosts::Mixed => {
                each = batch.calls().map(|call| call.part().cost).collect();
                CallCosts::Each(&each)
            }
        };
        let (mode, reservations) = (Mode::Check, Reservations::Ignore);
        let policy = &part.policy;
        let call = DecideCall { subjects: &subjects, policy, mode, costs, reservations };
        Ok(BatchReply::Subjects(self.shared.inner.execute(&call).await?))
    }

    /// Sends a request that a batch left undecided again, in a call of its own, unless it was
    /// cancelled.
    fn send_alone(&self, call: QueuedCall) {
        let QueuedCall { request, reply, .. } = call;
        let (inner, most) = (self.shared.inner.clone(), self.shared.settings.response_timeout);
        self.spawn(async move {
            if reply.is_closed() {
                return;
            }
            let decided = within_timeout(inner.decide(request), most, || ()).await;
            let _ = reply.send(decided.map(CallerReply::Alone));
        });
    }

    /// Waits for the reply of a batch. An overdue call no longer counts as in flight, so that
    /// others can be sent.
    async fn reply(
        &self,
        batch: &Batch,
        in_flight: &mut InFlightBatch<E>,
    ) -> Result<BatchReply, StoreError> {
        let call = self.call(batch);
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
        let requests = queue.take_due_requests();
        for QueuedSubject { subject, group } in due {
            match queue.subjects.get_mut(&subject).and_then(take_batch) {
                Some((costs, calls)) => subjects.push((costs, SubjectBatch { group, calls })),
                // All requests of this subject were cancelled.
                None => drop(queue.subjects.swap_remove(&subject)),
            }
        }
        drop(queue);
        let batches = into_batches(subjects, max_subjects);
        let is_shared = |batch: &Batch| limits.can_share_call(batch.first());
        let mut queue = self.lock();
        queue.pace.in_flight += batches.iter().filter(|batch| is_shared(batch)).count();
        // If all requests of a group were cancelled, there is room for another group.
        self.flush_soon(queue);
        requests.into_iter().for_each(|batch| self.send_soon(batch, true));
        for batch in batches {
            let is_counted = is_shared(&batch);
            self.send_soon(batch, is_counted);
        }
    }
}

impl<E: Execute> Layer for Batcher<E> {
    fn decide(&self, request: Arc<Request>) -> StoreFuture<GroupDecisions> {
        let BatcherShared { inner, settings, .. } = &*self.shared;
        let can_be_batched = || match &request.parts[..] {
            [part] if !part.is_shadow => {
                request.charges_cost() && request.reservations == Reservations::Ignore
            }
            _ => inner.can_batch(&request),
        };
        if !settings.is_enabled || !can_be_batched() {
            return inner.decide(request);
        }
        match self.enqueue(&request, CallKind::Check) {
            Enqueued::Solo(solo) => hold_during(solo, inner.decide(request)),
            Enqueued::Queued(receiver) => {
                MaybeReady::later(fan_out::wait_for_decisions(receiver, request))
            }
        }
    }

    fn lease(&self, request: LeaseRequest) -> StoreFuture<ScriptReply> {
        let inner = &self.shared.inner;
        if !self.shared.settings.is_enabled {
            return inner.lease(request);
        }
        let kind = CallKind::Lease { units: request.units, least: request.least };
        match self.enqueue(&request.request, kind) {
            Enqueued::Solo(solo) => hold_during(solo, inner.lease(request)),
            Enqueued::Queued(receiver) => MaybeReady::later(fan_out::wait_for_reply(receiver)),
        }
    }

    fn amend(&self, mut amendments: Amendments) -> StoreFuture<Vec<u8>> {
        let BatcherShared { inner, settings, limits, refunds, .. } = &*self.shared;
        let can_share = |amendment: &Amendment| {
            limits.max_subjects > 1 && has_fast_path(&amendment.policy) && amendment.is_refund()
        };
        match amendments.pop() {
            Some(refund) if amendments.is_empty() && settings.is_enabled && can_share(&refund) => {
                let KeyedSubject { namespace, subject, .. } = &refund.subject;
                let group = settings.placement.group_of(namespace, subject);
                refunds.enqueue(refund, group)
            }
            last => {
                amendments.extend(last);
                inner.amend(amendments)
            }
        }
    }
}

/// The reply to a batch.
enum BatchReply {
    /// A reply for each subject; `None` for one that was not decided. Each request has one part.
    Subjects(Vec<Option<ScriptReply>>),
    /// The replies to requests of several parts.
    Requests(Arc<PartsReplies>),
}

/// Sends a batch, and distributes the replies to its callers.
async fn send<E: Execute>(mut in_flight: InFlightBatch<E>, batch: Batch) {
    let batcher = in_flight.call.batcher.clone();
    let replies = batcher.reply(&batch, &mut in_flight).await;
    let turn = DeliveryTurn::take(&batcher).await;
    match replies {
        Err(error) => batch.subjects.into_iter().for_each(|batch| fail(batch, &error)),
        Ok(BatchReply::Subjects(replies)) => deliver(batch, replies, &mut in_flight).await,
        Ok(BatchReply::Requests(replies)) => deliver_requests(&batcher, batch, replies),
    }
    drop(in_flight);
    turn.end(&batcher).await;
}

/// Wakes the callers of requests of one part.
async fn deliver<E: Execute>(
    batch: Batch,
    replies: Vec<Option<ScriptReply>>,
    in_flight: &mut InFlightBatch<E>,
) {
    let is_alone = batch.subjects.len() == 1;
    for (subject, reply) in batch.subjects.into_iter().zip(replies) {
        match reply {
            Some(reply) if is_alone => {
                deliver_paced(FanOut::new(subject, reply), in_flight).await;
            }
            Some(reply) => FanOut::new(subject, reply).complete(),
            None if is_alone => fail(subject, &reply_reader::undecided()),
            // The script changed nothing for this subject, so its requests are sent again, in a
            // call of their own, unless they were cancelled.
            None => {
                let key = subject.calls[0].part().subject.key;
                let Some(alone) = subject.into_batch() else { continue };
                in_flight.subjects.retain(|other| *other != key);
                in_flight.call.batcher.send_soon(alone, false);
            }
        }
    }
}

/// Wakes the callers of requests of several parts. Requests that the script has not decided are
/// sent again.
fn deliver_requests<E: Execute>(batcher: &Batcher<E>, batch: Batch, replies: Arc<PartsReplies>) {
    let calls = batch.subjects.into_iter().flat_map(|subject| subject.calls);
    for (call, bytes) in calls.zip(replies.ranges()) {
        let Some(bytes) = bytes else {
            batcher.send_alone(call);
            continue;
        };
        // An error means that the request was cancelled. It stays charged, because the script has
        // already run.
        let replies = Arc::clone(&replies);
        let _ = call.reply.send(Ok(CallerReply::Requests { replies, bytes }));
    }
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

/// Returns a future that does what `future` does, and holds the mark `solo` until it ends.
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
    subjects: Vec<SubjectKey>,
}

impl<E: Execute> InFlightBatch<E> {
    /// Marks the requests that wait for this call as due.
    fn release(&mut self) {
        let CallInFlight { batcher, is_counted } = &mut self.call;
        let mut queue = batcher.lock();
        queue.pace.in_flight -= usize::from(std::mem::take(is_counted));
        for subject in self.subjects.drain(..) {
            if queue.subjects.get(&subject).is_some_and(|waiting| !waiting.is_empty()) {
                let group = self.group;
                queue.make_ready(QueuedSubject { subject, group }, batcher.shared.limits);
            } else {
                queue.subjects.swap_remove(&subject);
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
