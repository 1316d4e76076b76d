//! Gives charges back: runs the calls that release places, refund units and settle charges.
//!
//! * **Completed**: a call runs in a task of its own, also if its caller does not wait for it.
//! * **Once**: if the result of a call is unknown, the call is not repeated, because the repetition
//!   might lower a count twice. Its units stay charged until they expire.
//! * **Again, if nothing was executed**: while a server cannot be reached, is full, or is a
//!   replica, a call is repeated for [`REPEAT_FOR`] at most.
//! * **Bounded**: at most [`MAX_REPEATED`] calls are repeated at the same time, with pauses that
//!   grow from [`FIRST_PAUSE`] to [`LONGEST_PAUSE`].
//! * **Counted and logged**: [`GiveBack::unreturned`] counts the calls that failed for good, and
//!   the first of them is logged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{Instant, timeout};

use super::layer::runtime_has_ended;
use crate::maybe_ready::MaybeReady;
use crate::model::{FailureKind, StoreError};
use crate::observe::{self, Transition};
use crate::store::StoreFuture;

/// The longest time for which a call is repeated. A restart, or a fail-over to a replica, takes
/// less time.
pub(super) const REPEAT_FOR: Duration = Duration::from_secs(60);

/// The pause before a call is repeated for the first time. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause, and so about the longest time between the end of a fault and the repetition.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The maximum number of calls that are repeated at the same time.
const MAX_REPEATED: usize = 16_384;

/// The longest time for which a command waits while only some of its keys have been migrated. A
/// call may take this much longer than the response timeout. After a timeout it would not be
/// repeated, because the server may have executed it.
const LONGEST_MIGRATION: Duration = Duration::from_secs(1);

/// If every charge can be given back for this time, the problem counts as solved.
const RECOVERY_PERIOD: Duration = Duration::from_secs(10);

/// Gives charges back. Clones share their state.
#[derive(Clone)]
pub(super) struct GiveBack {
    shared: Arc<GiveBackShared>,
}

struct GiveBackShared {
    /// The store and its server, for the log.
    label: String,
    /// The longest time that one attempt may take. The calls outlive the deadline of the request,
    /// so they need a bound of their own.
    attempt_timeout: Duration,
    runtime: Handle,
    pending: PendingTasks,
    repeated: Semaphore,
    unreturned: AtomicU64,
    failing: Transition,
}

impl GiveBack {
    /// Creates the component. Its tasks run in the current runtime.
    pub(super) fn new(label: &str, response_timeout: Duration) -> Self {
        let shared = GiveBackShared {
            label: label.to_owned(),
            attempt_timeout: response_timeout + LONGEST_MIGRATION,
            runtime: Handle::current(),
            pending: PendingTasks::new(),
            repeated: Semaphore::new(MAX_REPEATED),
            unreturned: AtomicU64::new(0),
            failing: Transition::new(RECOVERY_PERIOD),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns how many calls have failed for good.
    pub(super) fn unreturned(&self) -> u64 {
        self.shared.unreturned.load(Ordering::Relaxed)
    }

    /// Counts a task that may have charges to give back, until the result is dropped.
    /// [`finish`](Self::finish) waits for it.
    pub(super) fn begin_task(&self) -> PendingTask {
        self.shared.pending.begin()
    }

    /// Waits until no charge is to be given back, and no task of [`begin_task`](Self::begin_task)
    /// runs.
    pub(super) async fn finish(&self) {
        self.shared.pending.wait().await;
    }

    /// Starts a call, and repeats it in a task while nothing was executed. Resolves to the result
    /// of the first attempt. The task continues even if the returned future is dropped.
    pub(super) fn run<T: Send + 'static>(
        &self,
        call: impl Fn() -> StoreFuture<T> + Send + 'static,
    ) -> StoreFuture<T> {
        let first = match call() {
            MaybeReady::Boxed(first) => MaybeReady::Boxed(first),
            ready => return ready,
        };
        let (reply, received) = oneshot::channel();
        let (this, task) = (self.clone(), self.begin_task());
        self.shared.runtime.spawn(async move {
            let _task = task;
            let result = this.attempt(first).await;
            let first = result.as_ref().map(|_| ()).map_err(StoreError::again);
            // An error means that the caller does not wait for the result.
            let _ = reply.send(result);
            this.count_result(this.repeat(call, first).await);
        });
        MaybeReady::later(
            async move { received.await.unwrap_or_else(|_| Err(runtime_has_ended())) },
        )
    }

    async fn attempt<T>(&self, call: StoreFuture<T>) -> Result<T, StoreError> {
        timeout(self.shared.attempt_timeout, call).await.unwrap_or_else(|_| Err(late()))
    }

    /// Repeats a call while nothing was executed, for [`REPEAT_FOR`] at most. `result` is that of
    /// the first attempt.
    async fn repeat<T>(
        &self,
        call: impl Fn() -> StoreFuture<T>,
        mut result: Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let Ok(_repeated) = self.shared.repeated.try_acquire() else { return result };
        let (begun, mut pause) = (Instant::now(), FIRST_PAUSE);
        while result.as_ref().is_err_and(StoreError::has_executed_nothing)
            && begun.elapsed() < REPEAT_FOR
        {
            sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
            result = self.attempt(call()).await.map(drop);
        }
        result
    }

    /// Counts and logs the failure of a call that is not repeated any more. Its charge stays until
    /// it expires.
    fn count_result(&self, result: Result<(), StoreError>) {
        let GiveBackShared { label, unreturned, failing, .. } = &*self.shared;
        match result {
            Err(error) => {
                unreturned.fetch_add(1, Ordering::Relaxed);
                if failing.occurred() {
                    observe::give_back_failed(label, &error);
                }
            }
            Ok(()) => {
                if let Some(ended) = failing.ended() {
                    observe::give_back_recovered(label, ended);
                }
            }
        }
    }
}

const fn late() -> StoreError {
    StoreError::new(FailureKind::TimedOut)
}

#[expect(
    clippy::disallowed_methods,
    reason = "no event marks the time at which a server executes writes again"
)]
async fn sleep(pause: Duration) {
    tokio::time::sleep(pause).await;
}

/// The tasks that have begun and not ended. Clones share the number.
#[derive(Clone)]
struct PendingTasks(Arc<watch::Sender<usize>>);

/// A task that has begun. It ends when this is dropped.
pub(super) struct PendingTask(PendingTasks);

impl PendingTasks {
    fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    /// Counts a task until the result is dropped.
    fn begin(&self) -> PendingTask {
        self.0.send_modify(|pending| *pending += 1);
        PendingTask(self.clone())
    }

    /// Waits until no task is pending.
    async fn wait(&self) {
        // An error would mean that the sender was dropped, but `self` holds it.
        let _ = self.0.subscribe().wait_for(|pending| *pending == 0).await;
    }
}

impl Drop for PendingTask {
    fn drop(&mut self) {
        self.0.0.send_modify(|pending| *pending -= 1);
    }
}
