mod servers;
mod url;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use servers::Connected;
pub(super) use servers::Servers;

use super::super::fingerprint::Fingerprinter;
#[cfg(feature = "redis-cluster")]
use super::across_slots::{AcrossSlots, LayerCalls};
use super::batching::{BatchSettings, Batcher};
#[cfg(feature = "conformance")]
use super::connection::ManualTime;
#[cfg(feature = "redis-tls")]
use super::connection::Tls;
use super::connection::{ConnectionSettings, Login};
use super::encoding::keys;
use super::encoding::placement::Placement;
use super::encoding::request::RequestEncoder;
use super::executor::ScriptExecutor;
use super::give_back::GiveBack;
use super::shortcuts::{DenialCache, LeaseSettings, Leases, MonotonicClock};
use super::{ConnectError, Layout, RedisStore, RedisStoreInner, Script, scripts};
use crate::observe;
use crate::store::LimiterRegistry;
#[cfg(feature = "conformance")]
use crate::time::ManualClock;

/// Builds a [`RedisStore`].
#[derive(Clone)]
#[must_use]
pub struct RedisStoreBuilder {
    servers: Servers,
    login: Login,
    layout: Layout,
    prefix: Option<String>,
    script_shapes: usize,
    preloaded: Vec<&'static Script>,
    slot_groups: Option<u32>,
    #[cfg(feature = "redis-cluster")]
    status_wait: Duration,
    connections: u32,
    connection_wait: Duration,
    connect_timeout: Duration,
    response_timeout: Duration,
    coalesce: bool,
    // `None` means true, or false if a test sets the clock.
    local_denial: Option<bool>,
    lease: LeaseSettings,
    #[cfg(feature = "conformance")]
    clock: Option<Arc<ManualClock>>,
    #[cfg(feature = "conformance")]
    has_small_log_pages: bool,
}

impl RedisStoreBuilder {
    /// Checks the form of a URL, without connecting and without reading files.
    pub(super) fn check_url(url: &str) -> Result<(), ConnectError> {
        url::read(url).map(drop)
    }

    pub(super) fn new(servers: Servers) -> Self {
        Self {
            servers,
            login: Login::default(),
            layout: Layout::default(),
            prefix: None,
            script_shapes: scripts::MAX_SHAPES,
            preloaded: Vec::new(),
            slot_groups: None,
            #[cfg(feature = "redis-cluster")]
            status_wait: Duration::from_millis(20),
            connections: 4,
            connection_wait: Duration::from_millis(75),
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_millis(500),
            coalesce: true,
            local_denial: None,
            lease: LeaseSettings {
                units: 0,
                idle: Duration::from_secs(10),
                lifetime: Duration::from_secs(60),
            },
            #[cfg(feature = "conformance")]
            clock: None,
            #[cfg(feature = "conformance")]
            has_small_log_pages: false,
        }
    }

    /// Sets the format in which counters are stored. Defaults to [`Layout::Packed`].
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// Sets the prefix of every key: up to 32 characters of `A-Z a-z 0-9 _ . -`. Defaults to
    /// `rl`, and to an empty prefix in the readable layout.
    ///
    /// In the readable layout the id follows the prefix directly, so the prefix must end in `.`,
    /// `_`, `-` or `:`. Otherwise the consumer `2abc` under the prefix `shop` would be the consumer
    /// `abc` under `shop2`.
    ///
    /// Prefixes that end in `:` never share a key, because ids escape that character. With other
    /// prefixes, make sure that none begins with another.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = Some(prefix.to_owned());
        self
    }

    /// Sets the user of the login. Defaults to the user in the URL, or else to `default`.
    ///
    /// Behind sentinels, this is the user of the servers. URLs contain the user of the sentinels.
    pub fn user(mut self, user: &str) -> Self {
        self.login.user = Some(user.to_owned());
        self
    }

    /// Sets the password of the servers, without the escapes that a URL needs. Defaults to the
    /// password in the URL.
    ///
    /// Behind sentinels, this is the password of the servers. URLs contain that of the sentinels.
    pub fn password(mut self, password: &str) -> Self {
        self.login.password = Some(password.to_owned());
        self
    }

    /// Sets the number of the database. Defaults to the number in the URL, or else to 0. A cluster
    /// has only the database 0.
    pub fn database(mut self, database: u32) -> Self {
        self.login.database = Some(database);
        self
    }

    /// Sets the certificates for URLs with `rediss://`. Defaults to the files that the URL names,
    /// or else to [`Tls::new`].
    #[cfg(feature = "redis-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.login.tls = Some(tls);
        self
    }

    /// Sets the maximum number of script shapes. A shape is a combination of kinds of limits that
    /// is decided by a script of its own. Defaults to 64.
    ///
    /// All further combinations are decided by one script that accepts any policy, but takes the
    /// server several times as long. With 0, all combinations are decided by that script. A server
    /// keeps about 200 kB for each script.
    pub fn script_shapes(mut self, most: usize) -> Self {
        self.script_shapes = most;
        self
    }

    /// Adds scripts that are loaded whenever a connection is opened, on each primary of a cluster.
    /// Otherwise, the first request that needs such a script loads it, which takes a round trip
    /// more and the time to compile it.
    ///
    /// The scripts that do not depend on policies are always loaded. [`RedisStore::scripts`] and
    /// [`RedisStore::scripts_of_parts`] list the others. Opening a connection takes longer with
    /// each script, so list the policies that most requests have.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use rl_core::rules::{Rule, Rules};
    /// use rl_core::{Limit, Policy, RateLimiter, RedisStore};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let of_login = Policy::new([Limit::per_minute(5)])?;
    /// let of_fleet = Policy::new([Limit::per_second(5_000)])?;
    /// let login = Rule::named("login").on("POST", "/login").policy(of_login.clone());
    /// let fleet = Rule::named("fleet").policy(of_fleet.clone());
    /// let rules = Rules::new().rule(login).rule(fleet);
    ///
    /// // A login matches both rules, and any other request only the second.
    /// let scripts = RedisStore::scripts_of_parts([vec![&of_login, &of_fleet], vec![&of_fleet]]);
    /// let store = RedisStore::builder("redis://127.0.0.1/").preload(scripts).connect().await?;
    /// let limiter = RateLimiter::builder().rules(rules).store(store).build()?;
    /// # Ok(()) }
    /// ```
    pub fn preload(mut self, scripts: impl IntoIterator<Item = &'static Script>) -> Self {
        self.preloaded.extend(scripts);
        self
    }

    /// Divides the subjects of a cluster into this many groups, from 1 to 16 384. All keys of a
    /// group are in one slot, so the checks of its subjects share calls. Defaults to no groups:
    /// each subject has a slot of its own, and only checks of one subject share a call.
    ///
    /// Four to eight groups for each primary are a good number: the fewer the groups, the more
    /// subjects share a call. The slots of the groups are spread evenly over all slots. A cluster
    /// moves a group only as a whole, and all of its subjects are on one primary.
    ///
    /// All instances must set the same number, because it is part of the keys. After a change, all
    /// counters start anew. [REDIS.md](crate::_documentation::redis) describes how to choose it.
    #[cfg(feature = "redis-cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-cluster")))]
    pub fn slot_groups(mut self, groups: u32) -> Self {
        self.slot_groups = Some(groups);
        self
    }

    /// Sets the longest time that a denied request waits for the status of its parts in other slots
    /// of a cluster. Defaults to 20 ms.
    ///
    /// The status takes up to two round trips after the denial: charges are given back, then the
    /// limits are read. If a slot does not reply in time, the decision has no limits for its parts.
    /// The verdict does not depend on the status. Increase the wait if a round trip takes more than
    /// 5 ms, but keep it well below the limiter's deadline: once that has passed, the failure
    /// policy decides the request.
    #[cfg(feature = "redis-cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-cluster")))]
    pub fn status_wait(mut self, wait: Duration) -> Self {
        self.status_wait = wait;
        self
    }

    /// Sets the maximum number of connections to a server. Defaults to 4. A connection carries the
    /// commands of many requests at the same time, so more connections seldom help. A cluster has
    /// one more to each server, on which the slot map is read.
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    /// Sets the longest time that a decision waits for a connection. Defaults to 75 ms. This is
    /// less than the limiter's deadline, so that the error can name the reason why there is no
    /// connection.
    pub fn connection_wait(mut self, wait: Duration) -> Self {
        self.connection_wait = wait;
        self
    }

    /// Sets the longest time for opening a connection, including the login. Defaults to one second.
    ///
    /// Connections are opened in the background. A decision waits no longer than
    /// [`connection_wait`](Self::connection_wait).
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets how long a reply may take before its connection counts as failed and is replaced.
    /// Defaults to 500 ms. It does not limit the time of a request, which is the purpose of the
    /// limiter's deadline.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// Sets whether checks that arrive while others are in flight are batched into one script call.
    /// Defaults to `true`.
    ///
    /// The checks are decided as if they had arrived one after the other. A check that arrives
    /// while nothing is in flight is sent immediately. Checks of one subject share a call, and so
    /// do checks of several subjects under one policy. On a cluster, only checks of one subject or
    /// of one [group](Self::slot_groups) share a call. Refunds share calls in the same way, and so
    /// do released permits. The readable layout is never batched.
    pub fn coalesce(mut self, coalesce: bool) -> Self {
        self.coalesce = coalesce;
        self
    }

    /// Sets whether denials are cached. Until a cached denial expires, the subject is denied
    /// without a call to the server. Defaults to `true`, as the server would deny these requests
    /// too.
    ///
    /// A denial is cached for at most one second. So a reset or a refund by another instance, or by
    /// an operator, takes effect within a second. A reset or a refund through this store takes
    /// effect immediately, as does a change of the policy.
    ///
    /// The cache serves only checks, and never concurrency limits. Its decisions have the origin
    /// [`Origin::LocalDeny`](crate::Origin::LocalDeny).
    pub fn local_denial(mut self, local_denial: bool) -> Self {
        self.local_denial = Some(local_denial);
        self
    }

    /// Charges up to `units` of a subject ahead, in one call and in every window of its policy, and
    /// spends them without asking the server. Defaults to 0, which leases nothing. The maximum is
    /// 65 534; larger values count as the maximum.
    ///
    /// The limits hold for any number of instances, even if instances or replies are lost. Other
    /// instances may be *denied* units that an instance has leased but not spent: at most `units`
    /// for each instance, and those that its requests in flight have taken.
    ///
    /// Unspent units are returned when the first window ends, when they are
    /// [idle](Self::lease_idle), at the end of the lease's [lifetime](Self::lease_lifetime), and
    /// when the store is [closed](RedisStore::close). Call
    /// [`RateLimiter::close`](crate::RateLimiter::close) when a service shuts down. If a process is
    /// killed, its unspent units stay charged until the windows end.
    ///
    /// [`usage`](crate::RateLimiter::usage), [`peek`](crate::RateLimiter::peek) and the decisions
    /// of other instances count leased units as used. A peek may thus report a denial although this
    /// instance still allows requests with its lease. A reset by another instance does not affect
    /// units that are leased here until the lease ends.
    ///
    /// Use it for subjects whose limits are much larger than a lease. Only checks in the packed
    /// layout use leases, and only under fixed windows that begin with the first request and count
    /// units. If a policy has any other limit, such as one that counts requests, each check asks
    /// the server. Decisions with leased units have the origin
    /// [`Origin::Leased`](crate::Origin::Leased).
    pub fn lease(mut self, units: u32) -> Self {
        self.lease.units = units.into();
        self
    }

    /// Sets the idle time after which the leased units of a subject are returned. Defaults to 10 s.
    ///
    /// A task of the store looks for idle leases four times in this time, and at least every
    /// second.
    pub fn lease_idle(mut self, idle: Duration) -> Self {
        self.lease.idle = idle;
        self
    }

    /// Sets the maximum lifetime of a lease, however long its windows last. At its end, the unspent
    /// units are returned. Defaults to 60 seconds.
    ///
    /// After a step of the server's clock, or after this machine was suspended, leased units may be
    /// spent in a window to which they were not charged. The lifetime bounds the time in which this
    /// can happen. At most one lease for each instance is affected.
    pub fn lease_lifetime(mut self, lifetime: Duration) -> Self {
        self.lease.lifetime = lifetime;
        self
    }

    /// Sets a clock that replaces the server's clock, for tests that control the time.
    #[cfg(feature = "conformance")]
    #[cfg_attr(docsrs, doc(cfg(feature = "conformance")))]
    pub fn manual_clock(mut self, clock: Arc<ManualClock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Makes the pages of long logs small, so that a log of a few hundred entries has several. This
    /// has an effect only with [`manual_clock`](Self::manual_clock).
    #[cfg(feature = "conformance")]
    #[cfg_attr(docsrs, doc(cfg(feature = "conformance")))]
    pub fn small_log_pages(mut self) -> Self {
        self.has_small_log_pages = true;
        self
    }

    /// Checks the settings and connects.
    ///
    /// A server that cannot be reached does not cause an error: the limiter's failure policy
    /// applies until the server can be reached.
    ///
    /// # Errors
    ///
    /// Returns an error if a setting is not valid, or if the server refuses the login.
    pub async fn connect(self) -> Result<RedisStore, ConnectError> {
        let prefix = keys::checked_prefix(self.prefix.clone(), self.layout)?;
        let settings = Arc::new(self.connection_settings()?);
        let (servers, login) = match &self.servers {
            Servers::One(url) => {
                let (servers, of_url) = url::read(url)?;
                (servers, self.login.clone().or(of_url))
            }
            #[cfg(any(feature = "redis-sentinel", feature = "redis-cluster"))]
            servers => (servers.clone(), self.login.clone()),
        };
        let placement =
            Placement::new(servers.is_cluster(), self.slot_groups, self.layout, &prefix)
                .map_err(|why| ConnectError::SlotGroups { why })?;
        let Connected { router, probed, label } = servers.connect(&login, &settings).await?;
        match probed {
            Err(error) if error.kind().is_configuration() => {
                return Err(ConnectError::Refused(error));
            }
            Err(error) => observe::not_connected(&label, &error),
            Ok(()) => {}
        }
        let (response_timeout, is_packed) = (self.response_timeout, self.layout == Layout::Packed);
        let (clock, caches_denials) = self.clock_and_cache();
        let encoder =
            RequestEncoder::new(self.layout, prefix, placement.clone(), self.script_shapes);
        let executor = ScriptExecutor::new(
            router,
            encoder,
            response_timeout,
            label,
            Arc::clone(&settings.counts),
            #[cfg(feature = "conformance")]
            self.clock.map(|clock| ManualTime::new(clock, self.has_small_log_pages)),
        );
        let is_enabled = self.coalesce && is_packed;
        let batches = BatchSettings { is_enabled, placement, response_timeout };
        let batcher = Batcher::new(executor.clone(), batches);
        let cache = DenialCache::new(batcher, caches_denials, Arc::clone(&clock));
        let leases =
            LeaseSettings { units: if is_packed { self.lease.units } else { 0 }, ..self.lease };
        let give_back = GiveBack::new(executor.label(), response_timeout);
        let layers = Leases::new(cache, leases, give_back.clone(), clock);
        #[cfg(feature = "redis-cluster")]
        let across_slots = AcrossSlots::new(
            LayerCalls::new(&layers, response_timeout),
            give_back.clone(),
            self.status_wait,
        );
        Ok(RedisStore {
            inner: Arc::new(RedisStoreInner {
                layers,
                executor,
                give_back,
                #[cfg(feature = "redis-cluster")]
                across_slots,
                fingerprinter: Fingerprinter::random(),
                registry: LimiterRegistry::default(),
            }),
        })
    }

    /// Returns the clock for intervals on this machine, and whether denials are cached.
    fn clock_and_cache(&self) -> (Arc<MonotonicClock>, bool) {
        #[cfg(feature = "conformance")]
        let clock = self.clock.clone();
        #[cfg(not(feature = "conformance"))]
        let clock = None;
        let caches_denials = self.local_denial.unwrap_or(clock.is_none());
        (Arc::new(MonotonicClock::new(clock)), caches_denials)
    }

    /// Returns the settings of connections. Fails if a time limit or the number of connections is
    /// zero.
    fn connection_settings(&self) -> Result<ConnectionSettings, ConnectError> {
        if self.connections == 0 {
            return Err(ConnectError::ZeroConnections);
        }
        let durations = [
            ("connection_wait", self.connection_wait),
            ("connect_timeout", self.connect_timeout),
            ("response_timeout", self.response_timeout),
            #[cfg(feature = "redis-cluster")]
            ("status_wait", self.status_wait),
            ("lease_idle", self.lease.idle),
            ("lease_lifetime", self.lease.lifetime),
        ];
        if let Some((setting, _)) = durations.into_iter().find(|(_, value)| value.is_zero()) {
            return Err(ConnectError::ZeroDuration { setting });
        }
        let mut scripts = scripts::of_layout(self.layout);
        scripts.extend(&self.preloaded);
        Ok(ConnectionSettings {
            scripts,
            connections: self.connections,
            connection_wait: self.connection_wait,
            connect_timeout: self.connect_timeout,
            response_timeout: self.response_timeout,
            has_warned_of_eviction: AtomicBool::new(false),
            counts: Arc::default(),
        })
    }
}

// URLs, the login and the settings of TLS may contain secrets. Only the schemes of URLs are shown.
impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("urls", &self.servers.redacted())
            .field("layout", &self.layout)
            .field("prefix", &self.prefix)
            .field("slot_groups", &self.slot_groups)
            .field("connections", &self.connections)
            .field("coalesce", &self.coalesce)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn invalid_settings_are_named_and_secrets_are_not() {
        let error = |builder: RedisStoreBuilder| async {
            assert!(!format!("{builder:?}").contains("hunter2"));
            let error = builder.connect().await.unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("hunter2"), "{shown}");
            error.to_string()
        };
        let of = RedisStore::builder;
        for url in [
            "",
            "127.0.0.1",
            "http://u:hunter2@h/",
            "redis://u:hunter2@h:99999/",
            "redis://u:hunter2@h/x",
        ] {
            let text = error(of(url)).await;
            assert!(text.contains("expected redis://"), "{url}: {text}");
            assert!(!text.contains("invalidclientconfig"), "{url}: {text}");
        }
        for url in [
            "rediss://u:hunter2@h/#insecure",
            "redis://u:hunter2@h/#insecure",
            "redis://h/#",
            "unix:///run/redis.sock#insecure",
            "redis://u:hunter2#3@h/",
        ] {
            let text = error(of(url)).await;
            assert!(text.contains("fragment") && text.contains("always verified"), "{url}: {text}");
        }
        for url in ["", "  "] {
            let text = error(of(url)).await;
            assert!(text.starts_with("Redis URL \"\": it is empty; expected redis://"), "{text}");
        }
        #[cfg(not(feature = "redis-tls"))]
        assert_eq!(
            error(of("rediss://u:hunter2@h/")).await,
            "TLS (rediss://) needs feature `redis-tls` of rl-core, which is not enabled"
        );
        assert!(error(of("redis://h/").prefix("a b")).await.contains("\"a b\""));
        assert!(error(of("redis://h/").prefix("shop:")).await.contains("\"shop:\""));
        let readable = |prefix| of("redis://h/").layout(Layout::Readable).prefix(prefix);
        assert_eq!(
            error(readable("shop")).await,
            "key prefix \"shop\" of the readable layout: expected one that ends in . _ - or :, so that \
             \"shop.\" and ids cannot run together"
        );
        for prefix in ["", "shop.", "rl_counter_", "shop-", "shop:"] {
            let checked = keys::checked_prefix(Some(prefix.to_owned()), Layout::Readable);
            assert_eq!(checked.unwrap(), prefix);
        }
        for prefix in [":", "a:b", "a:b:"] {
            let checked = keys::checked_prefix(Some(prefix.to_owned()), Layout::Readable);
            assert_eq!(checked.is_ok(), prefix == ":", "{prefix}");
        }
        let zero = Duration::ZERO;
        let server = || of("redis://h/");
        for (builder, expected) in [
            (server().connections(0), "connections must be at least 1"),
            (server().connection_wait(zero), "connection_wait must be greater than zero"),
            (server().connect_timeout(zero), "connect_timeout must be greater than zero"),
            (server().response_timeout(zero), "response_timeout must be greater than zero"),
            (server().lease_idle(zero), "lease_idle must be greater than zero"),
            (server().lease_lifetime(zero), "lease_lifetime must be greater than zero"),
        ] {
            assert_eq!(error(builder).await, expected);
        }
    }
}
