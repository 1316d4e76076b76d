//! A store whose decisions are made by the test.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rl_core::store::{
    DecideRequest, LeaseStatus, Outcome, Renewal, Reset, Settlement, Store, StoreFuture,
};
use rl_core::time::Timestamp;
use rl_core::{Decision, Limit, MaybeReady, RateLimiter};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::GIVE_UP;

/// A store that replies only when the test permits it, like a slow server.
#[derive(Clone, Default)]
pub(super) struct ScriptedStore(Arc<Mutex<VecDeque<Question>>>);

struct Question {
    granted: Decision,
    denied: Decision,
    answer: oneshot::Sender<Decision>,
}

impl ScriptedStore {
    /// Returns a limiter on this store, with a very long deadline.
    pub(super) fn limiter(&self) -> RateLimiter {
        let builder = RateLimiter::builder().limit(Limit::per_minute(10)).store(self.clone());
        builder.deadline(Duration::from_secs(86_400)).build().unwrap()
    }

    /// Returns the number of unanswered requests, including cancelled ones.
    pub(super) fn asked(&self) -> usize {
        self.questions().len()
    }

    /// Allows the oldest request. Returns whether its caller is still waiting.
    pub(super) fn grant(&self) -> bool {
        let Question { granted, answer, .. } = self.next();
        answer.send(granted).is_ok()
    }

    /// Denies the oldest request. Returns whether its caller is still waiting.
    pub(super) fn deny(&self) -> bool {
        let Question { denied, answer, .. } = self.next();
        answer.send(denied).is_ok()
    }

    /// Waits until the store is called.
    pub(super) async fn is_asked(&self) {
        let asked = async {
            while self.asked() == 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(GIVE_UP, asked).await.expect("a question");
    }

    /// Takes the oldest request from the queue, and waits until its caller has cancelled it.
    pub(super) async fn is_given_up(&self) {
        let mut question = self.next();
        timeout(GIVE_UP, question.answer.closed()).await.expect("the caller stops waiting");
    }

    fn next(&self) -> Question {
        self.questions().pop_front().expect("a request was expected")
    }

    fn questions(&self) -> MutexGuard<'_, VecDeque<Question>> {
        self.0.lock().unwrap()
    }
}

impl Store for ScriptedStore {
    fn decide(&self, request: DecideRequest<'_>) -> StoreFuture<Decision> {
        let part = request.sole_part().unwrap();
        let decision = |taken, outcome| {
            let (policy, now) = (part.policy.clone(), Timestamp::EPOCH);
            Decision::decided(policy, part.cost, taken, now, [outcome])
        };
        let (answer, receiver) = oneshot::channel();
        self.questions().push_back(Question {
            granted: decision(1, Outcome::granted(1, 60_000_000)),
            denied: decision(0, Outcome::denied(10, 60_000_000, 60_000_000)),
            answer,
        });
        MaybeReady::later(async move { Ok(receiver.await.expect("the test answers")) })
    }

    fn settle(&self, _: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        unreachable!("no test refunds units")
    }

    fn renew(&self, _: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        unreachable!("no test holds a permit")
    }

    fn reset(&self, _: &[Reset<'_>]) -> StoreFuture<()> {
        unreachable!("no test resets a subject")
    }
}

impl fmt::Debug for ScriptedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptedStore")
    }
}
