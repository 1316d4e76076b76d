//! Queues of requests that wait for capacity, one for each subject.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::model::Subject;

/// The wait queues of a limiter. A subject without waiting requests has no queue.
#[derive(Debug, Default)]
pub(super) struct WaitQueues(Mutex<HashMap<Subject, WaitQueue>>);

#[derive(Debug)]
struct WaitQueue {
    // The request at the head of the queue holds the only permit. A tokio semaphore grants permits
    // in order.
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

/// A place in a wait queue. Dropping the ticket gives the place up.
pub(super) struct QueueTicket<'a> {
    queues: &'a WaitQueues,
    subject: &'a Subject,
    head: Arc<Semaphore>,
    released: Arc<Notify>,
}

impl WaitQueues {
    /// Returns whether requests of `subject` wait.
    pub(super) fn has_waiting(&self, subject: &Subject) -> bool {
        self.lock().contains_key(subject)
    }

    /// Returns whether no requests wait.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Wakes the request at the head of the subject's queue, because a place has been freed.
    pub(super) fn notify_released(&self, subject: &Subject) {
        if let Some(queue) = self.lock().get(subject) {
            queue.released.notify_one();
        }
    }

    /// Enters the end of the subject's queue. Returns `None` if `max_waiting` requests wait in it already.
    pub(super) fn enter<'a>(
        &'a self,
        subject: &'a Subject,
        max_waiting: usize,
    ) -> Option<QueueTicket<'a>> {
        let mut queues = self.lock();
        if queues.get(subject).map_or(0, |queue| queue.waiting) >= max_waiting {
            return None;
        }
        let queue = queues.entry(subject.clone()).or_default();
        queue.waiting += 1;
        let (head, released) = (Arc::clone(&queue.head), Arc::clone(&queue.released));
        Some(QueueTicket { queues: self, subject, head, released })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Subject, WaitQueue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueTicket<'_> {
    /// Becomes the head of the queue if no other request is.
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
        if let Some(queue) = queues.get_mut(self.subject) {
            queue.waiting -= 1;
            if queue.waiting == 0 {
                queues.remove(self.subject);
            }
        }
    }
}
