use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

use super::clock_lag::ClockLag;
use super::labels::{PartLabels, PartitionKey, PublicName};
use super::outcomes::Outcomes;
use super::policy_handle::PolicyHandle;
use crate::model::{Limit, Outcome};
use crate::policy::{LimitSet, NamedLimit, Policy};
use crate::time::Timestamp;

/// The time to wait until the same request would be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RetryAfter {
    /// The request is allowed now.
    Now,
    /// The request is allowed after this time, if no other request uses the limit. A concurrency
    /// limit may allow it earlier.
    In(Duration),
    /// The request is never allowed: the limit is 0, or the cost is more than the limit ever
    /// grants.
    Never,
}

impl RetryAfter {
    /// Returns the wait in whole seconds, rounded up and at least 1; `None` if no wait helps.
    pub(crate) const fn whole_seconds(self) -> Option<u64> {
        match self {
            Self::Now => Some(1),
            Self::In(wait) => Some(if wait.is_zero() { 1 } else { seconds_ceil(wait) }),
            Self::Never => None,
        }
    }
}

/// Returns a duration in whole seconds, rounded up, so that a client that waits for it is not too
/// early.
pub(crate) const fn seconds_ceil(span: Duration) -> u64 {
    span.as_secs().saturating_add((span.subsec_nanos() != 0) as u64)
}

/// The status of one limit after a decision: what the limit allows and what the subject has used.
#[derive(Clone, Copy, Debug)]
pub struct LimitStatus<'a> {
    limit: &'a NamedLimit,
    outcome: Outcome,
    part: PartLabels<'a>,
    lag: ClockLag,
}

impl<'a> LimitStatus<'a> {
    /// Returns the limit's name in its policy.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.limit.name()
    }

    /// Returns the name under which clients know the limit: its name, preceded by a name of its
    /// rule if the request was counted under [rules](crate::rules).
    #[must_use]
    pub fn public_name(&self) -> PublicName<'a> {
        self.part.public_name(self.limit.name())
    }

    /// Returns the name of the rule that counts the request, if clients may read it.
    pub(crate) fn disclosed_rule(&self) -> Option<&'a str> {
        self.part.disclosed_rule()
    }

    /// Returns the keyed hash of the subject that clients may read, if there is one.
    pub(crate) fn partition_key(&self) -> Option<&'a PartitionKey> {
        self.part.partition_key()
    }

    /// Returns the same status with the labels of its part, and with the lag of the store's clock
    /// behind the decision on the part.
    pub(super) const fn of_part(self, part: PartLabels<'a>, lag: ClockLag) -> Self {
        Self { part, lag, ..self }
    }

    /// Returns whether both are statuses of the same limit, in the same decision.
    pub(crate) fn is_same_limit(&self, other: &Self) -> bool {
        self.is_of_same_part(other) && self.name() == other.name()
    }

    /// Returns whether the limits of both belong to the same part, in the same decision.
    pub(crate) const fn is_of_same_part(&self, other: &LimitStatus<'_>) -> bool {
        self.part.index == other.part.index
    }

    /// Returns the limit with its name.
    pub(crate) const fn named(&self) -> &'a NamedLimit {
        self.limit
    }

    /// Returns the limit.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit.limit()
    }

    /// Returns the limit as it is configured. It differs from [`limit`](Self::limit) only if a
    /// fallback has decided, under this instance's [share](crate::Share) of the limit. Headers and
    /// messages describe the configured limit.
    #[must_use]
    pub fn configured(&self) -> Limit {
        self.part.configured(self.limit)
    }

    /// Returns whether the used and remaining units are known.
    ///
    /// They are unknown if the policy alone denied the request
    /// ([`Origin::Policy`](crate::Origin::Policy)), because no counter was read. Headers omit them
    /// then.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.part.is_read
    }

    /// Returns the largest number of units that can be used at once: [`Limit::capacity`].
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.limit().capacity()
    }

    /// Returns the units used in the current window.
    ///
    /// The number exceeds [`max`](Self::max) after a charge beyond the limit, or after the limit
    /// was lowered. It is 0 if the counter was not read ([`is_known`](Self::is_known)).
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.outcome.used()
    }

    /// Returns the remaining units. If the counter was not read ([`is_known`](Self::is_known)),
    /// returns the whole limit.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.max().saturating_sub(self.used())
    }

    /// Returns the time until the whole limit is available again. For a window, this is the time to
    /// its end, and zero if no window is open.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        match self.outcome.reset_micros() {
            0 => Duration::ZERO,
            micros => self.on_clock(micros),
        }
    }

    /// Returns the time from the [decision](super::Decision::at) until the whole limit is available
    /// again. It is shorter than [`reset_after`](Self::reset_after) if the store's clock has
    /// stepped back.
    pub(crate) const fn reset_after_decision(&self) -> Duration {
        Duration::from_micros(self.outcome.reset_micros())
    }

    /// Returns the wait until `micros` microseconds after the decision. If the store's clock was
    /// behind the decision, the wait includes this lag.
    const fn on_clock(&self, micros: u64) -> Duration {
        Duration::from_micros(micros).saturating_add(self.lag.duration())
    }

    /// Returns the time for which *this* limit denies the request.
    ///
    /// For a concurrency limit, this is the time until enough leases have ended. It is a bound:
    /// most requests free their places earlier. Clients read [`retry_hint`](Self::retry_hint).
    #[must_use]
    pub const fn retry_after(&self) -> RetryAfter {
        match self.outcome.retry_micros() {
            0 => RetryAfter::Now,
            Outcome::NEVER => RetryAfter::Never,
            micros => RetryAfter::In(self.on_clock(micros)),
        }
    }

    /// Returns the time after which a client should retry a request that *this* limit denies:
    /// [`retry_after`](Self::retry_after), but at most the [hint](Limit::with_retry_hint) of a
    /// concurrency limit.
    #[must_use]
    pub fn retry_hint(&self) -> RetryAfter {
        match (self.retry_after(), self.limit().retry_hint()) {
            (RetryAfter::In(wait), Some(hint)) => RetryAfter::In(wait.min(hint)),
            (wait, _) => wait,
        }
    }

    /// Returns whether this limit denies the request, or would deny it if it were not in shadow.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.outcome.is_over()
    }

    /// Returns whether the limit is not charged because it is in shadow and would have denied the
    /// request.
    pub(super) const fn is_uncharged(&self) -> bool {
        self.limit().is_shadow() && self.is_over()
    }

    /// Returns whether a refund leaves this limit unchanged. `is_part` says that only a part of the
    /// charge is refunded, which changes no limit that counts requests.
    pub(super) const fn keeps_charge(&self, is_part: bool) -> bool {
        self.is_uncharged() || is_part && self.limit().counts_requests()
    }

    /// Returns whether any units count as used now.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        self.outcome.reset_micros() != 0
    }
}

/// The status of every limit of a policy, after a decision.
#[derive(Clone)]
pub(super) struct LimitStatuses {
    pub(super) policy: PolicyHandle,
    pub(super) outcomes: Outcomes,
    pub(super) decided_at: Timestamp,
}

impl LimitStatuses {
    /// The statuses of a decision without a policy.
    pub(super) const NONE: Self =
        Self { policy: PolicyHandle::NONE, outcomes: Outcomes::NONE, decided_at: Timestamp::EPOCH };

    /// Creates the statuses of the limits of `policy`. `outcomes` contains one outcome for each
    /// limit, or is still empty.
    pub(super) fn new(policy: &Policy, outcomes: Outcomes, decided_at: Timestamp) -> Self {
        Self { policy: PolicyHandle::new(policy), outcomes, decided_at }
    }

    pub(super) const fn policy(&self) -> Option<&Policy> {
        self.policy.get()
    }

    /// Returns the status of each limit, in the order of the policy.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = LimitStatus<'_>> {
        let limits = self.policy().map_or(&[][..], Policy::limits);
        let windows = self.policy().and_then(Policy::compiled_windows);
        let limits = limits[..self.outcomes.count(limits.len())].iter().enumerate();
        limits.map(move |(index, limit)| LimitStatus {
            limit,
            outcome: self.outcomes.outcome(index, windows, self.decided_at),
            part: PartLabels::NONE,
            lag: ClockLag::NONE,
        })
    }

    /// Returns the status of the limit at `index`; `None` if there is no such limit, or no outcome.
    pub(super) fn get(&self, index: usize) -> Option<LimitStatus<'_>> {
        let policy = self.policy()?;
        let limit = policy.limits()[..self.outcomes.count(policy.limits().len())].get(index)?;
        let windows = policy.compiled_windows();
        let outcome = self.outcomes.outcome(index, windows, self.decided_at);
        Some(LimitStatus { limit, outcome, part: PartLabels::NONE, lag: ClockLag::NONE })
    }

    /// Returns the positions of the limits that deny the request.
    pub(super) fn over(&self) -> LimitSet {
        self.positions(|limit| limit.is_over())
    }

    /// Returns the positions of the limits that satisfy `condition`.
    pub(super) fn positions(&self, condition: impl Fn(&LimitStatus<'_>) -> bool) -> LimitSet {
        let limits = self.iter().enumerate();
        limits.filter(|(_, limit)| condition(limit)).map(|(index, _)| index).collect()
    }

    /// Makes the enforced limit with the fewest remaining units deny the request for `retry_micros`
    /// microseconds, as if no unit remained.
    pub(super) fn deny_by_scarcest(&mut self, retry_micros: u64) {
        let enforced = self.iter().enumerate().filter(|(_, status)| !status.limit().is_shadow());
        let scarcest = enforced.min_by_key(|(_, status)| status.remaining()).map(|(at, _)| at);
        let outcomes = self.iter().enumerate().map(|(at, status)| {
            if Some(at) == scarcest {
                let reset_micros = status.outcome.reset_micros();
                Outcome::denied(status.limit().capacity(), reset_micros, retry_micros)
            } else {
                status.outcome
            }
        });
        self.outcomes = outcomes.collect();
    }

    /// Returns the statuses as they will be in `micros` microseconds, if nothing is charged until
    /// then.
    #[cfg(feature = "redis")]
    pub(super) fn at_later(&self, micros: u64) -> Self {
        let later = |limit: LimitStatus<'_>| limit.outcome.at_later(micros);
        let outcomes = self.outcomes.at_later(micros);
        Self {
            policy: self.policy.clone(),
            outcomes: outcomes.unwrap_or_else(|| self.iter().map(later).collect()),
            decided_at: self.decided_at.plus_micros(micros),
        }
    }
}

impl fmt::Debug for LimitStatuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let statuses = self.iter().map(|status| (status.limit, status.outcome));
        write!(f, "at {}: ", self.decided_at.as_micros())?;
        f.debug_map().entries(statuses).finish()
    }
}

/// Selects the *governing* limit, which single-valued headers and the message of a denial describe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GoverningLimit {
    /// The active limit with the shortest period. For a denial, it is the one with the shortest
    /// period of the limits that deny.
    #[default]
    ShortestActive,
    /// The limit with the fewest units left. For a denial, it is one of the limits that deny. If
    /// several have equally few left, the one with the longest wait is selected.
    FewestRemaining,
}

impl GoverningLimit {
    /// Selects one of `limits`, the enforced limits of a decision.
    pub(super) fn select<'a>(
        self,
        limits: impl Iterator<Item = LimitStatus<'a>>,
        is_denied: bool,
    ) -> Option<LimitStatus<'a>> {
        let candidates = limits.filter(|limit| !is_denied || limit.is_over());
        match self {
            Self::ShortestActive => {
                candidates.min_by_key(|limit| (!limit.is_active(), limit.limit().period()))
            }
            Self::FewestRemaining => candidates.min_by_key(|limit| {
                let wait = match is_denied {
                    true => limit.retry_after(),
                    false => RetryAfter::In(limit.reset_after()),
                };
                (limit.remaining(), Reverse(wait))
            }),
        }
    }
}
