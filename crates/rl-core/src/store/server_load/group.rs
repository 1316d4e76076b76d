//! The servers that hold the counters of one store together.

use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::replies::Replies;

/// The servers of one store. It is empty if there is only one.
#[derive(Debug, Default)]
pub(crate) struct ServerGroup(Mutex<Vec<Weak<Replies>>>);

impl ServerGroup {
    /// Replaces the servers.
    #[cfg(feature = "redis-cluster")]
    pub(crate) fn set(&self, servers: Vec<Weak<Replies>>) {
        *self.lock() = servers;
    }

    /// Returns whether a server other than `own` can be reached, and has not had an outstanding reply
    /// for longer than `time`.
    pub(super) fn has_other(&self, own: &Replies, time: Duration, now: Instant) -> bool {
        let servers: Vec<_> = self.lock().iter().filter_map(Weak::upgrade).collect();
        let mut others = servers.iter().filter(|other| !std::ptr::eq(&***other, own));
        others.any(|other| !other.has_not_replied_for(time, now))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Replies>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
