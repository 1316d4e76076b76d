//! The failure policy: the decision about a request when the store makes none.

use std::fmt;
use std::sync::Arc;

use super::charges::summed_costs;
use super::operation::Operation;
use crate::decision::{Decision, Origin, PartStatus, RetryAfter};
use crate::model::{Cost, FailureKind, StoreError};
use crate::policy::Policy;
use crate::store::{Namespace, Part, Store};

/// The handling of requests that the store cannot decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFailure {
    /// The request is allowed. For most services, an hour without limits is better than an hour of
    /// rejected requests.
    Allow,
    /// The request is rejected; adapters respond with 503 and `Retry-After`.
    Reject,
    /// Another store decides under this instance's [`Share`] of the limits:
    /// [`fallback`](crate::RateLimiterBuilder::fallback). If it fails too,
    /// [`on_fallback_failure`](crate::RateLimiterBuilder::on_fallback_failure) decides.
    Fallback,
}

impl OnFailure {
    /// Returns what happens to undecided requests, as a text for the log.
    pub(super) const fn consequence(self) -> &'static str {
        match self {
            Self::Allow => "undecided requests are allowed without limits",
            Self::Reject => "undecided requests are rejected with 503",
            Self::Fallback => "the fallback decides under this instance's share of the limits",
        }
    }

    /// Returns a short fixed word for the action.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Reject => "reject",
            Self::Fallback => "fallback",
        }
    }

    /// Returns the origin of a decision that no store made. With `Fallback`, the fallback could not
    /// decide either, so the request is rejected.
    pub(super) const fn origin(self, failure: FailureKind) -> Origin {
        match self {
            Self::Allow => Origin::FailedOpen(failure),
            Self::Reject | Self::Fallback => Origin::FailedClosed(failure),
        }
    }
}

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
            FailureKind::Overloaded => self.on_overload,
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

    /// Decides a request with the result of the fallback, after `failure` of the store. Decisions of
    /// the fallback are marked as such.
    ///
    /// The fallback cannot decide if it fails, or if this instance's share of a limit of `parts` is
    /// too small. `own` is the namespace of parts without one.
    pub(super) fn after_fallback(
        self,
        result: Result<Decision, StoreError>,
        own: &Namespace,
        parts: &[Part<'_>],
        operation: Operation,
        failure: FailureKind,
    ) -> Decision {
        let failure = match result {
            Ok(decision) if !exceeds_share(&decision, own, parts, operation) => {
                return decision;
            }
            Ok(_) => failure,
            Err(error) => error.kind(),
        };
        Decision::undecided(parts[0].cost, self.on_fallback_failure.origin(failure))
    }
}

/// The part of each limit that one instance enforces by itself while the shared store fails.
///
/// The units of every limit, and its burst or capacity, are divided by the number of instances and
/// rounded down. All instances together admit at most the limit, and less if it does not divide
/// evenly.
///
/// If the share of a limit is zero, or less than the cost of a request, the fallback cannot decide,
/// because the client is not over its limit. Such a request is rejected, unless
/// [`on_fallback_failure`](crate::RateLimiterBuilder::on_fallback_failure) is [`OnFailure::Allow`].
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

    /// Returns the share of each limit of `policy`.
    pub(super) fn of(self, policy: &Policy) -> Policy {
        policy.divided_by(self.instances.into())
    }
}

/// The store that decides while the primary store fails.
pub(super) struct Fallback {
    pub(super) store: Arc<dyn Store>,
    pub(super) share: Share,
}

/// Returns whether only the division into shares denies the request for good: the shares can never
/// grant its cost, but the undivided limits of `parts` could. Such a request must not be denied as
/// over its limits.
///
/// The costs of parts with the same counters are added, because a store charges them together.
fn exceeds_share(
    decision: &Decision,
    own: &Namespace,
    parts: &[Part<'_>],
    operation: Operation,
) -> bool {
    let could_grant = |((status, part), cost): ((PartStatus<'_>, &Part<'_>), Cost)| {
        let needed = operation.needed(cost);
        let mut limits = status.limits().filter(|limit| !limit.limit().is_shadow());
        limits.all(|limit| {
            let whole = part.policy.position(limit.name());
            let whole = whole.map(|place| part.policy.limits()[place].limit());
            whole.is_some_and(|whole| whole.capacity() >= whole.units(needed).max(1))
        })
    };
    if decision.is_allowed() || decision.retry_after() != RetryAfter::Never {
        return false;
    }
    let mut all = decision.parts().zip(parts).zip(summed_costs(own, parts));
    all.all(|(part, cost)| part.1.is_shadow() || could_grant((part, cost)))
}

impl fmt::Debug for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback")
            .field("store", &self.store)
            .field("share", &self.share)
            .finish_non_exhaustive()
    }
}
