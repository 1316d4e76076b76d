//! Sends the checks of several parts of concurrent requests in one script call.
//!
//! ```text
//!              nothing in flight
//! request ──────────────────────────────► call of its own ──────────► decisions of its parts
//!    │  a call is in flight
//!    ▼
//! queue ─► flush ─► a batch for each list of policies ─► script call ─► a reply for each request
//! ```
//!
//! Requests with the same list of policies share a call. They may share subjects, such as the fleet
//! that all requests count. The script decides them one after the other. Cancellation, failures,
//! bounds and [pacing](super#pacing) are the same as for batches of single subjects. On a cluster,
//! only requests whose subjects are in one [slot group](super::super::encoding::placement) share a
//! call.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::overdue::within_timeout;
use super::pace::{CallInFlight, DeliveryTurn, Flush, Pace, Queue, SharedQueue, Solo};
use super::queue::BatchLimits;
use super::{BatchSettings, MIN_HALF};
use crate::decision::Decision;
use crate::model::{Cost, Mode, StoreError};
use crate::policy::Policy;
use crate::store::part_groups::PartGroup;
use crate::store::redis::encoding::parts::OwnedGroups;
use crate::store::redis::encoding::parts_batch::PartsReplies;
use crate::store::redis::encoding::placement::Placement;
use crate::store::redis::encoding::policy::max_requests;
use crate::store::redis::executor::{PartsCall, ScriptExecutor};
use crate::store::redis::layer::runtime_has_ended;
use crate::store::redis::subject_key::SubjectKey;

type PolicyList = SmallVec<[Policy; 4]>;
type PartDecisions = SmallVec<[Decision; 4]>;
type RequestReplySender = oneshot::Sender<Result<RequestReply, StoreError>>;

/// Batches concurrent checks of several parts.
#[derive(Clone)]
pub(crate) struct PartsBatcher {
    shared: Arc<PartsBatcherShared>,
}

struct PartsBatcherShared {
    executor: ScriptExecutor,
    is_enabled: bool,
    placement: Placement,
    response_timeout: Duration,
    queue: SharedQueue<PartsQueue>,
}

#[derive(Default)]
pub(crate) struct PartsQueue {
    /// The waiting requests, by the policies and the slot group of their parts. The list that has
    /// waited longest comes first.
    lists: VecDeque<WaitingList>,
    pace: Pace,
}

/// Requests whose parts have the same policies and slot group, in the order of their arrival.
struct WaitingList {
    policies: PolicyList,
    slot_group: u16,
    /// The largest number of requests in one call.
    max_requests: usize,
    requests: VecDeque<QueuedRequest>,
}

struct QueuedRequest {
    groups: OwnedGroups,
    reply: RequestReplySender,
}

/// The reply for one request.
pub(crate) enum RequestReply {
    /// The request was decided in a batch. The waiting task computes the decisions.
    Batched { replies: Arc<PartsReplies>, bytes: Range<usize> },
    /// The request was decided in a call of its own.
    Alone(Box<PartDecisions>),
}

/// A request whose call has not ended.
pub(crate) enum PendingParts {
    /// The request has a call of its own, which is sent when the decisions are awaited.
    Alone { executor: ScriptExecutor, call: PartsCall, solo: Option<Solo<PartsBatcher>> },
    /// The request waits for its batch. The costs are those of its groups.
    Queued {
        reply: oneshot::Receiver<Result<RequestReply, StoreError>>,
        costs: SmallVec<[Cost; 4]>,
    },
}

impl PendingParts {
    /// Waits for the decision on each group of the request.
    pub(crate) async fn decisions(self) -> Result<PartDecisions, StoreError> {
        match self {
            Self::Alone { executor, call, solo } => {
                let _solo = solo;
                executor.execute_parts(call).await
            }
            Self::Queued { reply, costs } => {
                match reply.await.unwrap_or_else(|_| Err(runtime_has_ended()))? {
                    RequestReply::Batched { replies, bytes } => replies.decisions(bytes, &costs),
                    RequestReply::Alone(decisions) => Ok(*decisions),
                }
            }
        }
    }
}

impl PartsQueue {
    /// Adds a request to the list of its policies and slot group.
    fn add(
        &mut self,
        groups: &[PartGroup<'_, SubjectKey>],
        slot_group: u16,
        reply: RequestReplySender,
    ) {
        let request = QueuedRequest { groups: OwnedGroups::new(groups), reply };
        let is_same = |list: &&mut WaitingList| {
            let pairs = || list.policies.iter().zip(groups);
            list.slot_group == slot_group
                && list.policies.len() == groups.len()
                && pairs().all(|(known, group)| {
                    known.is_same_handle(group.policy) || known == group.policy
                })
        };
        if let Some(list) = self.lists.iter_mut().find(is_same) {
            list.requests.push_back(request);
            return;
        }
        let policies: PolicyList = groups.iter().map(|group| group.policy.clone()).collect();
        let max_requests = max_requests(&policies);
        let requests = VecDeque::from([request]);
        self.lists.push_back(WaitingList { policies, slot_group, max_requests, requests });
    }

    /// Takes the batches that are due. While few calls are in flight, all requests are due;
    /// otherwise only full batches are. If no call is in flight, a long list is divided into two
    /// batches. Drops cancelled requests.
    fn take_due(&mut self) -> Vec<WaitingList> {
        let (mut batches, mut kept) = (Vec::new(), VecDeque::new());
        let Pace { in_flight, max_in_flight, .. } = self.pace;
        let is_idle = in_flight == 0;
        for mut list in self.lists.drain(..) {
            list.requests.retain(|request| !request.reply.is_closed());
            let mut most = list.max_requests;
            if is_idle {
                most = most.min(list.requests.len().div_ceil(2).max(MIN_HALF));
            }
            let has_room = in_flight + batches.len() < max_in_flight;
            while !list.requests.is_empty() && (has_room || list.requests.len() >= most) {
                let rest = list.requests.split_off(most.min(list.requests.len()));
                let requests = std::mem::replace(&mut list.requests, rest);
                batches.push(WaitingList { policies: list.policies.clone(), requests, ..list });
            }
            if !list.requests.is_empty() {
                kept.push_back(list);
            }
        }
        self.lists = kept;
        self.pace.in_flight += batches.len();
        batches
    }
}

impl Queue for PartsQueue {
    fn pace(&mut self) -> &mut Pace {
        &mut self.pace
    }

    fn is_due(&self) -> bool {
        let is_full = |list: &WaitingList| list.requests.len() >= list.max_requests;
        (self.pace.has_room() && !self.lists.is_empty()) || self.lists.iter().any(is_full)
    }

    fn discard(&mut self) {
        self.lists.clear();
    }
}

impl Flush for PartsBatcher {
    type Queue = PartsQueue;

    fn queue(&self) -> &SharedQueue<PartsQueue> {
        &self.shared.queue
    }

    fn flush(&self, mut queue: MutexGuard<'_, PartsQueue>) {
        let batches = queue.take_due();
        drop(queue);
        for batch in batches {
            let in_flight = CallInFlight { batcher: self.clone(), is_counted: true };
            self.spawn(send(in_flight, batch));
        }
    }
}

impl PartsBatcher {
    /// Creates the batcher. Its tasks run in the runtime in which it is created.
    pub(crate) fn new(executor: ScriptExecutor, settings: &BatchSettings) -> Self {
        let BatchSettings { is_enabled, response_timeout, ref placement } = *settings;
        let placement = placement.clone();
        let queue = SharedQueue::new(BatchLimits::new(&placement).max_in_flight);
        let shared =
            PartsBatcherShared { executor, is_enabled, placement, response_timeout, queue };
        Self { shared: Arc::new(shared) }
    }

    /// Decides a request in a call of its own, or in a batch.
    ///
    /// # Errors
    ///
    /// Returns an error if the layout does not support a limit.
    pub(crate) fn decide(
        &self,
        groups: &[PartGroup<'_, SubjectKey>],
        mode: Mode,
    ) -> Result<PendingParts, StoreError> {
        let executor = &self.shared.executor;
        let alone = |solo| {
            let (executor, call) = (executor.clone(), executor.call_of_parts(groups, mode)?);
            Ok(PendingParts::Alone { executor, call, solo })
        };
        if !self.shared.is_enabled || !executor.can_batch_parts(groups, mode) {
            return alone(None);
        }
        let mut queue = self.lock();
        if queue.lists.is_empty() && queue.pace.in_flight == 0 && !queue.pace.has_solo {
            queue.pace.has_solo = true;
            drop(queue);
            return alone(Some(Solo(self.clone())));
        }
        let (sender, reply) = oneshot::channel();
        // All groups of the request are in one slot, and so in one slot group: that of the first.
        let first = groups.first();
        let slot_group = |first: &PartGroup<'_, SubjectKey>| {
            self.shared.placement.group_of(first.namespace, first.subject)
        };
        queue.add(groups, first.map_or(0, slot_group), sender);
        self.flush_soon(queue);
        let costs = groups.iter().map(|group| group.cost).collect();
        Ok(PendingParts::Queued { reply, costs })
    }

    /// Waits for the reply of a batch. An overdue call no longer counts as in flight.
    async fn reply(
        &self,
        batch: &WaitingList,
        in_flight: &mut CallInFlight<Self>,
    ) -> Result<PartsReplies, StoreError> {
        let requests: Vec<_> = batch.requests.iter().map(|request| &request.groups).collect();
        let call = self.shared.executor.execute_batch(&batch.policies, &requests);
        let most = self.shared.response_timeout;
        within_timeout(call, most, || in_flight.stop_counting()).await
    }
}

/// Sends a batch, and distributes the replies to its callers.
async fn send(mut in_flight: CallInFlight<PartsBatcher>, batch: WaitingList) {
    let batcher = in_flight.batcher.clone();
    let replies = batcher.reply(&batch, &mut in_flight).await;
    let turn = DeliveryTurn::take(&batcher).await;
    match replies {
        Err(error) => {
            for QueuedRequest { reply, .. } in batch.requests {
                let _ = reply.send(Err(error.again()));
            }
        }
        Ok(replies) => deliver(&batcher, batch, replies),
    }
    drop(in_flight);
    turn.end(&batcher).await;
}

/// Wakes the callers of a batch. If the script has not decided a request, sends it again in a call
/// of its own, unless it was cancelled.
fn deliver(batcher: &PartsBatcher, batch: WaitingList, replies: PartsReplies) {
    let replies = Arc::new(replies);
    for (request, bytes) in batch.requests.into_iter().zip(replies.ranges()) {
        let QueuedRequest { groups, reply } = request;
        if let Some(bytes) = bytes {
            // An error means that the request was cancelled. It stays charged, because the script
            // has already run.
            let replies = Arc::clone(&replies);
            let _ = reply.send(Ok(RequestReply::Batched { replies, bytes }));
            continue;
        }
        let (executor, most) = (batcher.shared.executor.clone(), batcher.shared.response_timeout);
        batcher.spawn(async move {
            if reply.is_closed() {
                return;
            }
            let decided = async {
                let call = executor.call_of_parts(&groups.as_groups(), Mode::Check)?;
                executor.execute_parts(call).await
            };
            let decided = within_timeout(decided, most, || ()).await;
            let _ = reply.send(decided.map(|decisions| RequestReply::Alone(Box::new(decisions))));
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;
    use crate::model::{FailureKind, Limit, Subject};
    use crate::store::Namespace;
    use crate::store::redis::test_layer::keyed;
    use crate::store::redis::{RedisStore, RedisStoreBuilder};

    type ReplyReceiver = oneshot::Receiver<Result<RequestReply, StoreError>>;

    fn policy() -> Policy {
        Policy::new([Limit::per_second(1)]).unwrap()
    }

    fn queue() -> PartsQueue {
        let mut queue = PartsQueue::default();
        queue.pace.max_in_flight = 4;
        queue
    }

    /// Adds a request of one part to the list of `slot_group`.
    fn add(queue: &mut PartsQueue, slot_group: u16, policy: &Policy) -> ReplyReceiver {
        let (namespace, subject) = (Namespace::default(), Subject::user("alice"));
        let (namespace, subject, key) = (&namespace, &subject, keyed(&namespace, &subject).key);
        let (cost, is_shadow) = (Cost::ONE, false);
        let group = PartGroup { key, namespace, subject, policy, cost, is_shadow };
        let (sender, receiver) = oneshot::channel();
        queue.add(&[group], slot_group, sender);
        receiver
    }

    /// Returns a store whose server cannot be reached.
    fn unreachable() -> RedisStoreBuilder {
        RedisStore::builder("redis://127.0.0.1:1/")
    }

    /// Otherwise, nothing would send the live request before the next one arrives.
    #[test]
    fn lists_of_cancelled_requests_do_not_count_as_calls_in_flight() {
        let (mut queue, policy) = (queue(), policy());
        for slot_group in 0..4 {
            drop(add(&mut queue, slot_group, &policy));
        }
        let _live = add(&mut queue, 4, &policy);
        let due = queue.take_due();
        assert_eq!(due.iter().map(|list| list.slot_group).collect::<Vec<_>>(), [4]);
        assert_eq!((queue.pace.in_flight, queue.lists.len()), (1, 0));
    }

    #[test]
    fn lists_that_find_no_room_wait_for_a_call_to_return() {
        let (mut queue, policy) = (queue(), policy());
        let _live: Vec<_> = (0..6).map(|group| add(&mut queue, group, &policy)).collect();
        assert_eq!(queue.take_due().len(), 4);
        assert_eq!((queue.pace.in_flight, queue.lists.len()), (4, 2));
    }

    #[tokio::test]
    async fn a_cancelled_request_that_a_batch_left_undecided_is_not_sent_again() {
        let store =
            unreachable().connection_wait(Duration::from_millis(1)).connect().await.unwrap();
        let (mut queue, policy) = (queue(), policy());
        drop(add(&mut queue, 0, &policy));
        let live = add(&mut queue, 0, &policy);
        let batch = queue.lists.pop_front().unwrap();
        deliver(&store.inner.parts_batcher, batch, PartsReplies::undecided(2));
        assert!(live.await.unwrap().is_err());
        yield_now().await;
        assert_eq!(store.inner.executor.stats().calls, 1);
    }

    #[tokio::test]
    async fn a_request_that_is_sent_again_fails_after_the_response_timeout() {
        let (wait, response_timeout) = (Duration::from_secs(10), Duration::from_millis(20));
        let store = unreachable().connection_wait(wait).response_timeout(response_timeout);
        let store = store.connect().await.unwrap();
        let (mut queue, policy) = (queue(), policy());
        let reply = add(&mut queue, 0, &policy);
        let batch = queue.lists.pop_front().unwrap();
        deliver(&store.inner.parts_batcher, batch, PartsReplies::undecided(1));
        let reply = tokio::time::timeout(Duration::from_secs(5), reply).await;
        let error = reply.expect("the call is bounded").unwrap().err().unwrap();
        assert_eq!(error.kind(), FailureKind::TimedOut);
    }
}
