use std::fmt;
use std::sync::Arc;

use rl_core::time::{Clock, SystemClock};

use crate::active::Aggregation;
use crate::call_limits::ZeroMeans;
use crate::limits::Limits;

/// The options of a connection to [`Records`](crate::Records).
#[must_use]
pub struct RecordsOptions {
    pub(super) url: String,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) aggregation: Aggregation,
    pub(super) max_connections: u32,
    #[cfg(feature = "redis")]
    pub(super) redis: Option<String>,
}

impl RecordsOptions {
    /// Creates the default options for `sqlite::memory:`, `sqlite://file`, `postgres://…` or
    /// `mysql://…`.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            clock: Arc::new(SystemClock),
            aggregation: Aggregation::default(),
            max_connections: 8,
            #[cfg(feature = "redis")]
            redis: None,
        }
    }

    /// Sets the limits of a consumer that has no active record and no tier. Defaults to no limit.
    pub fn defaults(mut self, limits: impl Into<Limits>) -> Self {
        self.aggregation.defaults = limits.into();
        self
    }

    /// Sets the meaning of a combined limit of 0. Defaults to [`ZeroMeans::Blocked`].
    pub const fn zero_means(mut self, meaning: ZeroMeans) -> Self {
        self.aggregation.zero_means = meaning;
        self
    }

    /// Sets the clock. Defaults to the clock of the system.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Sets the maximum number of connections. Defaults to 8. The minimum is 4, and a database in
    /// memory always has one.
    ///
    /// Half of the connections are for look-ups of sources, a quarter for changes, and the rest for
    /// all other reads. None of the three groups waits for another. A source that listens for
    /// announcements of PostgreSQL or Redis uses one more connection.
    pub const fn max_connections(mut self, count: u32) -> Self {
        self.max_connections = if count < 4 { 4 } else { count };
        self
    }

    /// Announces changes to other instances through the Redis server at `url`. PostgreSQL announces
    /// changes itself; on MySQL and MariaDB, other instances otherwise poll.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn announce_on_redis(mut self, url: &str) -> Self {
        self.redis = Some(url.to_owned());
        self
    }
}

impl fmt::Debug for RecordsOptions {
    /// Omits the URL, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordsOptions")
            .field("aggregation", &self.aggregation)
            .field("max_connections", &self.max_connections)
            .finish_non_exhaustive()
    }
}
