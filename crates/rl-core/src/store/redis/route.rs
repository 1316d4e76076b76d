//! Which server a command goes to.

#[cfg(feature = "redis-cluster")]
use super::cluster::Cluster;
use super::connection::{Connection, Pool};
use super::encoding::request::Command;
use super::error::classify;
use crate::model::StoreError;

/// The way to the servers.
pub(super) enum Route {
    /// All commands go to one server: the one there is, or the primary.
    Pool(Pool),
    /// Each key has its server.
    #[cfg(feature = "redis-cluster")]
    Cluster(Cluster),
}

impl Route {
    pub(super) const fn is_cluster(&self) -> bool {
        match self {
            Self::Pool(_) => false,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(_) => true,
        }
    }

    /// Sends a command; returns what a script replied.
    pub(super) async fn send(&self, command: &Command) -> Result<Vec<u8>, StoreError> {
        match self {
            Self::Pool(pool) => {
                let mut connection = pool.get().await?;
                command.run(&mut connection).await.map_err(classify)
            }
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => cluster.send(command).await,
        }
    }
}

impl Command {
    /// Sends the command on this connection, once.
    pub(super) async fn run(&self, connection: &mut Connection) -> redis::RedisResult<Vec<u8>> {
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
