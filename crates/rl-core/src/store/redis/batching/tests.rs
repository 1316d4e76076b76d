//! Tests of batches of single subjects.

use tokio::sync::Semaphore;

use super::*;
use crate::model::{FailureKind, Limit, Subject};
use crate::store::redis::test_layer::keyed;
use crate::store::{Namespace, Refund};

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

#[tokio::test]
async fn cancelled_requests_that_a_batch_left_undecided_are_not_sent_again() {
    let (calls, waiting) = (Arc::default(), Arc::new(Semaphore::new(0)));
    let inner = Undecided { calls, waiting };
    let (placement, response_timeout) = (Placement::OneServer, Duration::from_millis(500));
    let settings = BatchSettings { is_enabled: true, placement, response_timeout };
    let batcher = Batcher::new(inner.clone(), settings);
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
