//! Queues of requests that wait for capacity, one for each subject.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::parts::CounterKey;
use crate::model::Subject;
use crate::store::Namespace;

/// The wait queues of a limiter. A subject without waiting requests has no queue.
#[derive(Debug)]
pub(super) struct WaitQueues {
    /// The namespace of the limiter.
    namespace: Namespace,
    queues: Mutex<HashMap<QueueKey, WaitQueue>>,
    // The number of requests that wait, so that a release takes no lock if there are none. A
    // request that was denied by a concurrency limit is checked again after it has entered the
    // queue, so it misses no release.
    waiting: AtomicUsize,
}

/// A subject, and the namespace in which it is counted.
type QueueKey = (Namespace, Subject);

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
    key: QueueKey,
    head: Arc<Semaphore>,
    released: Arc<Notify>,
}

impl WaitQueues {
    /// Creates the wait queues of a limiter that counts in `namespace`.
    pub(super) fn new(namespace: &Namespace) -> Self {
        let (queues, waiting) = (Mutex::default(), AtomicUsize::new(0));
        Self { namespace: namespace.clone(), queues, waiting }
    }

    fn key(&self, CounterKey { namespace, subject }: CounterKey<'_>) -> QueueKey {
        (namespace.unwrap_or(&self.namespace).clone(), subject.clone())
    }

    /// Returns whether requests of a subject wait.
    pub(super) fn has_waiting(&self, counters: CounterKey<'_>) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0 && self.lock().contains_key(&self.key(counters))
    }

    /// Returns the number of requests that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns whether no requests wait.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Wakes the request at the head of the subject's queue, because a place has been freed.
    pub(super) fn notify_released(&self, counters: CounterKey<'_>) {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        if let Some(queue) = self.lock().get(&self.key(counters)) {
            queue.released.notify_one();
        }
    }

    /// Enters the end of the subject's queue. Returns `None` if `max_waiting` requests wait in it
    /// already.
    pub(super) fn enter(
        &self,
        counters: CounterKey<'_>,
        max_waiting: usize,
    ) -> Option<QueueTicket<'_>> {
        let key = self.key(counters);
        let mut queues = self.lock();
        if queues.get(&key).map_or(0, |queue| queue.waiting) >= max_waiting {
            return None;
        }
        let queue = queues.entry(key.clone()).or_default();
        queue.waiting += 1;
        let (head, released) = (Arc::clone(&queue.head), Arc::clone(&queue.released));
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Some(QueueTicket { queues: self, key, head, released })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueKey, WaitQueue>> {
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
        let mut queues = self.queues.lock();
        self.queues.waiting.fetch_sub(1, Ordering::SeqCst);
        if let Some(queue) = queues.get_mut(&self.key) {
            queue.waiting -= 1;
            if queue.waiting == 0 {
                queues.remove(&self.key);
            }
        }
    }
}
