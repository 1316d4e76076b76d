//! The shutdown that several servers share.

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Stops servers. Clones share their state, so that several servers stop together.
#[derive(Clone, Debug)]
pub struct Shutdown(Arc<watch::Sender<bool>>);

impl Shutdown {
    /// Creates a shutdown that begins when [`start`](Self::start) is called.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Creates a shutdown that begins on SIGTERM, on Ctrl-C, or when [`start`](Self::start) is called.
    ///
    /// # Errors
    ///
    /// Returns an error if the handlers of the signals cannot be installed.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub fn on_signal() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let shutdown = Self::new();
        let started = shutdown.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            started.start();
        });
        Ok(shutdown)
    }

    /// Starts to stop the servers. Further calls do nothing.
    pub fn start(&self) {
        self.0.send_replace(true);
    }

    /// Returns whether the shutdown has begun.
    #[must_use]
    pub fn has_started(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the shutdown begins.
    pub async fn started(&self) {
        // This fails only without a sender, and `self` is one.
        let _ = self.0.subscribe().wait_for(|has_started| *has_started).await;
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}
