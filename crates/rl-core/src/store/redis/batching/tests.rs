//! Tests of batches.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tokio::sync::Semaphore;

use super::*;
use crate::model::{FailureKind, Limit, Subject};
use crate::policy::Policy;
use crate::store::redis::test_layer::{check, check_all, keyed};
use crate::store::{Layout, Namespace};

/// A server that decides no call of several requests.
#[derive(Clone)]
struct Undecided {
    /// The number of subjects of each call, and the number of checks of each subject.
    calls: Arc<Mutex<Vec<(usize, u16)>>>,
    /// The server replies as soon as this is closed.
    waiting: Arc<Semaphore>,
    /// Whether a request in a call of its own gets no reply.
    is_silent: bool,
}

impl Execute for Undecided {
    async fn execute(&self, call: &DecideCall<'_>) -> Result<Vec<Option<ScriptReply>>, StoreError> {
        let CallCosts::Same { calls, .. } = call.costs else { panic!("the costs differ") };
        self.calls.lock().unwrap().push((call.subjects.len(), calls));
        assert!(self.waiting.acquire().await.is_err());
        Ok(vec![None; call.subjects.len()])
    }

    fn can_batch(&self, _: &Request) -> bool {
        true
    }

    async fn execute_requests(&self, requests: &[&Request]) -> Result<PartsReplies, StoreError> {
        self.calls.lock().unwrap().push((requests.len(), 1));
        assert!(self.waiting.acquire().await.is_err());
        Ok(PartsReplies::undecided(requests.len()))
    }

    async fn refund(&self, _: &[&Amendment]) -> Result<Vec<u8>, StoreError> {
        Err(StoreError::new(FailureKind::Unavailable))
    }
}

impl Layer for Undecided {
    fn decide(&self, request: Arc<Request>) -> StoreFuture<GroupDecisions> {
        self.calls.lock().unwrap().push((request.parts.len(), 0));
        match self.is_silent {
            true => MaybeReady::later(std::future::pending()),
            false => MaybeReady::ready(Err(StoreError::new(FailureKind::Unavailable))),
        }
    }

    fn lease(&self, _: LeaseRequest) -> StoreFuture<ScriptReply> {
        MaybeReady::ready(Err(StoreError::new(FailureKind::Unavailable)))
    }

    fn amend(&self, _: Amendments) -> StoreFuture<Vec<u8>> {
        MaybeReady::ready(Err(StoreError::new(FailureKind::Unavailable)))
    }
}

fn batcher(placement: Placement, is_silent: bool) -> (Undecided, Batcher<Undecided>) {
    let (calls, waiting) = (Arc::default(), Arc::new(Semaphore::new(0)));
    let inner = Undecided { calls, waiting, is_silent };
    let response_timeout = Duration::from_millis(500);
    let settings = BatchSettings { is_enabled: true, placement, response_timeout };
    (inner.clone(), Batcher::new(inner, settings))
}

/// Fault: a flush of groups whose requests were all cancelled sent no call, so no call returned,
/// and the groups behind them waited until another request came.
#[tokio::test(start_paused = true)]
async fn groups_of_cancelled_requests_do_not_keep_other_groups_waiting() {
    let placement = Placement::new(true, Some(16), Layout::Packed, "rl").unwrap();
    let namespace = Namespace::default();
    let mut of_groups = BTreeMap::new();
    for user in (0..1_000).map(|n| Subject::user(&n.to_string())) {
        of_groups.entry(placement.group_of(&namespace, &user)).or_insert(user);
    }
    assert_eq!(of_groups.len(), 16);
    let (inner, batcher) = batcher(placement, false);
    inner.waiting.close();
    let policy = Policy::new([Limit::per_second(1)]).unwrap();
    let enqueue =
        |user| batcher.enqueue(&check(&keyed(&namespace, user), &policy, 1), CallKind::Check);
    let solo = Subject::user("solo");
    let _solo = enqueue(&solo);
    let mut calls: Vec<_> = of_groups.values().map(enqueue).collect();
    let Some(Enqueued::Queued(live)) = calls.pop() else { panic!("a call is in flight") };
    drop(calls);
    let decided = tokio::time::timeout(Duration::from_secs(60), live).await;
    assert!(decided.expect("the call is sent").unwrap().is_err());
}

#[tokio::test]
async fn cancelled_requests_that_a_batch_left_undecided_are_not_sent_again() {
    let (inner, batcher) = batcher(Placement::OneServer, false);
    let policy = Policy::new([Limit::per_second(1)]).unwrap();
    let namespace = Namespace::default();
    let enqueue = |user| {
        let subject = keyed(&namespace, &Subject::user(user));
        batcher.enqueue(&check(&subject, &policy, 1), CallKind::Check)
    };
    let solo = enqueue("solo");
    let cancelled = [enqueue("alice"), enqueue("alice"), enqueue("bob")];
    let Enqueued::Queued(live) = enqueue("bob") else { panic!("a call is in flight") };
    while inner.calls.lock().unwrap().is_empty() {
        yield_now().await;
    }
    drop((solo, cancelled));
    inner.waiting.close();
    assert!(live.await.unwrap().is_err());
    while !batcher.lock().subjects.is_empty() {
        yield_now().await;
    }
    assert_eq!(*inner.calls.lock().unwrap(), [(2, 2), (1, 1)], "bob is sent again, with one check");
}

/// Sends two checks of several parts in one call, which is not decided. Drops the first of them
/// before the reply. Returns the reply for the second, and the number of all calls.
async fn check_two_requests_of_parts(is_silent: bool) -> (Result<CallerReply, StoreError>, usize) {
    let (inner, batcher) = batcher(Placement::OneServer, is_silent);
    let policy = Policy::new([Limit::per_second(1)]).unwrap();
    let enqueue = |user| {
        let subjects = [user, "fleet"];
        let subjects = subjects.map(|user| keyed(&Namespace::default(), &Subject::user(user)));
        batcher.enqueue(&check_all(&subjects, &policy, 1), CallKind::Check)
    };
    let _solo = enqueue("solo");
    let cancelled = enqueue("alice");
    let Enqueued::Queued(live) = enqueue("bob") else { panic!("a call is in flight") };
    while inner.calls.lock().unwrap().is_empty() {
        yield_now().await;
    }
    drop(cancelled);
    inner.waiting.close();
    let reply = tokio::time::timeout(Duration::from_secs(5), live).await;
    let reply = reply.expect("the call is bounded").unwrap();
    while batcher.lock().pace.in_flight > 0 {
        yield_now().await;
    }
    let calls = inner.calls.lock().unwrap().len();
    assert_eq!(inner.calls.lock().unwrap()[0], (2, 1), "both requests share a call");
    (reply, calls)
}

#[tokio::test]
async fn a_cancelled_request_of_parts_that_a_batch_left_undecided_is_not_sent_again() {
    let (reply, calls) = check_two_requests_of_parts(false).await;
    assert!(reply.is_err());
    assert_eq!(calls, 2, "the batch, and the live request");
}

#[tokio::test(start_paused = true)]
async fn a_request_of_parts_that_is_sent_again_fails_after_the_response_timeout() {
    let (reply, _) = check_two_requests_of_parts(true).await;
    assert_eq!(reply.err().unwrap().kind(), FailureKind::TimedOut);
}

/// Adds a request of two parts to the list of `group`.
fn add(queue: &mut BatchQueue, group: u16) -> ReplyReceiver {
    let subjects = ["alice", "fleet"].map(Subject::user);
    let subjects = subjects.map(|subject| keyed(&Namespace::default(), &subject));
    let policy = Policy::new([Limit::per_second(1)]).unwrap();
    let (reply, receiver) = oneshot::channel();
    let (request, kind) = (check_all(&subjects, &policy, 1), CallKind::Check);
    queue.add_request(QueuedCall { request, kind, reply }, group);
    receiver
}

/// Otherwise, nothing would send the live request before the next one arrives.
#[test]
fn lists_of_cancelled_requests_do_not_count_as_calls_in_flight() {
    let mut queue = BatchQueue::default();
    queue.pace.max_in_flight = 4;
    for group in 0..4 {
        drop(add(&mut queue, group));
    }
    let _live = add(&mut queue, 4);
    let due = queue.take_due_requests();
    assert_eq!(due.iter().map(|batch| batch.group).collect::<Vec<_>>(), [4]);
    assert_eq!((queue.pace.in_flight, queue.lists.len()), (1, 0));
}

#[test]
fn all_lists_are_due_once_there_is_room_and_none_before() {
    // Fault: with more than four lists, as with a limit for each consumer, requests starved.
    let mut queue = BatchQueue::default();
    queue.pace.max_in_flight = 4;
    let _live: Vec<_> = (0..6).map(|group| add(&mut queue, group)).collect();
    assert_eq!(queue.take_due_requests().len(), 6);
    assert_eq!((queue.pace.in_flight, queue.lists.len()), (6, 0));
    let _later = add(&mut queue, 6);
    assert!(queue.take_due_requests().is_empty());
    queue.pace.in_flight = 3;
    assert_eq!(queue.take_due_requests().len(), 1);
}
