//! The servers that hold the counters, as given by the caller.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::model::StoreError;
use crate::store::ServerLoad;
#[cfg(feature = "redis-cluster")]
use crate::store::redis::connection::Cluster;
#[cfg(feature = "redis-sentinel")]
use crate::store::redis::connection::Sentinels;
use crate::store::redis::connection::{
    ConnectionSettings, Login, Pool, PoolTarget, Router, Server, redacted_url,
};
use crate::store::redis::error::ConnectError;

/// The URLs of servers.
#[derive(Clone)]
pub(crate) enum Servers {
    /// One server; in a builder, the URL of a store in any form.
    One(String),
    #[cfg(feature = "redis-sentinel")]
    Sentinels { urls: Vec<String>, name: String },
    #[cfg(feature = "redis-cluster")]
    Cluster(Vec<String>),
}

/// The servers of a store after the first attempt to connect.
pub(super) struct Connected {
    pub(super) router: Router,
    /// The result of the first attempt.
    pub(super) probed: Result<(), StoreError>,
    /// The kind of store and its server, for the log.
    pub(super) label: String,
}

impl Servers {
    /// Returns whether the servers are a cluster.
    pub(super) const fn is_cluster(&self) -> bool {
        match self {
            Self::One(_) => false,
            #[cfg(feature = "redis-sentinel")]
            Self::Sentinels { .. } => false,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(_) => true,
        }
    }

    /// Returns the URLs of the servers.
    pub(super) fn urls(&self) -> &[String] {
        match self {
            Self::One(url) => std::slice::from_ref(url),
            #[cfg(feature = "redis-sentinel")]
            Self::Sentinels { urls, .. } => urls,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(urls) => urls,
        }
    }

    /// Returns the URLs as `Debug` shows them: with `…` in place of all that follows the scheme.
    pub(super) fn redacted(&self) -> Vec<String> {
        self.urls().iter().map(|url| redacted_url(url)).collect()
    }

    /// Tries once to connect. The result contains the error if the servers cannot be reached.
    ///
    /// # Errors
    ///
    /// Returns an error if the URLs are not valid.
    pub(super) async fn connect(
        &self,
        login: &Login,
        settings: &Arc<ConnectionSettings>,
    ) -> Result<Connected, ConnectError> {
        let (target, label) = match self {
            Self::One(url) => {
                let server = Server::from_url(url, login)?;
                let label = format!("redis {}", server.name());
                (PoolTarget::Server(server), label)
            }
            #[cfg(feature = "redis-sentinel")]
            Self::Sentinels { urls, name } => {
                let sentinels = Arc::new(Sentinels::new(urls, name, login)?);
                (PoolTarget::Sentinels(sentinels), format!("redis {name}, by sentinels"))
            }
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(urls) => {
                let cluster = Cluster::new(urls, login, settings)?;
                let (probed, label) = (cluster.try_connect().await, cluster.label());
                return Ok(Connected { router: Router::Cluster(cluster), probed, label });
            }
        };
        let runtime = Handle::current();
        let load = Arc::new(ServerLoad::unconnected(&runtime));
        let pool = Pool::new(target, settings, &runtime, load);
        let probed = pool.try_connect().await;
        Ok(Connected { router: Router::Pool(pool), probed, label })
    }
}
