use rl_core::RateLimiter;
use rl_core::stats::StoreStats;

/// The place where the limiter stores its counters. The API reports this place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// In the memory of this process.
    #[default]
    Memory,
    /// On Redis.
    Redis {
        /// The host.
        host: String,
        /// The port; 0 if the limiter uses several servers.
        port: u16,
    },
}

impl Backend {
    /// Returns the place where a limiter stores its counters.
    pub(crate) fn of(limiter: &RateLimiter) -> Self {
        let stats = limiter.stats();
        match stats.store {
            StoreStats::Redis(_) => {
                let name = &*stats.store_name;
                let server = name.strip_prefix("redis ").unwrap_or(name);
                match server.contains(' ') {
                    // Several servers, or those that sentinels name, have no port in common.
                    true => Self::Redis { host: server.to_owned(), port: 0 },
                    false => Self::redis(server),
                }
            }
            _ => Self::Memory,
        }
    }

    /// Reads the host and the port from the URL of a Redis server, or the hosts from that of
    /// sentinels or a cluster. Ignores the user and the password.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_admin::Backend;
    ///
    /// let backend = Backend::redis("rediss://user:secret@redis.example.org/0");
    /// assert_eq!(backend, Backend::Redis { host: "redis.example.org".into(), port: 6379 });
    /// ```
    #[must_use]
    pub fn redis(url: &str) -> Self {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
        if place.contains(',') {
            return Self::Redis { host: place.to_owned(), port: 0 };
        }
        let (host, port) = match place.strip_prefix('[').and_then(|place| place.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => match place.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            },
        };
        let port = port.and_then(|port| port.parse().ok()).unwrap_or(6379);
        Self::Redis { host: host.to_owned(), port }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_host_and_the_port_of_a_url_are_kept() {
        for (url, host, port) in [
            ("redis://127.0.0.1/", "127.0.0.1", 6379),
            ("redis://127.0.0.1:7000", "127.0.0.1", 7000),
            ("redis://user:p@ss@localhost:7000/1", "localhost", 7000),
            ("rediss://[::1]:7000/?protocol=resp3", "::1", 7000),
            ("redis://[2001:db8::1]", "2001:db8::1", 6379),
            ("redis-sentinel://u:p@10.0.0.1,[::1]:7000/2?ca=x#limits", "10.0.0.1,[::1]:7000", 0),
        ] {
            assert_eq!(
                Backend::redis(url),
                Backend::Redis { host: host.to_owned(), port },
                "{url}"
            );
        }
    }
}
