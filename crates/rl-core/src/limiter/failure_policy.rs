//! The failure policy: the decision about a request when the store makes none.

use std::fmt;
use std::sync::Arc;

use crate::model::{FailureKind, OnFailure};
use crate::observe::{self, EventLocation};
use crate::policy::{NamedLimit, Policy};
use crate::store::Store;

/// The settings for requests that the store does not decide.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailurePolicy {
    pub(super) on_store_failure: OnFailure,
    pub(super) on_configuration_failure: OnFailure,
    pub(super) on_overload: OnFailure,
    pub(super) on_fallback_failure: OnFailure,
    /// Whether the limiter is in shadow, and so allows every request.
    pub(super) is_shadow: bool,
}

impl FailurePolicy {
    /// Returns whether a setting names the fallback.
    pub(super) fn may_fall_back(&self) -> bool {
        let Self { on_store_failure, on_configuration_failure, on_overload, .. } = *self;
        [on_store_failure, on_configuration_failure, on_overload].contains(&OnFailure::Fallback)
    }

    /// Returns the setting for failures of this kind.
    pub(super) const fn setting(self, failure: FailureKind) -> OnFailure {
        match failure {
            FailureKind::Overloaded | FailureKind::OutOfMemory => self.on_overload,
            failure if failure.is_configuration() => self.on_configuration_failure,
            _ => self.on_store_failure,
        }
    }

    /// Returns what happens to requests after a failure of this kind. A limiter in shadow allows
    /// them.
    pub(super) const fn action(self, failure: FailureKind) -> OnFailure {
        if self.is_shadow { OnFailure::Allow } else { self.setting(failure) }
    }

    /// Returns what happens to requests whose policy could not be looked up. They are rejected if
    /// the setting is `Fallback`, because a fallback cannot decide without a policy.
    pub(super) const fn action_without_policy(self, failure: FailureKind) -> OnFailure {
        match self.action(failure) {
            OnFailure::Fallback => self.on_fallback_failure,
            action => action,
        }
    }
}

/// The part of each limit that one instance enforces by itself while the shared store fails.
///
/// The units of every limit, and its burst or capacity, are divided by the number of instances and
/// rounded down. All instances together allow at most the limit, and less if it does not divide
/// evenly.
///
/// A share is at least one unit, and is raised to the cost of a request that the whole limit
/// grants. With a raised share, all instances together may allow more than the limit: one request
/// for each instance. If that is known when the limiter is built or its rules change, a warning in
/// the log names the rule and the limit.
///
/// Headers and messages describe the configured limit, not the share. The remaining units are those
/// of the share.
///
/// # Examples
///
/// ```
/// use rl_core::{Limit, MemoryStore, RateLimiter, Share};
///
/// let limiter = RateLimiter::builder()
///     .limit(Limit::per_second(10)) // 2 on each of four instances
///     .limit(Limit::per_day(5_000)) // 1250
///     .fallback(MemoryStore::new(), Share::with_instances(4))
///     .build()?;
/// # Ok::<(), rl_core::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    instances: u32,
}

impl Share {
    /// Creates an equal share for each of `instances`. Pass the largest number of instances that
    /// may ever run at the same time.
    #[must_use]
    pub const fn with_instances(instances: u32) -> Self {
        Self { instances }
    }

    /// Returns the number of instances.
    #[must_use]
    pub const fn instances(self) -> u32 {
        self.instances
    }

    /// Returns the share of each limit of `policy`, under which requests that need `needed` units
    /// can be granted.
    pub(super) fn of(self, policy: &Policy, needed: u64) -> Policy {
        policy.share(self.instances.into(), needed)
    }

    /// Returns the limits of `policy` whose shares have to be raised, so that they grant `needed`
    /// units.
    fn raised(self, policy: &Policy, needed: u64) -> impl Iterator<Item = &NamedLimit> {
        policy.limits().iter().filter(move |named| {
            let (limit, instances) = (named.limit(), u64::from(self.instances));
            let least = limit.units(needed).max(1);
            let is_small = limit.capacity() / instances < least || limit.max() < instances;
            is_small && limit.capacity() >= least
        })
    }

    /// Logs a warning for each limit whose share has to be raised. `needed` is the largest known
    /// cost of a request.
    pub(super) fn warn_if_raised(self, location: EventLocation<'_>, policy: &Policy, needed: u64) {
        for named in self.raised(policy, needed) {
            let (name, limit) = (named.name(), named.limit());
            observe::share_raised(location, name, limit, needed, self.instances);
        }
    }
}

/// The store that decides while the primary store fails.
pub(super) struct Fallback {
    pub(super) store: Arc<dyn Store>,
    pub(super) share: Share,
}

impl fmt::Debug for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback")
            .field("store", &self.store)
            .field("share", &self.share)
            .finish_non_exhaustive()
    }
}
