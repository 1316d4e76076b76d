//! The task that flushes the queue of a batcher, the guards of its calls in flight, and the turn to
//! wake callers. All batchers share this code.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::model::{FailureKind, StoreError};

/// Sends the calls of a queue in batches. Clones share the queue.
pub(crate) trait Flush: Clone + Send + Sync + 'static {
    type Queue: Queue;

    fn queue(&self) -> &SharedQueue<Self::Queue>;

    /// Sends the calls that are due.
    fn flush(&self, queue: MutexGuard<'_, Self::Queue>);

    fn lock(&self) -> MutexGuard<'_, Self::Queue> {
        self.queue().calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spawns a task in the runtime of the queue.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.queue().runtime.spawn(task);
    }

    /// Spawns a task that flushes the queue, if calls are due and no such task is pending.
    ///
    /// The task runs after the tasks that are ready now, so the flush includes their calls.
    fn flush_soon(&self, mut queue: MutexGuard<'_, Self::Queue>) {
        if !queue.is_due() || std::mem::replace(&mut queue.pace().is_flushing, true) {
            return;
        }
        // Release the lock before the spawn: a runtime that has shut down drops the task at once,
        // and the drop locks the queue.
        drop(queue);
        let mut task = FlushTask(Some(self.clone()));
        self.spawn(async move {
            if let Some(batcher) = task.0.take() {
                let mut queue = batcher.lock();
                queue.pace().is_flushing = false;
                batcher.flush(queue);
            }
        });
    }
}

/// A queue, and the runtime in which the tasks of its batcher run.
pub(crate) struct SharedQueue<Q> {
    calls: Mutex<Q>,
    runtime: Handle,
}

impl<Q: Queue + Default> SharedQueue<Q> {
    /// Creates an empty queue in the current runtime.
    pub(super) fn new(max_in_flight: usize) -> Self {
        let mut calls = Q::default();
        calls.pace().max_in_flight = max_in_flight;
        Self { calls: Mutex::new(calls), runtime: Handle::current() }
    }
}

/// Calls that wait to be sent.
pub(crate) trait Queue: Send + 'static {
    fn pace(&mut self) -> &mut Pace;

    /// Returns whether a flush would send a call.
    fn is_due(&self) -> bool;

    /// Drops the calls that a flush would send. They fail.
    fn discard(&mut self);
}

/// The calls in flight of a batcher, and the tasks that are about to send or to wake.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// The largest number of calls in flight. Further calls are collected until one of them
    /// returns.
    pub(super) max_in_flight: usize,
    /// The number of calls in flight that are not overdue.
    pub(super) in_flight: usize,
    /// Whether a task is about to flush the queue.
    is_flushing: bool,
    /// Whether a task is waking the callers of a batch.
    is_delivering: bool,
    /// Whether a call is in flight that was sent without the queue.
    pub(super) has_solo: bool,
}

impl Pace {
    /// Returns whether another call may be in flight.
    pub(super) const fn has_room(&self) -> bool {
        self.in_flight < self.max_in_flight
    }
}

/// The task that flushes the queue. If its runtime shuts down before it runs, the calls that are
/// due are dropped, and fail.
struct FlushTask<B: Flush>(Option<B>);

impl<B: Flush> Drop for FlushTask<B> {
    fn drop(&mut self) {
        let Some(batcher) = self.0.take() else { return };
        let mut queue = batcher.lock();
        queue.pace().is_flushing = false;
        queue.discard();
    }
}

/// Marks a call in flight that was sent without the queue.
pub(crate) struct Solo<B: Flush>(pub(super) B);

impl<B: Flush> Drop for Solo<B> {
    fn drop(&mut self) {
        self.0.lock().pace().has_solo = false;
    }
}

/// A call in flight. When this is dropped, calls that wait can be sent.
pub(super) struct CallInFlight<B: Flush> {
    pub(super) batcher: B,
    /// Whether the call counts in [`Pace::in_flight`].
    pub(super) is_counted: bool,
}

impl<B: Flush> CallInFlight<B> {
    /// Stops counting this call, although it may have no reply yet.
    pub(super) fn stop_counting(&mut self) {
        if std::mem::take(&mut self.is_counted) {
            let mut queue = self.batcher.lock();
            queue.pace().in_flight -= 1;
            self.batcher.flush_soon(queue);
        }
    }
}

impl<B: Flush> Drop for CallInFlight<B> {
    fn drop(&mut self) {
        self.stop_counting();
    }
}

/// The turn of a task to wake callers. See [Pacing](super#pacing).
pub(super) struct DeliveryTurn {
    is_first: bool,
}

impl DeliveryTurn {
    /// Yields if another task is waking callers, so that those callers can enqueue their next
    /// requests first.
    pub(super) async fn take(batcher: &impl Flush) -> Self {
        let is_first = !std::mem::replace(&mut batcher.lock().pace().is_delivering, true);
        if !is_first {
            yield_now().await;
        }
        Self { is_first }
    }

    pub(super) async fn end(self, batcher: &impl Flush) {
        if self.is_first {
            yield_now().await;
            batcher.lock().pace().is_delivering = false;
        }
    }
}

/// The time after which a call without a reply is overdue, so that requests no longer wait for it.
const OVERDUE: Duration = Duration::from_millis(5);

/// Waits for the reply to a call, at most for the time `most`. Runs `overdue` as soon as
/// `OVERDUE` has passed without a reply.
pub(super) async fn within_timeout<T>(
    call: impl Future<Output = Result<T, StoreError>>,
    most: Duration,
    overdue: impl FnOnce(),
) -> Result<T, StoreError> {
    let mut call = pin!(call);
    if let Ok(reply) = timeout(OVERDUE, call.as_mut()).await {
        return reply;
    }
    overdue();
    let reply = timeout(most.saturating_sub(OVERDUE), call).await;
    reply.unwrap_or_else(|_| Err(StoreError::new(FailureKind::TimedOut)))
}
