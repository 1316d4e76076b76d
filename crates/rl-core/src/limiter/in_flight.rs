//! The decisions of a limiter that wait for a store.
//!
//! A store with servers of its own keeps the [load](ServerLoad) of each of them, which bounds the
//! decisions in flight and judges those that time out. For other stores, the limiter keeps one.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout, timeout_at};

use crate::maybe_ready::MaybeReady;
use crate::model::{FailureKind, StoreError};
use crate::store::{
    CallBounds, DecideRequest, FullServer, ServerLoad, ServerLoads, ServerSlots, Store, StoreFuture,
};

/// The number of times that a task yields if its timer has fired late. A reply takes fewer steps
/// from the socket to the task.
const YIELDS: usize = 8;

/// A timer that fires later than this shows that the process gets too little CPU time.
const LATE_TIMER: Duration = Duration::from_millis(3);

/// The longest time that a late task waits for the runtime of the store, which may be blocked.
const LONGEST_CATCH_UP: Duration = Duration::from_millis(20);

/// The decisions that wait for a store.
#[derive(Debug)]
pub(super) struct InFlight {
    waiting: Arc<AtomicUsize>,
    bounds: CallBounds,
    /// The load of a store that does not report the loads of its servers.
    of_store: Arc<ServerLoad>,
    origin: Instant,
}

/// A decision that waits for a store, until this value is dropped.
#[derive(Debug)]
pub(super) struct WaitingDecision {
    slots: ServerSlots,
    _counted: WaitingUnit,
}

/// A unit of [`InFlight::waiting`].
#[derive(Debug)]
struct WaitingUnit(Arc<AtomicUsize>);

impl Drop for WaitingUnit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl InFlight {
    pub(super) fn new(max_in_flight: usize, deadline: Duration) -> Arc<Self> {
        Arc::new(Self {
            waiting: Arc::default(),
            bounds: CallBounds { max_in_flight, deadline },
            of_store: Arc::new(ServerLoad::of_decisions()),
            origin: Instant::now(),
        })
    }

    /// Returns the number of decisions that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns the number of decisions that wait, and the number that may wait on one server.
    pub(super) fn figures(&self) -> (usize, usize) {
        (self.waiting(), self.bounds.max_in_flight)
    }

    /// Returns the loads of the servers that decide `request`.
    pub(super) fn loads<'a>(
        &'a self,
        store: &'a dyn Store,
        request: &DecideRequest<'_>,
    ) -> ServerLoads<'a> {
        let loads = store.server_loads(request);
        if loads.is_empty() { (&self.of_store).into() } else { loads }
    }

    /// Returns a refusal if too many decisions are in flight on a server.
    pub(super) fn refusal(&self, loads: &ServerLoads<'_>) -> Option<FullServer> {
        loads.refusal(self.bounds)
    }

    /// Takes a slot on each server, and counts the decision as waiting.
    ///
    /// # Errors
    ///
    /// Returns a refusal if too many decisions are in flight on a server.
    pub(super) fn enter(&self, loads: &ServerLoads<'_>) -> Result<WaitingDecision, FullServer> {
        let slots = loads.enter(self.bounds)?;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Ok(WaitingDecision { slots, _counted: WaitingUnit(Arc::clone(&self.waiting)) })
    }

    /// Counts a pending result as waiting until it is ready. Fails as overloaded if too many wait.
    pub(super) fn limit<T: Send + 'static>(&self, result: StoreFuture<T>) -> StoreFuture<T> {
        match result {
            MaybeReady::Boxed(pending) => match self.enter(&(&self.of_store).into()) {
                Ok(waiting) => MaybeReady::later(async move {
                    let result = pending.await;
                    drop(waiting);
                    result
                }),
                Err(_) => MaybeReady::ready(Err(StoreError::new(FailureKind::Overloaded))),
            },
            ready => ready,
        }
    }

    /// Returns the microseconds from the creation of the limiter to `at`.
    pub(super) fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.duration_since(self.origin).as_micros()).unwrap_or(u64::MAX)
    }
}

impl WaitingDecision {
    /// Returns the time at which the decision was sent.
    pub(super) const fn sent_at(&self) -> Instant {
        self.slots.sent_at()
    }

    /// Waits for the result of the decision as [`wait_until`] does. If the timer has fired late,
    /// also waits until the store has read the replies that have arrived.
    pub(super) async fn wait_until<T>(
        &self,
        deadline: Instant,
        result: impl Future<Output = T>,
    ) -> Option<T> {
        wait_and_catch_up(deadline, result, self.slots.runtimes()).await
    }

    /// Records that the decision was made.
    pub(super) fn finish(self) {
        self.slots.finish();
    }

    /// Records that the decision was not made within `deadline`, and returns the kind of failure:
    /// [`TimedOut`](FailureKind::TimedOut) because of an outage, or
    /// [`Overloaded`](FailureKind::Overloaded).
    pub(super) fn record_timeout(&self, deadline: Duration) -> FailureKind {
        self.slots.record_timeout(deadline)
    }

    /// Releases the slots of a failed decision. Returns whether a server answers that this decision
    /// does not need.
    pub(super) fn release(self) -> bool {
        self.slots.has_other_server()
    }

    /// Returns the decisions in flight on the server that has the most, and their bound.
    pub(super) fn figures(&self) -> (usize, usize) {
        self.slots.figures()
    }
}

/// Waits for a result until `deadline`. Returns `None` if it is not ready by then.
///
/// If this process gets too little CPU time, replies may wait in the socket at the deadline. So the
/// task yields before it gives up, and the sockets are read. If the timer has fired late, the task
/// yields so often that a reply can pass through all tasks between the socket and the caller.
pub(super) async fn wait_until<T>(deadline: Instant, result: impl Future<Output = T>) -> Option<T> {
    wait_and_catch_up(deadline, result, std::iter::empty()).await
}

/// Waits as [`wait_until`] does. If the timer has fired late, these runtimes read their sockets
/// too.
async fn wait_and_catch_up<'a, T>(
    deadline: Instant,
    result: impl Future<Output = T>,
    runtimes: impl Iterator<Item = &'a Handle>,
) -> Option<T> {
    let mut result = pin!(result);
    if let Ok(result) = timeout_at(deadline, result.as_mut()).await {
        return Some(result);
    }
    let is_late = deadline.elapsed() > LATE_TIMER;
    if is_late {
        catch_up(runtimes).await;
    }
    for _ in 0..if is_late { YIELDS } else { 1 } {
        yield_now().await;
        let polled = poll_fn(|cx| Poll::Ready(result.as_mut().poll(cx))).await;
        if let Poll::Ready(result) = polled {
            return Some(result);
        }
    }
    None
}

/// Waits until these runtimes have read what has arrived at their sockets, unless that takes too
/// long. The current runtime is left out.
async fn catch_up(runtimes: impl Iterator<Item = &Handle>) {
    let here = Handle::try_current().ok().map(|here| here.id());
    let others = runtimes.filter(|runtime| Some(runtime.id()) != here);
    let tasks: SmallVec<[_; 1]> = others.map(|runtime| runtime.spawn(read_sockets())).collect();
    let _ = timeout(LONGEST_CATCH_UP, async {
        for task in tasks {
            let _ = task.await;
        }
    })
    .await;
}

/// Waits until the current runtime has read its sockets, and its tasks have seen the replies.
async fn read_sockets() {
    // The runtime fires this timer only after it has polled its sockets and woken the tasks that
    // read them. Another thread may run this task before those tasks, and they wake further tasks.
    // So this task yields several times.
    let _ = timeout_at(Instant::now(), pending::<()>()).await;
    for _ in 0..YIELDS {
        yield_now().await;
    }
}
