//! The rate limiter, and its behaviour when no decision can be made.

mod administration;
mod build_error;
mod builder;
mod circuit_breaker;
mod damaged_subjects;
mod decision_events;
mod events;
mod failure_policy;
mod in_flight;
mod named_rule;
mod near_limit;
mod operation;
mod parts;
mod pauses;
mod permit;
mod pipeline;
mod policies;
mod policy_denial;
mod renewals;
mod request;
mod rule_policies;
mod settlements;
mod stores;
mod tally;
#[cfg(test)]
mod tests;
mod wait_queue;
mod waiting;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use administration::ResetError;
pub use build_error::BuildError;
pub use builder::RateLimiterBuilder;
pub use failure_policy::Share;
pub use named_rule::NamedRule;
use operation::Operation;
pub use permit::Permit;
use pipeline::Pipeline;
pub use request::{LimiterRequest, RequestSubjects, WaitingRequest};
use rule_policies::RequiredLookups;
use tally::LimiterState;
pub(crate) use tally::OutsideDecisions;
use waiting::QueuedRequest;

use crate::decision::{Decision, Origin};
use crate::key::RequestInfo;
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, FailureKind, Mode, OnFailure, Subject};
use crate::rules::{CountingRule, OverLimit, RequestParts, RuleSet};
use crate::stats::LimiterStats;
use crate::store::{Namespace, StoreFuture};

/// Decides whether requests are allowed. Clones are cheap, and share counters and settings.
///
/// # Example
///
/// ```
/// use rl_core::{Limit, OnFailure, RateLimiter, Subject};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::builder()
///     .limit(Limit::per_second(10))
///     .limit(Limit::per_day(5_000))
///     .on_store_failure(OnFailure::Reject)
///     .build()?;
///
/// let caller = Subject::consumer("abc123");
/// let decision = limiter.check(&caller, 3).await;
/// assert!(decision.is_allowed());
///
/// // The work was not done after all: refund two units.
/// limiter.request(&caller).refund(&decision, &[2]).await?;
/// let usage = limiter.usage(&caller).await?;
/// assert!(usage.limits().all(|limit| limit.used() == 1));
///
/// limiter.reset(&caller).await?;
/// # Ok(()) }
/// ```
///
/// # When the store fails
///
/// 1. **No decision takes longer than the [deadline](RateLimiterBuilder::deadline)**, or twice the
///    deadline if a [fallback](RateLimiterBuilder::fallback) on a server decides.
/// 2. After the deadline the failure policy ([`OnFailure`]) applies. The request is allowed,
///    rejected, or decided by a [fallback](RateLimiterBuilder::fallback) on a [`Share`] of the
///    limits. [`Decision::origin`] says which.
/// 3. **A circuit breaker** stops calls to a store that is down or slow. After three failures in a
///    row the failure policy decides without waiting. A probe every 50 to 200 ms finds out whether
///    the store has recovered. A store that *refuses* calls is still called, because refused
///    requests are rejected by default.
/// 4. **Some denials need no store.** A [block](crate::Policy::blocked_until), a limit of 0 and a
///    cost above every capacity are denied by the policy alone
///    ([`Origin::Policy`](crate::Origin::Policy)). These denials hold while the store is down, slow
///    or full.
/// 5. **At most [`max_in_flight`](RateLimiterBuilder::max_in_flight) decisions wait for each
///    server**, and fewer if the server would answer them late.
/// 6. **An overload is not an outage.** One client may cause it, so by default it lifts no limit.
///    If the store or the source of policies is overloaded, a request is denied if a cached denial
///    still holds. Otherwise it is rejected with 503 and `Retry-After: 1`.
///    [`RateLimiterBuilder::on_overload`] changes that.
/// 7. Units are refunded to the store that has counted them. Operations that read, such as
///    [`usage`](RateLimiter::usage), return an error if the store fails: the failure policy does
///    not apply to them.
#[derive(Clone)]
pub struct RateLimiter {
    pipeline: Arc<Pipeline>,
}

impl RateLimiter {
    /// Returns a builder.
    pub fn builder() -> RateLimiterBuilder {
        RateLimiterBuilder::default()
    }

    /// Charges `cost` units to every limit of `subject`, or to none of them.
    ///
    /// Under a concurrency limit use [`acquire`](Self::acquire): units that this method charges
    /// come back only when their lease ends.
    ///
    /// The future is ready at once if the store is in memory.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the units may or may not have been charged.
    pub fn check(&self, subject: &Subject, cost: impl Into<Cost>) -> MaybeReady<Decision> {
        self.pipeline.decide(subject, Mode::Check, cost.into(), false)
    }

    /// Decides whether `cost` units would be granted now. Charges nothing.
    pub fn peek(&self, subject: &Subject, cost: impl Into<Cost>) -> MaybeReady<Decision> {
        self.pipeline.decide(subject, Mode::Peek, cost.into(), false)
    }

    /// Decides like [`check`](Self::check), and returns a permit. The permit holds the units of
    /// concurrency limits, and can still change the cost.
    ///
    /// [`Permit::decision`] says whether the request is allowed. The permit of a denied request
    /// holds nothing. With
    /// [`reservation_expires_after`](RateLimiterBuilder::reservation_expires_after), the charge is
    /// refunded if this process dies.
    pub fn acquire(&self, subject: &Subject, cost: impl Into<Cost>) -> MaybeReady<Permit> {
        self.request(subject).cost(cost).acquire()
    }

    /// Returns the status of each limit of `subject`. Charges nothing, and the failure policy does
    /// not apply.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store fails.
    pub fn usage(&self, subject: &Subject) -> StoreFuture<Decision> {
        self.request(subject).usage()
    }

    /// Resets all limits of `subject` to unused.
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store fails.
    pub fn reset(&self, subject: &Subject) -> StoreFuture<()> {
        self.request(subject).reset()
    }

    /// Denies all requests of `subject` for this time. A pause that ends later stays.
    ///
    /// Use it if the other side of outgoing calls asks for a break. A paused request is denied like
    /// a [blocked](crate::Policy::blocked_until) one, and charged nothing. If it may
    /// [wait](LimiterRequest::wait), it waits until the pause has ended and its limits allow it.
    ///
    /// A pause holds in this process, for this limiter and its clones, under all limits of the
    /// subject; other instances on the same store do not learn of it. A decision that is in flight
    /// is not affected. Like a block, a pause denies nothing in shadow, and no request of a subject
    /// without limits.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rl_core::{Limit, RateLimiter, RetryAfter, Subject};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_second(10)).build()?;
    /// let partner = Subject::global();
    /// limiter.pause(&partner, Duration::from_secs(7));
    /// let denied = limiter.check(&partner, 1).await;
    /// assert_eq!(denied.retry_after(), RetryAfter::In(Duration::from_secs(7)));
    /// let waited = limiter.request(&partner).wait(Duration::from_secs(10), 100).check().await;
    /// assert!(waited.is_allowed());
    /// # Ok(()) }
    /// ```
    pub fn pause(&self, subject: &Subject, period: Duration) {
        self.pipeline.pauses.pause(subject, period);
    }

    /// Creates a request of one subject or several [parts](crate::Part), for everything that the
    /// other methods do not cover: several subjects in one step, other limits, waiting, refunds,
    /// the reset of one limit. [`LimiterRequest`] lists the calls.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::{Limit, RateLimiter, Subject};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(5)).build()?;
    /// let caller = Subject::consumer("abc123");
    /// let decision = limiter.request(&caller).cost(7).check_up_to().await;
    /// assert_eq!(decision.parts().map(|part| part.charged()).sum::<u64>(), 5);
    /// # Ok(()) }
    /// ```
    pub fn request<'a>(&'a self, subjects: impl Into<RequestSubjects<'a>>) -> LimiterRequest<'a> {
        LimiterRequest::new(&self.pipeline, subjects.into())
    }

    /// Returns the rule called `name`, to create a request that it counts:
    /// `limiter.rule("users").of(&alice).check()`. Use it if a layer cannot know the subject, such
    /// as the user name in the body of a request.
    pub const fn rule<'a>(&'a self, name: &'a str) -> NamedRule<'a> {
        NamedRule::new(&self.pipeline, name)
    }

    /// Returns the units that this process has reserved ahead to the store. Call it when a service
    /// shuts down, after its last request.
    ///
    /// The call waits for the settlements of [permits](Permit) that were dropped, and
    /// [closes](crate::store::Store::close) the store and its fallback. On Redis, the leased units
    /// become available to the other instances. Afterwards the limiter continues to decide, but
    /// without leases; so do all limiters on the same store.
    ///
    /// The call takes a few round trips, or up to 5 seconds if a store does not answer.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rl_core::{Limit, RateLimiter};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_hour(1_000)).build()?;
    /// // serve(limiter.clone()).with_graceful_shutdown(..).await?;
    /// limiter.close().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Resolves to an error if some units could not be returned. They stay charged until their
    /// windows end, so a service may log the error and exit.
    pub fn close(&self) -> StoreFuture<()> {
        let pipeline = Arc::clone(&self.pipeline);
        MaybeReady::later(async move {
            pipeline.settlements.finish().await;
            pipeline.stores.close().await
        })
    }

    /// Publishes a text about this instance for the others on the same store, such as its denials
    /// for a console. The circuit breaker and the deadline do not apply.
    ///
    /// # Errors
    ///
    /// Resolves to the errors of [`Store::publish_note`](crate::store::Store::publish_note).
    pub fn publish_note(&self, instance: &str, note: &str) -> StoreFuture<()> {
        let stores = &self.pipeline.stores;
        stores.primary.publish_note(&stores.namespace, instance, note)
    }

    /// Returns the notes that instances on the same store, also this one, have
    /// [published](Self::publish_note).
    ///
    /// # Errors
    ///
    /// Resolves to the errors of [`Store::publish_note`](crate::store::Store::publish_note).
    pub fn read_notes(&self) -> StoreFuture<Vec<String>> {
        let stores = &self.pipeline.stores;
        stores.primary.read_notes(&stores.namespace)
    }

    /// Returns the namespace in which the limiter counts.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.pipeline.stores.namespace
    }

    /// Returns whether the limiter is switched on.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.pipeline.enabled
    }

    /// Returns the setting for requests that the store cannot decide because of a failure of this
    /// kind.
    #[must_use]
    pub fn on_failure(&self, kind: FailureKind) -> OnFailure {
        self.pipeline.failure_policy.setting(kind)
    }

    /// Returns whether the limiter is in shadow: it decides and reports, but denies nothing.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.pipeline.failure_policy.is_shadow
    }

    /// Returns a handle that does not keep the limiter alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakRateLimiter {
        WeakRateLimiter(Arc::downgrade(&self.pipeline))
    }

    /// Returns the counts of the limiter since it was built, and those of its store.
    ///
    /// This takes some microseconds for each limit, and locks each shard of a store in memory. It
    /// suits a reader that asks every few seconds.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::{Limit, RateLimiter, Subject};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// limiter.check(&Subject::consumer("abc123"), 1).await;
    /// assert_eq!(limiter.stats().allowed(), 1);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn stats(&self) -> LimiterStats {
        let pipeline = &*self.pipeline;
        let policies = match &pipeline.rules {
            Some(rules) => {
                let rules = rules.current();
                let of_rule = |(name, policies): (&Namespace, _)| (Some(name.clone()), policies);
                rules.policies_by_tier().map(of_rule).collect()
            }
            None => {
                let own = pipeline.policies.of_all();
                own.map(|policy| (None, vec![(String::new(), policy.clone())]))
                    .into_iter()
                    .collect()
            }
        };
        let report = pipeline.stores.primary.report();
        pipeline.tally.stats(LimiterState {
            store_name: report.label,
            store: report.stats,
            in_flight: pipeline.waiting_for_stores(),
            waiting: pipeline.wait_queues.waiting(),
            is_breaker_closed: pipeline.breaker.is_closed(),
            policies,
            rules_file: pipeline.rules.as_ref().and_then(|rules| rules.file_stats()),
        })
    }

    /// Returns the names of the rules that apply now, in their order. Returns `None` if the limiter
    /// has no rules. [`NamedRule::is_shadow`] says which of them are in shadow.
    #[must_use]
    pub fn rule_names(&self) -> Option<Vec<String>> {
        Some(self.rules()?.names().map(ToOwned::to_owned).collect())
    }

    /// Returns the rules that may count one of `subjects`, in their order, for reports about these
    /// subjects. The extractors of a rule say which subjects they may return: see
    /// [`KeyExtractor::counts`](crate::key::KeyExtractor::counts).
    ///
    /// If `request` is given, the rules that do not match it are left out. A rule without
    /// extractors counts [`Subject::global`].
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::key::{ClientAddress, Header};
    /// use rl_core::rules::{Rule, Rules};
    /// use rl_core::{Limit, RateLimiter, Realm, Subject};
    ///
    /// let consumers = Rule::named("consumers").per(Header::new("x-consumer", Realm::Consumer)?);
    /// let addresses = Rule::named("addresses").per(ClientAddress::default());
    /// let rules = [consumers, addresses, Rule::named("fleet")];
    /// let rules = rules.into_iter().fold(Rules::new(), |rules, rule| rules.rule(rule.limit(Limit::per_minute(5))));
    /// let limiter = RateLimiter::builder().rules(rules).build()?;
    ///
    /// let subject = Subject::consumer("abc123");
    /// let names = |subjects: &[Subject]| -> Vec<_> {
    ///     limiter.rules_of(subjects, None).into_iter().map(|rule| rule.name).collect()
    /// };
    /// assert_eq!(names(&[subject.clone()]), ["consumers"]);
    /// assert_eq!(names(&[subject, Subject::global()]), ["consumers", "fleet"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn rules_of(
        &self,
        subjects: &[Subject],
        request: Option<&dyn RequestInfo>,
    ) -> Vec<CountingRule> {
        self.rules().map_or_else(Vec::new, |rules| rules.rules_of(subjects, request))
    }

    /// Returns the rules that apply now, if the limiter has rules.
    pub(crate) fn rules(&self) -> Option<Arc<RuleSet>> {
        self.pipeline.current_rules()
    }

    /// Returns whether the limiter has rules.
    pub(crate) fn has_rules(&self) -> bool {
        self.pipeline.rules.is_some()
    }

    /// Decides a request under rules. If it is checked, and the rules that deny it let requests
    /// wait, it waits in a queue. `default` applies to rules without a setting of their own.
    pub(crate) fn decide_rules(
        &self,
        parts: &Arc<RequestParts>,
        mode: Mode,
        default: OverLimit,
        reserves: bool,
    ) -> MaybeReady<Decision> {
        let pipeline = &self.pipeline;
        if !pipeline.enabled {
            let ((subject, cost), operation) = (parts.main(), pipeline.operation(mode));
            return pipeline.report_undecided(subject, cost, operation, Origin::Disabled);
        }
        let required = RequiredLookups::Enforced;
        pipeline.with_policies(parts, required, move |pipeline, parts, found| {
            let deadline = match found {
                Ok(deadline) => deadline,
                Err(error) => {
                    let operation = pipeline.operation(mode);
                    return pipeline.report_failed_lookup(parts.main(), operation, &error);
                }
            };
            let operation = Operation { deadline, reserves, ..pipeline.operation(mode) };
            let waits = |over_limit| matches!(over_limit, OverLimit::Wait { .. });
            if mode == Mode::Check && parts.may(default, waits) {
                return QueuedRequest::of_rules(pipeline, parts, default, operation).check();
            }
            pipeline.decide_parts(&parts.parts(), operation)
        })
    }

    /// Returns the permit for a request under rules that was decided before.
    pub(crate) fn permit_of_rules(&self, parts: &Arc<RequestParts>, decision: Decision) -> Permit {
        Permit::of_rules(&self.pipeline, parts, decision)
    }

    /// Counts a request that has no decision, or a denied request that is forwarded.
    ///
    /// A request has no decision if it is exempt, its key is missing or ambiguous, its address is
    /// unknown, or too many rules match it.
    pub(crate) fn count_uncounted(&self, kind: OutsideDecisions) {
        self.pipeline.tally.uncounted(kind);
    }

    /// Returns a number that the limiter shares with its clones, and with no other limiter that is
    /// alive.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.pipeline).addr()
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("stores", &self.pipeline.stores)
            .field("enabled", &self.pipeline.enabled)
            .finish_non_exhaustive()
    }
}

/// A handle that does not keep its limiter alive, for tasks that watch a limiter.
///
/// [`RateLimiter::downgrade`] creates it.
#[derive(Clone)]
pub struct WeakRateLimiter(Weak<Pipeline>);

impl WeakRateLimiter {
    /// Returns the limiter, or `None` after its last handle was dropped.
    #[must_use]
    pub fn upgrade(&self) -> Option<RateLimiter> {
        self.0.upgrade().map(|pipeline| RateLimiter { pipeline })
    }
}

impl fmt::Debug for WeakRateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakRateLimiter")
    }
}
