//! Queues of requests that wait for capacity, one for each subject.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::counters::Counters;
use crate::model::Subject;
use crate::store::Namespace;

/// The wait queues of a limiter. A subject without waiting requests has no queue.
#[derive(Debug)]
pub(super) struct WaitQueues {
    /// The namespace of the limiter.
    namespace: Namespace,
    queues: Mutex<Queues>,
    // The number of requests that wait, so that a release takes no lock if there are none. A
    // request that was denied by a concurrency limit is checked again after it has entered the
    // queue, so it misses no release.
    waiting: AtomicUsize,
}

type QueueBySubject = HashMap<Subject, WaitQueue>;

#[derive(Debug, Default)]
struct Queues {
    own: QueueBySubject,
    /// The queues of subjects that are counted in other namespaces than the limiter's own.
    of_rules: HashMap<Namespace, QueueBySubject>,
}

impl Queues {
    fn get(&self, Counters { namespace, subject }: Counters<'_>) -> Option<&WaitQueue> {
        match namespace {
            None => self.own.get(subject),
            Some(namespace) => self.of_rules.get(namespace)?.get(subject),
        }
    }
}

#[derive(Debug)]
struct WaitQueue {
    // The request at the head of the queue holds the only permit of this semaphore. A tokio
    // semaphore serves those that wait in the order in which they came.
    head: Arc<Semaphore>,
    // Notified when a place under a concurrency limit is freed.
    released: Arc<Notify>,
    waiting: usize,
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self { head: Arc::new(Semaphore::new(1)), released: Arc::default(), waiting: 0 }
    }
}

/// A position in a wait queue. A request that drops its ticket leaves the queue.
pub(super) struct QueueTicket<'a> {
    queues: &'a WaitQueues,
    counters: Counters<'a>,
    head: Arc<Semaphore>,
    released: Arc<Notify>,
}

impl WaitQueues {
    /// Creates the wait queues of a limiter that counts in `namespace`.
    pub(super) fn new(namespace: &Namespace) -> Self {
        let (queues, waiting) = (Mutex::default(), AtomicUsize::new(0));
        Self { namespace: namespace.clone(), queues, waiting }
    }

    /// Returns the counters without their namespace if that is the limiter's own. A subject then
    /// has one queue, whether its namespace is given or not.
    fn normalize<'a>(&self, counters: Counters<'a>) -> Counters<'a> {
        let namespace = counters.namespace.filter(|namespace| **namespace != self.namespace);
        Counters { namespace, ..counters }
    }

    /// Returns whether requests of a subject wait.
    pub(super) fn has_waiting(&self, counters: Counters<'_>) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
            && self.lock().get(self.normalize(counters)).is_some()
    }

    /// Returns the number of requests that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns whether no requests wait.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let queues = self.lock();
        queues.own.is_empty() && queues.of_rules.is_empty()
    }

    /// Wakes the request at the head of the subject's queue, because a place has been freed.
    pub(super) fn notify_released(&self, counters: Counters<'_>) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        if let Some(queue) = self.lock().get(self.normalize(counters)) {
            queue.released.notify_one();
        }
    }

    /// Enters the end of the subject's queue. Returns `None` if `max_waiting` requests wait in it
    /// already.
    pub(super) fn enter<'a>(
        &'a self,
        counters: Counters<'a>,
        max_waiting: usize,
    ) -> Option<QueueTicket<'a>> {
        let counters = self.normalize(counters);
        let mut queues = self.lock();
        if queues.get(counters).map_or(0, |queue| queue.waiting) >= max_waiting {
            return None;
        }
        let by_subject = match counters.namespace {
            None => &mut queues.own,
            Some(namespace) => queues.of_rules.entry(namespace.clone()).or_default(),
        };
        let queue = by_subject.entry(counters.subject.clone()).or_default();
        queue.waiting += 1;
        let (head, released) = (Arc::clone(&queue.head), Arc::clone(&queue.released));
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Some(QueueTicket { queues: self, counters, head, released })
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueTicket<'_> {
    /// Makes the request the head of the queue until the returned value is dropped. Returns `None`
    /// if another request is the head.
    pub(super) fn try_take_head(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.head).try_acquire_owned().ok()
    }

    /// Waits until the request is at the head of the queue.
    pub(super) async fn take_head(&self) -> OwnedSemaphorePermit {
        let head = Arc::clone(&self.head).acquire_owned().await;
        head.expect("the semaphore of a queue is never closed")
    }

    /// Waits until a place under a concurrency limit is freed.
    pub(super) async fn released(&self) {
        self.released.notified().await;
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        let Counters { namespace, subject } = self.counters;
        let mut queues = self.queues.lock();
        self.queues.waiting.fetch_sub(1, Ordering::SeqCst);
        match namespace {
            None => leave(&mut queues.own, subject),
            Some(namespace) => {
                if let Some(by_subject) = queues.of_rules.get_mut(namespace) {
                    leave(by_subject, subject);
                    if by_subject.is_empty() {
                        queues.of_rules.remove(namespace);
                    }
                }
            }
        }
    }
}

/// Removes one waiting request from the queue of `subject`.
fn leave(queues: &mut QueueBySubject, subject: &Subject) {
    if let Some(queue) = queues.get_mut(subject) {
        queue.waiting -= 1;
        if queue.waiting == 0 {
            queues.remove(subject);
        }
    }
}
