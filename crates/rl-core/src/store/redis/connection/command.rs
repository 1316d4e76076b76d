//! The commands that the store sends to its servers.

use crate::store::redis::scripts::Script;
#[cfg(feature = "conformance")]
use crate::time::{Clock, ManualClock};
#[cfg(feature = "conformance")]
use std::sync::Arc;

/// A command to a server. All of its keys have the same hash tag, so they are in one slot of a
/// cluster.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    /// Runs a script.
    Script {
        /// The script.
        script: &'static Script,
        /// The keys that the script reads and writes.
        keys: Vec<String>,
        /// The other arguments.
        arguments: Vec<Vec<u8>>,
    },
    /// Deletes keys.
    Delete {
        /// The keys.
        keys: Vec<String>,
    },
}

/// The time of scripts in tests that set the clock.
#[cfg(feature = "conformance")]
#[derive(Clone, Debug)]
pub(crate) struct ManualTime {
    clock: Arc<ManualClock>,
    /// The largest number of blocks in a page of a log.
    log_page: u8,
}

#[cfg(feature = "conformance")]
impl ManualTime {
    /// Creates the time of a clock. Pages are small, or as in production.
    pub(crate) const fn new(clock: Arc<ManualClock>, has_small_log_pages: bool) -> Self {
        // The number in production is that of `lib/server_time.lua`.
        Self { clock, log_page: if has_small_log_pages { 16 } else { 64 } }
    }
}

impl Command {
    /// Returns the first key. In a cluster, its slot determines the server.
    #[cfg(feature = "redis-cluster")]
    pub(crate) fn first_key(&self) -> &str {
        let (Self::Script { keys, .. } | Self::Delete { keys }) = self;
        keys.first().map_or("", String::as_str)
    }

    /// Replaces the server's time.
    #[cfg(feature = "conformance")]
    pub(crate) fn at(self, time: &ManualTime) -> Self {
        match self {
            Self::Script { script, keys, mut arguments } => {
                let (now, page) = (time.clock.now().as_micros(), time.log_page);
                arguments.push(format!("{now} {page}").into_bytes());
                Self::Script { script: script.with_manual_time(), keys, arguments }
            }
            Self::Delete { .. } => self,
        }
    }
}
