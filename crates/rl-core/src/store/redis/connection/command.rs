//! What is sent to a server.

use super::pool::Connection;
use crate::store::redis::script::Script;
#[cfg(feature = "conformance")]
use crate::time::Timestamp;

/// What to send.
#[derive(Debug)]
pub(crate) enum Command {
    Script { script: &'static Script, keys: Vec<String>, arguments: Vec<Vec<u8>> },
    Delete { keys: Vec<String> },
}

impl Command {
    /// The key that says where the command belongs: all of its keys have the same hash tag.
    #[cfg(feature = "redis-cluster")]
    pub(crate) fn first_key(&self) -> &str {
        let (Self::Script { keys, .. } | Self::Delete { keys }) = self;
        keys.first().map_or("", String::as_str)
    }

    /// The command with a time of ours instead of the server's.
    #[cfg(feature = "conformance")]
    pub(crate) fn at(self, now: Timestamp) -> Self {
        match self {
            Self::Script { script, keys, mut arguments } => {
                arguments.push(now.as_micros().to_string().into_bytes());
                Self::Script { script: script.with_manual_time(), keys, arguments }
            }
            delete @ Self::Delete { .. } => delete,
        }
    }

    /// Sends the command on this connection, once.
    pub(crate) async fn run(&self, connection: &mut Connection) -> redis::RedisResult<Vec<u8>> {
        match self {
            Self::Script { script, keys, arguments } => {
                script.run(connection, keys, arguments).await
            }
            Self::Delete { keys } => {
                let mut delete = redis::cmd("DEL");
                delete.arg(keys);
                connection.query::<u64>(&delete).await.map(|_| Vec::new())
            }
        }
    }
}
