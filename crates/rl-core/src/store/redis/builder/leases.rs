//! The settings of leases.

use std::time::Duration;

#[cfg(doc)]
use super::RedisStore;
use super::RedisStoreBuilder;

impl RedisStoreBuilder {
    /// Charges up to `units` of a subject ahead, in one call and in every window of its policy, and
    /// spends them without asking the server. Defaults to 0, which leases nothing. The maximum is
    /// 65 534; larger values count as the maximum.
    ///
    /// The limits hold for any number of instances, even if instances or replies are lost. Other
    /// instances may be *denied* units that an instance has leased but not spent: at most `units`
    /// for each instance.
    ///
    /// Unspent units are returned when the first window ends, when they are
    /// [idle](Self::lease_idle), at the end of the lease's [lifetime](Self::lease_lifetime), and
    /// when the store is [closed](RedisStore::close). Call
    /// [`RateLimiter::close`](crate::RateLimiter::close) when a service shuts down. If a process is
    /// killed, its unspent units stay charged until the windows end.
    ///
    /// [`usage`](crate::RateLimiter::usage), [`peek`](crate::RateLimiter::peek) and the decisions of
    /// other instances count leased units as used. A peek may thus report a denial although this
    /// instance still allows requests with its lease. A reset by another instance does not affect units that are leased here until the
    /// lease ends.
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
}
