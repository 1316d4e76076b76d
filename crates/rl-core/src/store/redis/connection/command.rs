//! The commands that the store sends to its servers.

use crate::store::redis::scripts::Script;
#[cfg(feature = "conformance")]
use crate::time::Timestamp;

/// A command to a server. All of its keys have the same hash tag, so they are in one slot of a
/// cluster.
#[derive(Debug)]
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

impl Command {
    /// Returns the first key. In a cluster, its slot determines the server.
    #[cfg(feature = "redis-cluster")]
    pub(crate) fn first_key(&self) -> &str {
        let (Self::Script { keys, .. } | Self::Delete { keys }) = self;
        keys.first().map_or("", String::as_str)
    }

    /// Replaces the server's time by `now`.
    #[cfg(feature = "conformance")]
    pub(crate) fn at(self, now: Timestamp) -> Self {
        match self {
            Self::Script { script, keys, mut arguments } => {
                arguments.push(now.as_micros().to_string().into_bytes());
                Self::Script { script: script.with_manual_time(), keys, arguments }
            }
            Self::Delete { .. } => self,
        }
    }
}
