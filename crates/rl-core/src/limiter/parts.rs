//! Operations on requests that are counted under several subjects.

use std::time::Duration;

use super::administration::reset_named;
use super::charges::Charge;
use super::operation::Operation;
use super::owned_parts::OwnedParts;
use super::settlements::refund_of;
use super::waiting::{Wait, WaitingRequest};
use super::{Permit, RateLimiter, ResetError};
use crate::decision::{Decision, Origin};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, Mode};
use crate::store::{Namespace, Part, StoreFuture};

/// # Requests of several parts
///
/// A request may belong to several subjects at once: its key, its customer, the whole fleet. Each
/// of them is a [`Part`] with limits and a cost of its own. All parts are decided in one step: all
/// are charged, or none.
///
/// * A denial by one part changes no counter of the others. The order of the parts does not matter.
/// * Counters belong to the namespace and the subject of a part. If two parts have the same
///   namespace and subject, their costs are added, and both report the same status. A limit that
///   counts requests counts one request.
/// * The failure policy, the circuit breaker and the fallback apply to the request as a whole.
/// * A request without parts is not limited.
/// * A request has at most [`Part::MAX`] parts. A request with more parts is a configuration
///   failure. So is a request with different limits for the same counters.
impl RateLimiter {
    /// Returns the namespace in which the limiter counts.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.pipeline.stores.namespace
    }

    /// Charges the cost of each part to all its limits, or nothing to any part.
    ///
    /// # Examples
    ///
    /// A key that is over its limit does not use up the limit of the fleet:
    ///
    /// ```
    /// use rl_core::{Limit, Part, Policy, RateLimiter, Subject};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(2)).build()?;
    /// let fleet = limiter.namespace().rule("fleet")?;
    /// let (of_key, of_fleet) = (Policy::new([Limit::per_minute(2)])?, Policy::new([Limit::per_hour(100)])?);
    /// let (key, all) = (Subject::consumer("abc123"), Subject::global());
    /// let of_fleet = Part::new(&all, &of_fleet, 1.into()).with_namespace(&fleet);
    ///
    /// for _ in 0..5 {
    ///     let decision = limiter.check_parts(&[Part::new(&key, &of_key, 1.into()), of_fleet]).await;
    ///     let waits: Vec<_> = decision.parts().map(|part| part.is_over()).collect();
    ///     assert_eq!(waits, [!decision.is_allowed(), false]);
    /// }
    /// let usage = limiter.usage_of_part(of_fleet).await?;
    /// assert_eq!(usage.limits().next().map(|hour| hour.used()), Some(2));
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// As [`check`](Self::check): if the future is dropped before it is ready, the units may or may
    /// not have been charged.
    pub fn check_parts(&self, parts: &[Part<'_>]) -> MaybeReady<Decision> {
        self.decide_parts(parts, Mode::Check, false)
    }

    /// Charges the largest number `n` of units that all parts grant. Each part is charged `n`
    /// units, or its cost if that is less. The request is denied if `n` is zero.
    pub fn check_parts_up_to(&self, parts: &[Part<'_>]) -> MaybeReady<Decision> {
        self.decide_parts(parts, Mode::CheckUpTo, false)
    }

    /// Decides whether the cost of each part would be granted now. Charges nothing.
    pub fn peek_parts(&self, parts: &[Part<'_>]) -> MaybeReady<Decision> {
        self.decide_parts(parts, Mode::Peek, false)
    }

    /// Charges units that were already used, even beyond the limits. Concurrency limits are not
    /// charged.
    pub fn charge_parts(&self, parts: &[Part<'_>]) -> MaybeReady<Decision> {
        self.decide_parts(parts, Mode::Charge, false)
    }

    /// Decides in the given mode. With `reserves`, the charges are reservations, provided that the
    /// limiter is set to make reservations.
    pub(crate) fn decide_parts(
        &self,
        parts: &[Part<'_>],
        mode: Mode,
        reserves: bool,
    ) -> MaybeReady<Decision> {
        let operation = Operation { reserves, ..self.pipeline.operation(mode) };
        self.pipeline.decide_parts(parts, &operation)
    }

    /// Decides like [`check_parts`](Self::check_parts). If the limits deny the request, it waits
    /// until they allow it, as [`check_waiting`](Self::check_waiting) does.
    ///
    /// The request waits in the queue of one part: the part that denies it for the longest time, or
    /// a part for which other requests wait already.
    pub fn check_parts_waiting(
        &self,
        parts: &[Part<'_>],
        at_most: Duration,
        queue: usize,
    ) -> MaybeReady<Decision> {
        self.decide_parts_or_wait(parts, Wait { at_most, queue, reserves: false })
    }

    /// Decides, and waits in a queue while the limits deny the request.
    pub(crate) fn decide_parts_or_wait(
        &self,
        parts: &[Part<'_>],
        wait: Wait,
    ) -> MaybeReady<Decision> {
        WaitingRequest::of_parts(&self.pipeline, parts, wait).check()
    }

    /// Decides like [`check_parts`](Self::check_parts), and returns a permit. The permit holds the
    /// units of concurrency limits of all parts, and can still change the cost of each part.
    pub fn acquire_parts(&self, parts: &[Part<'_>]) -> MaybeReady<Permit> {
        match self.decide_parts(parts, Mode::Check, true) {
            MaybeReady::Ready(Some(decision)) => {
                MaybeReady::ready(self.permit_of_parts(parts, decision))
            }
            later => {
                let (this, owned) = (self.clone(), OwnedParts::new(parts));
                later.map(move |decision| this.permit_of_parts(&owned.as_parts(), decision))
            }
        }
    }

    /// Returns the permit for a request of these parts that was decided before. Call it once for
    /// each decision, because two permits would settle the same charge twice.
    pub fn permit_of_parts(&self, parts: &[Part<'_>], decision: Decision) -> Permit {
        Permit::of_parts(&self.pipeline, parts, decision)
    }

    /// Refunds units of the charge of `decision` to each part, in one step. `units` has one number
    /// for each part.
    ///
    /// Call it once for each decision, with the parts of the request. At most the charged units of
    /// a part are refunded, and only those that still count. Parts with the same counters are
    /// refunded together: a limit that counts requests is refunded only if all their units are.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store fails. Units may have been refunded nevertheless.
    pub fn refund_parts(
        &self,
        parts: &[Part<'_>],
        decision: &Decision,
        units: &[u64],
    ) -> StoreFuture<()> {
        let stores = &self.pipeline.stores;
        let charges = Charge::of_parts(&stores.namespace, parts, decision);
        for part in charges.iter().flat_map(|charge| &charge.parts) {
            let refunded = units.get(part.index).map_or(0, |units| part.units.min(*units));
            self.pipeline.tally.refunded(refunded);
        }
        let refunds: Vec<_> =
            charges.iter().filter_map(|charge| refund_of(charge, stores, units)).collect();
        stores.settle(decision, &refunds)
    }

    /// Returns the status of each limit of a part. Charges nothing, and the failure policy does not
    /// apply. The cost of the part is ignored.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store fails.
    pub fn usage_of_part(&self, part: Part<'_>) -> StoreFuture<Decision> {
        self.pipeline.stores.usage(part.policy, &part)
    }

    /// Returns the status of each limit of all parts. Charges nothing, and the failure policy does
    /// not apply. The costs of the parts are ignored.
    ///
    /// On Redis, this takes one call, or one for each slot of a cluster. Without parts, the decision
    /// has no limits.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store fails, or if there are more than [`Part::MAX`] parts.
    pub fn usage_of_parts(&self, parts: &[Part<'_>]) -> StoreFuture<Decision> {
        if parts.is_empty() {
            return MaybeReady::ready(Ok(Decision::undecided(Cost::ZERO, Origin::Unlimited)));
        }
        let parts: Vec<_> = parts.iter().map(|part| Part { cost: Cost::ZERO, ..*part }).collect();
        self.pipeline.stores.usage_of_parts(&parts)
    }

    /// Resets all limits of all parts to unused. On Redis, this takes one call for each 128 parts, or
    /// for those in each slot of a cluster.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store fails. Some of the parts may have been reset.
    pub fn reset_parts(&self, parts: &[Part<'_>]) -> StoreFuture<()> {
        self.pipeline.stores.reset_parts(parts)
    }

    /// Resets the limit called `name` under the policy of a part, or all its limits if `name` is
    /// `None`.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the policy has no limit of this name, or if the store fails.
    pub fn reset_part(
        &self,
        part: Part<'_>,
        name: Option<&str>,
    ) -> MaybeReady<Result<(), ResetError>> {
        reset_named(&self.pipeline, part.policy, &part, name)
    }
}
