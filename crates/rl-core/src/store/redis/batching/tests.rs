//! Tests of batches of single subjects.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tokio::sync::Semaphore;

use super::*;
use crate::model::{FailureKind, Limit, Subject};
use crate::store::redis::test_layer::keyed;
use crate::store::{Layout, Namespace, Refund};

/// A server that decides no call.
#[derive(Clone)]
struct Undecided {
    /// The number of subjects of each call, and the number of checks of each subject.
    calls: Arc<Mutex<Vec<(usize, u16)>>>,
    /// The server replies as soon as this is closed.
    waiting: Arc<Semaphore>,
}

impl Execute for Undecided {
    async fn execute(&self, call: &DecideCall<'_>) -> Result<Vec<Option<ScriptReply>>, StoreError> {
        let CallCosts::Same { calls, .. } = call.costs else { panic!("the costs differ") };
        self.calls.lock().unwrap().push((call.subjects.len(), calls));
        assert!(self.waiting.acquire().await.is_err());
        Ok(vec![None; call.subjects.len()])
    }

    async fn refund(&self, _: &[Refund<'_>]) -> Result<Vec<u8>, StoreError> {
        Err(StoreError::new(FailureKind::Unavailable))
    }
}

impl Layer for Undecided {
    fn decide(&self, _: PartRequest<'_>) -> StoreFuture<Decision> {
        MaybeReady::ready(Err(StoreError::new(FailureKind::Unavailable)))
    }

    fn lease(&self, _: LeaseRequest<'_>) -> StoreFuture<ScriptReply> {
        MaybeReady::ready(Err(StoreError::new(FailureKind::Unavailable)))
    }

    fn amend(&self, _: Amendment<'_>) -> StoreFuture<Vec<u8>> {
        MaybeReady::ready(Err(StoreError::new(FailureKind::Unavailable)))
    }
}

fn batcher(placement: Placement) -> (Undecided, Batcher<Undecided>) {
    let (calls, waiting) = (Arc::default(), Arc::new(Semaphore::new(0)));
    let inner = Undecided { calls, waiting };
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
    let (inner, batcher) = batcher(placement);
    inner.waiting.close();
    let policy = Policy::new([Limit::per_second(1)]).unwrap();
    let enqueue =
        |user| batcher.enqueue(keyed(&namespace, user), &policy, CallKind::Check(Cost::ONE));
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
    let (inner, batcher) = batcher(Placement::OneServer);
    let policy = Policy::new([Limit::per_second(1)]).unwrap();
    let namespace = Namespace::default();
    let enqueue = |user| {
        let subject = Subject::user(user);
        let check = CallKind::Check(Cost::ONE);
        batcher.enqueue(keyed(&namespace, &subject), &policy, check)
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
