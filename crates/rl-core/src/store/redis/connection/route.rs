//! Which server a command goes to.

#[cfg(feature = "redis-cluster")]
use super::cluster::Cluster;
use super::command::Command;
use super::pool::Pool;
use crate::model::StoreError;
use crate::store::redis::error::classify;

/// The way to the servers.
pub(crate) enum Route {
    /// All commands go to one server: the one there is, or the primary.
    Pool(Pool),
    /// Each key has its server.
    #[cfg(feature = "redis-cluster")]
    Cluster(Cluster),
}

impl Route {
    pub(crate) const fn is_cluster(&self) -> bool {
        match self {
            Self::Pool(_) => false,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(_) => true,
        }
    }

    /// Sends a command; returns what a script replied.
    pub(crate) async fn send(&self, command: &Command) -> Result<Vec<u8>, StoreError> {
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
