//! Gives back the charges of requests that were denied, or not decided, by another slot.
//!
//! * **Once**: a refund whose result is unknown is not repeated, because the repetition might lower
//!   the count twice. Its units stay charged until they expire.
//! * **Again, if nothing was executed**: while a server cannot be reached, a refund is repeated for
//!   [`RETRY_FOR`] at most.
//! * **Bounded**: at most [`MAX_RETRIES`] tasks repeat refunds.
//! * **Counted and logged**: [`GiveBack::unreturned`] counts the charges that cannot be given back,
//!   and the first of them is logged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use super::calls::{SlotCalls, join_all};
use super::pending::PendingTasks;
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::StoreError;
use crate::observe::{self, Transition};
use crate::store::redis::layer::{Amendment, RequestPart};
use crate::store::{Refund, RefundOf, StoreFuture};

/// The longest time for which a refund is repeated. A fail-over to a replica takes less time.
const RETRY_FOR: Duration = Duration::from_secs(10);

/// The pause before a refund is repeated.
const PAUSE: Duration = Duration::from_millis(50);

/// The maximum number of tasks that repeat refunds.
const MAX_RETRIES: usize = 4_096;

/// If every charge can be given back for this time, the problem counts as solved.
const RECOVERY_PERIOD: Duration = Duration::from_secs(10);

/// Returns the refund of the units that a part was charged beyond `kept`; `None` if there are none.
pub(super) fn owed(part: &RequestPart, decision: &Decision, kept: u64) -> Option<Amendment> {
    let units = decision.charged().saturating_sub(kept);
    let refund = Refund {
        namespace: &part.subject.namespace,
        subject: &part.subject.subject,
        policy: &part.policy,
        charged: decision.at(),
        units,
        of: RefundOf::All,
        uncharged: decision.non_refundable(units),
    };
    (units > 0).then(|| Amendment::refund(part.subject.clone(), &refund))
}

/// Refunds charges. Clones share the counts.
#[derive(Clone)]
pub(super) struct GiveBack<C> {
    calls: C,
    runtime: Handle,
    pending: PendingTasks,
    shared: Arc<Counts>,
}

struct Counts {
    retries: Semaphore,
    unreturned: AtomicU64,
    failing: Transition,
}

impl<C: SlotCalls> GiveBack<C> {
    /// Creates the component. Its tasks run in `runtime`.
    pub(super) fn new(calls: C, runtime: Handle, pending: PendingTasks) -> Self {
        let counts = Counts {
            retries: Semaphore::new(MAX_RETRIES),
            unreturned: AtomicU64::new(0),
            failing: Transition::new(RECOVERY_PERIOD),
        };
        Self { calls, runtime, pending, shared: Arc::new(counts) }
    }

    /// Returns how many charges could not be given back.
    pub(super) fn unreturned(&self) -> u64 {
        self.shared.unreturned.load(Ordering::Relaxed)
    }

    /// Starts a task that refunds these charges. The returned future completes after one attempt to
    /// refund each charge. The task continues even if the future is dropped.
    pub(super) fn start(
        &self,
        owed: Vec<Amendment>,
    ) -> impl Future<Output = ()> + Send + 'static + use<C> {
        let (tried, all_tried) = oneshot::channel::<()>();
        if !owed.is_empty() {
            let (this, task) = (self.clone(), self.pending.begin());
            self.runtime.spawn(async move {
                let results = join_all(owed.iter().map(|owed| this.refund(owed)).collect()).await;
                drop(tried);
                for (owed, result) in owed.into_iter().zip(results) {
                    this.conclude(owed, result);
                }
                drop(task);
            });
        }
        async move {
            // The sender sends nothing. It is dropped after one attempt to refund each charge.
            let _ = all_tried.await;
        }
    }

    fn refund(&self, owed: &Amendment) -> StoreFuture<()> {
        if owed.is_empty() {
            return MaybeReady::ready(Ok(()));
        }
        self.calls.amend(owed.clone()).map(|reply| reply.map(drop))
    }

    /// Records the result of the first attempt. Starts a task that repeats the refund if nothing
    /// was executed.
    fn conclude(&self, owed: Amendment, result: Result<(), StoreError>) {
        let Err(error) = result else { return self.succeeded() };
        if !error.has_executed_nothing() || self.shared.retries.available_permits() == 0 {
            return self.failed(&error);
        }
        let (this, task) = (self.clone(), self.pending.begin());
        self.runtime.spawn(async move {
            let _task = task;
            let Ok(_permit) = this.shared.retries.try_acquire() else { return this.failed(&error) };
            match this.repeat(&owed, error).await {
                Ok(()) => this.succeeded(),
                Err(error) => this.failed(&error),
            }
        });
    }

    /// Repeats a refund while nothing was executed, for [`RETRY_FOR`] at most.
    async fn repeat(&self, owed: &Amendment, mut error: StoreError) -> Result<(), StoreError> {
        let begun = Instant::now();
        while error.has_executed_nothing() && begun.elapsed() < RETRY_FOR {
            pause().await;
            match self.refund(owed).await {
                Ok(()) => return Ok(()),
                Err(again) => error = again,
            }
        }
        Err(error)
    }

    fn succeeded(&self) {
        if let Some(ended) = self.shared.failing.ended() {
            observe::give_back_recovered(self.calls.label(), ended);
        }
    }

    /// Counts a charge that could not be given back, and so stays until it expires.
    fn failed(&self, error: &StoreError) {
        self.shared.unreturned.fetch_add(1, Ordering::Relaxed);
        if self.shared.failing.occurred() {
            observe::give_back_failed(self.calls.label(), error);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "no event marks the time at which a server can be reached"
)]
async fn pause() {
    tokio::time::sleep(PAUSE).await;
}
