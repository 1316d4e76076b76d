//! Counts the tasks that charge slots or give charges back, so that a store that is closed can wait
//! for them.

use std::sync::Arc;

use tokio::sync::watch;

/// The tasks that have begun and not ended. Clones share the number.
#[derive(Clone)]
pub(super) struct PendingTasks(Arc<watch::Sender<usize>>);

/// A task that has begun. It ends when this is dropped.
pub(super) struct PendingTask(PendingTasks);

impl PendingTasks {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    /// Counts a task until the result is dropped.
    pub(super) fn begin(&self) -> PendingTask {
        self.0.send_modify(|pending| *pending += 1);
        PendingTask(self.clone())
    }

    /// Waits until no task is pending.
    pub(super) async fn wait(&self) {
        // An error would mean that the sender was dropped, but `self` holds it.
        let _ = self.0.subscribe().wait_for(|pending| *pending == 0).await;
    }
}

impl Drop for PendingTask {
    fn drop(&mut self) {
        self.0.0.send_modify(|pending| *pending -= 1);
    }
}
