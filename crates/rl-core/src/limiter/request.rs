//! A request to a limiter: its subjects, its settings and its operations.

use std::borrow::Cow;
use std::fmt;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use super::administration::{ResetError, with_policy};
use super::operation::Operation;
use super::parts::OwnedParts;
use super::permit::Permit;
use super::pipeline::Pipeline;
use super::rule_policies::RequiredLookups;
use super::settlements::refund_parts;
use super::waiting::{QueuedRequest, Wait};
use crate::decision::{Decision, Origin};
use crate::maybe_ready::{MaybeReady, done};
use crate::model::{Cost, FailureKind, Mode, StoreError, Subject};
use crate::policy::Policy;
use crate::rules::OfRule;
use crate::store::{Part, StoreFuture};

/// The subjects under which a request is counted, and the settings of this request alone.
/// [`RateLimiter::request`](crate::RateLimiter::request) and
/// [`NamedRule::of`](crate::NamedRule::of) create it. The last call says what to do:
///
/// | call | charges | returns |
/// |---|---|---|
/// | [`check`](Self::check) | the cost, or nothing | the decision |
/// | [`check_up_to`](Self::check_up_to) | as much of the cost as the limits grant | the decision |
/// | [`acquire`](Self::acquire) | the cost, or nothing | a [`Permit`], which settles the charge at the end of the request |
/// | [`wait`](Self::wait) | | a request that waits while the limits deny it |
/// | [`peek`](Self::peek) | nothing | the decision |
/// | [`charge`](Self::charge) | the cost, even beyond the limits | the decision |
/// | [`usage`](Self::usage) | nothing | the status of each limit |
/// | [`refund`](Self::refund) | gives units of a decision back | |
/// | [`permit`](Self::permit) | | the permit of a decision that was made before |
/// | [`reset`](Self::reset), [`reset_limit`](Self::reset_limit) | sets counters to unused | |
///
/// A request borrows its subjects, and is cheap to copy. [`Part`] describes requests of several
/// subjects.
///
/// # Examples
///
/// ```
/// use rl_core::{Limit, Policy, RateLimiter, Subject};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
/// let caller = Subject::consumer("abc123");
/// let trial = Policy::new([Limit::per_minute(5)])?;
///
/// let request = limiter.request(&caller).policy(&trial).cost(3);
/// assert!(request.check().await.is_allowed());
/// assert!(!request.check().await.is_allowed());
/// assert_eq!(request.usage().await?.limits().next().map(|limit| limit.used()), Some(3));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy)]
#[must_use = "a request does nothing until it is checked"]
pub struct LimiterRequest<'a> {
    pipeline: &'a Arc<Pipeline>,
    subjects: RequestSubjects<'a>,
    cost: Option<Cost>,
    policy: Option<&'a Policy>,
    /// Whether the charge is to be a reservation.
    reserves: bool,
}

/// A reference to the subjects that a request is counted under: a [`Subject`], a [`Part`], or a
/// list of parts. [`RateLimiter::request`](crate::RateLimiter::request) takes it.
#[derive(Clone, Copy, Debug)]
pub struct RequestSubjects<'a>(Subjects<'a>);

#[derive(Clone, Copy, Debug)]
enum Subjects<'a> {
    /// A subject under the policy of the limiter.
    Subject(&'a Subject),
    Parts(&'a [Part<'a>]),
    Rule(OfRule<'a>),
}

impl<'a> From<&'a Subject> for RequestSubjects<'a> {
    fn from(subject: &'a Subject) -> Self {
        Self(Subjects::Subject(subject))
    }
}

impl<'a> From<&'a Part<'a>> for RequestSubjects<'a> {
    fn from(part: &'a Part<'a>) -> Self {
        Self(Subjects::Parts(slice::from_ref(part)))
    }
}

impl<'a, T: AsRef<[Part<'a>]> + ?Sized> From<&'a T> for RequestSubjects<'a> {
    fn from(parts: &'a T) -> Self {
        Self(Subjects::Parts(parts.as_ref()))
    }
}

impl<'a> LimiterRequest<'a> {
    pub(super) fn new(pipeline: &'a Arc<Pipeline>, subjects: RequestSubjects<'a>) -> Self {
        Self { pipeline, subjects, cost: None, policy: None, reserves: false }
    }

    /// Creates a request that a rule counts.
    pub(super) fn of_rule(pipeline: &'a Arc<Pipeline>, of: OfRule<'a>) -> Self {
        Self::new(pipeline, RequestSubjects(Subjects::Rule(of)))
    }

    /// Sets the cost of the request. If the request consists of [parts](Part), sets the cost of
    /// each part.
    ///
    /// By default, a request costs 1, and a part has the cost with which it was created.
    pub fn cost(self, cost: impl Into<Cost>) -> Self {
        Self { cost: Some(cost.into()), ..self }
    }

    /// Sets the limits of the request, in place of the subject's own. A change of limits keeps the
    /// counts of limits with the same algorithm and period.
    ///
    /// For a request of several parts, it replaces the limits of each part. For a request under a
    /// rule, it replaces the limits of the rule.
    pub fn policy(self, policy: &'a Policy) -> Self {
        Self { policy: Some(policy), ..self }
    }

    /// Sets whether the charge is a reservation, provided that the limiter is set to make
    /// reservations.
    pub(crate) fn reserving(self, reserves: bool) -> Self {
        Self { reserves, ..self }
    }

    /// Lets the request wait if the limits deny it, until they allow it.
    ///
    /// Each subject has a queue, which is served first come, first served. A request is denied
    /// without waiting if `queue` requests of the subject wait already, or if waiting cannot help.
    /// At the head of the queue, a request is denied if it would have to wait longer than
    /// `at_most`. Requests that the failure policy rejects do not wait.
    ///
    /// A request of several parts waits in the queue of one part: the part that denies it for the
    /// longest time, or a part for which other requests wait already.
    ///
    /// The queue orders the requests of this limiter and its clones. Other instances on the same
    /// store have queues of their own.
    ///
    /// If a request has to wait, the observer gets the first denial. It gets the final decision
    /// only if that allows the request.
    ///
    /// Requests wait on tokio's timers, whatever the clock of the store is. Tests that must not
    /// wait in real time give the store a [`TokioClock`](crate::time::TokioClock).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rl_core::{Limit, RateLimiter, Subject};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_second(50)).build()?;
    /// let partner = Subject::global();
    /// let decision = limiter.request(&partner).wait(Duration::from_secs(2), 100).check().await;
    /// assert!(decision.is_allowed());
    /// # Ok(()) }
    /// ```
    pub fn wait(self, at_most: Duration, queue: usize) -> WaitingRequest<'a> {
        WaitingRequest { request: self, wait: Wait { at_most, queue } }
    }

    /// Charges the cost to every limit of every subject of the request, or to none of them.
    ///
    /// Under a concurrency limit use [`acquire`](Self::acquire): units that this method charges
    /// come back only when their lease ends.
    ///
    /// The future is ready at once if the store is in memory.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the units may or may not have been charged.
    #[inline]
    pub fn check(self) -> MaybeReady<Decision> {
        self.decide(Mode::Check)
    }

    /// Charges the largest number `n` of units that all limits grant, and at most the cost. Denies
    /// the request if `n` is zero.
    ///
    /// Each part is charged `n` units, or its cost if that is less. Parts with the same subject and
    /// namespace count as one part with the sum of their costs.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rl_core::{Limit, RateLimiter, Subject};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(5)).build()?;
    /// let decision = limiter.request(&Subject::consumer("abc123")).cost(7).check_up_to().await;
    /// assert_eq!(decision.parts().map(|part| part.charged()).sum::<u64>(), 5);
    /// # Ok(()) }
    /// ```
    pub fn check_up_to(self) -> MaybeReady<Decision> {
        self.decide(Mode::CheckUpTo)
    }

    /// Decides whether the cost would be granted now. Charges nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rl_core::{Limit, RateLimiter, Subject};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(5)).build()?;
    /// let caller = Subject::consumer("abc123");
    /// assert!(limiter.request(&caller).cost(5).peek().await.is_allowed());
    /// assert!(!limiter.request(&caller).cost(6).peek().await.is_allowed());
    /// # Ok(()) }
    /// ```
    pub fn peek(self) -> MaybeReady<Decision> {
        self.decide(Mode::Peek)
    }

    /// Charges units that were already used, even beyond the limits.
    ///
    /// The limits never deny such a charge, but the failure policy may. Concurrency limits are not
    /// charged, because the work has already finished.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rl_core::{Limit, RateLimiter, Subject};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(5)).build()?;
    /// let caller = Subject::consumer("abc123");
    /// assert!(limiter.request(&caller).cost(7).charge().await.is_allowed());
    /// assert!(!limiter.check(&caller, 1).await.is_allowed());
    /// # Ok(()) }
    /// ```
    pub fn charge(self) -> MaybeReady<Decision> {
        self.decide(Mode::Charge)
    }

    /// Decides like [`check`](Self::check), and returns a permit. The permit holds the units of
    /// concurrency limits, and can still change the cost, or the cost of each part.
    ///
    /// [`Permit::decision`] says whether the request is allowed. The permit of a denied request
    /// holds nothing. With
    /// [`reservation_expires_after`](crate::RateLimiterBuilder::reservation_expires_after), the
    /// charge is refunded if this process dies.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rl_core::{Limit, RateLimiter, Subject};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::concurrency(1)?).build()?;
    /// let caller = Subject::consumer("abc123");
    /// let permit = limiter.request(&caller).acquire().await;
    /// assert!(permit.decision().is_allowed());
    /// assert!(!limiter.request(&caller).acquire().await.decision().is_allowed());
    /// drop(permit);
    /// assert!(limiter.request(&caller).acquire().await.decision().is_allowed());
    /// # Ok(()) }
    /// ```
    pub fn acquire(self) -> MaybeReady<Permit> {
        let decision = self.reserving(true).check();
        self.permit_once_decided(decision)
    }

    /// Returns the permit for a request that was decided before, such as one that had to
    /// [wait](Self::wait). Call it once for each decision, because two permits would settle the
    /// same charge twice.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rl_core::{Limit, RateLimiter, Subject};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let caller = Subject::consumer("abc123");
    /// let request = limiter.request(&caller).cost(40);
    /// let decision = request.check().await;
    /// let permit = request.permit(decision);
    /// permit.set_cost(25);
    /// permit.settle().await?;
    /// assert_eq!(request.usage().await?.limits().next().map(|limit| limit.used()), Some(25));
    /// # Ok(()) }
    /// ```
    pub fn permit(self, decision: Decision) -> Permit {
        let pipeline = self.pipeline;
        match self.subjects.0 {
            Subjects::Subject(subject) => Permit::new(pipeline, None, subject.clone(), decision),
            Subjects::Parts(parts) => Permit::of_parts(pipeline, parts, decision),
            Subjects::Rule(of) => {
                let rules = self.pipeline.current_rules();
                match rules.and_then(|rules| rules.parts_of_rule(of, Cost::ZERO)) {
                    Some(parts) => {
                        parts.set_policies_of(&decision);
                        Permit::of_rules(pipeline, &Arc::new(parts), decision)
                    }
                    None => Permit::new(pipeline, None, of.subject.clone(), decision),
                }
            }
        }
    }

    /// Refunds units of the charge of `decision` to each part, in one step. `units` has one number
    /// for each part; for a request of one subject, it has one number.
    ///
    /// Call it once for each decision, with the subjects of the request. A second call would refund
    /// units that other requests have used. At most the charged units of a part are refunded, and
    /// only those that still count: windows that have ended and tokens that have been refilled
    /// refund nothing. Parts with the same counters are refunded together: a limit that counts
    /// requests is refunded only if all their units are.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rl_core::{Limit, RateLimiter, Subject};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let caller = Subject::consumer("abc123");
    /// let decision = limiter.check(&caller, 3).await;
    /// limiter.request(&caller).refund(&decision, &[2]).await?;
    /// assert_eq!(limiter.usage(&caller).await?.limits().next().map(|limit| limit.used()), Some(1));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store fails. Units may have been refunded nevertheless.
    pub fn refund(self, decision: &Decision, units: &[u64]) -> StoreFuture<()> {
        let Pipeline { stores, tally, events, .. } = &**self.pipeline;
        let counts = (tally, &**events);
        let refund = |parts: &[Part<'_>]| refund_parts(stores, counts, parts, decision, units);
        // `decision.policy()` does not show the policy of an undisclosed part, but the decision on
        // the part does.
        let of_first = decision.of_part(0);
        match (self.subjects.0, of_first.as_ref().and_then(Decision::policy)) {
            (Subjects::Parts(parts), _) => refund(parts),
            (Subjects::Subject(subject), Some(policy)) => {
                refund(&[Part::new(subject, policy, Cost::ZERO)])
            }
            (Subjects::Rule(of), Some(policy)) => {
                let rules = self.pipeline.current_rules();
                let part =
                    rules.as_ref().and_then(|all| all.part_of_rule(of, Some(policy), Cost::ZERO));
                refund(part.as_slice())
            }
            // No store has made the decision, so nothing is charged.
            (_, None) => done(),
        }
    }

    /// Returns the status of each limit of the request. Charges nothing, and the failure policy
    /// does not apply. The cost is ignored.
    ///
    /// On Redis, this takes one call, or one for each slot of a cluster. Without parts, the
    /// decision has no limits. If the counter of one limit is damaged ([`FailureKind::Corrupt`]),
    /// the call fails as a whole. In the readable layout, a call with a [policy](Self::policy) of
    /// one limit reads only the counter of this limit.
    ///
    /// The limits of a rule and of its tiers share counters if they have the same algorithm and
    /// period. So the same use may be above the limits of the rule and below those of a
    /// [tier](crate::NamedRule::tier).
    ///
    /// # Examples
    ///
    /// ```
    /// # use rl_core::{Limit, RateLimiter, Subject};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(5)).build()?;
    /// let caller = Subject::consumer("abc123");
    /// limiter.check(&caller, 2).await;
    /// let usage = limiter.request(&caller).usage().await?;
    /// assert_eq!(usage.limits().next().map(|limit| (limit.used(), limit.max())), Some((2, 5)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store fails, if there is no such rule, or if there are more than
    /// [`Part::MAX`] parts.
    pub fn usage(self) -> StoreFuture<Decision> {
        let usage = self.administer(false, |pipeline, parts| match parts {
            [] => MaybeReady::ready(Ok(Decision::undecided(Cost::ZERO, Origin::Unlimited))),
            _ => pipeline.stores.usage(parts),
        });
        let Subjects::Rule(of) = self.subjects.0 else { return usage };
        match self.pipeline.current_rules().and_then(|rules| rules.label_of_rule(of.rule)) {
            Some(label) => usage.map(|usage| usage.map(|usage| usage.labelled(label))),
            None => usage,
        }
    }

    /// Resets all limits of the request to unused. Under a rule, also resets those of the tiers of
    /// the rule, because a request may have had any tier.
    ///
    /// On Redis, this takes one call for each 128 parts, or for those in each slot of a cluster.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rl_core::{Limit, RateLimiter, Subject};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(5)).build()?;
    /// let caller = Subject::consumer("abc123");
    /// limiter.check(&caller, 5).await;
    /// limiter.request(&caller).reset().await?;
    /// assert!(limiter.check(&caller, 5).await.is_allowed());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Resolves to an error if the store fails, or if there is no such rule. Some of the parts may
    /// have been reset.
    pub fn reset(self) -> StoreFuture<()> {
        self.administer(true, |pipeline, parts| {
            pipeline.stores.reset(parts.iter().map(|part| (part, None)))
        })
    }

    /// Resets the limit called `name` to unused, in each part that has such a limit. Under a rule,
    /// it may be a limit of a tier.
    ///
    /// # Examples
    ///
    /// ```
    /// # use rl_core::{Limit, RateLimiter, Subject};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().limit(Limit::per_minute(5)).limit(Limit::per_day(90)).build()?;
    /// let caller = Subject::consumer("abc123");
    /// limiter.check(&caller, 5).await;
    /// limiter.request(&caller).reset_limit("minute").await?;
    /// let used: Vec<_> = limiter.usage(&caller).await?.limits().map(|limit| limit.used()).collect();
    /// assert_eq!(used, [0, 5]);
    /// assert!(limiter.request(&caller).reset_limit("week").await.is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Resolves to an error if no limit of the request has this name, or as [`reset`](Self::reset).
    pub fn reset_limit(self, name: &str) -> MaybeReady<Result<(), ResetError>> {
        let name = name.to_owned();
        self.administer(true, move |pipeline, parts| {
            let named = parts.iter().filter_map(|part| Some((part, part.policy.position(&name)?)));
            let mut named = named.map(|(part, limit)| (part, Some(limit))).peekable();
            if named.peek().is_none() {
                return MaybeReady::ready(Err(ResetError::UnknownLimit(name)));
            }
            pipeline.stores.reset(named).map(|reset| reset.map_err(ResetError::Store))
        })
    }

    /// Decides the request. Inlined, so that a caller without other settings calls the pipeline
    /// directly.
    #[inline]
    fn decide(self, mode: Mode) -> MaybeReady<Decision> {
        match (self.subjects.0, self.policy, self.cost) {
            (Subjects::Parts(parts), None, None) => {
                let operation = self.pipeline.operation(mode);
                self.pipeline
                    .decide_parts(parts, Operation { reserves: self.reserves, ..operation })
            }
            (Subjects::Subject(subject), None, _) => {
                self.pipeline.decide(subject, mode, self.cost_of_one(), self.reserves)
            }
            _ => self.decide_or_wait(mode, None),
        }
    }

    /// Decides the request. If the limits deny it, it waits within the bounds of `wait`.
    fn decide_or_wait(self, mode: Mode, wait: Option<Wait>) -> MaybeReady<Decision> {
        let (pipeline, cost) = (self.pipeline, self.cost_of_one());
        let operation = Operation { reserves: self.reserves, ..pipeline.operation(mode) };
        match (self.subjects.0, self.policy, wait) {
            (Subjects::Subject(subject), None, None) => {
                pipeline.decide(subject, mode, cost, self.reserves)
            }
            (Subjects::Subject(subject), None, Some(wait)) => {
                QueuedRequest::of_subject(pipeline, (subject, cost), wait, operation).check()
            }
            (Subjects::Subject(subject), Some(policy), _) => {
                decide_parts(pipeline, &[Part::new(subject, policy, cost)], operation, wait)
            }
            (Subjects::Parts(parts), ..) => {
                decide_parts(pipeline, &self.with_settings(parts), operation, wait)
            }
            (Subjects::Rule(of), ..) => self.decide_under_rule(of, operation, wait),
        }
    }

    /// Decides the request under a rule, once the policy of its subject is known.
    fn decide_under_rule(
        self,
        of: OfRule<'_>,
        operation: Operation,
        wait: Option<Wait>,
    ) -> MaybeReady<Decision> {
        let pipeline = self.pipeline;
        let counted = (of.subject, self.cost_of_one());
        if !pipeline.enabled {
            let (subject, cost) = counted;
            return pipeline.report_undecided(subject, cost, operation, Origin::Disabled);
        }
        let rules = pipeline.current_rules();
        let label = rules.as_ref().and_then(|rules| rules.label_of_rule(of.rule));
        let (Some(rules), Some(label)) = (rules, label) else {
            let error = unknown(of.rule);
            return pipeline.report_failed_lookup(counted, operation, &error);
        };
        let decision = match rules.part_of_rule(of, self.policy, counted.1) {
            Some(part) => decide_parts(pipeline, &[part], operation, wait),
            None => {
                let parts = rules.parts_of_rule(of, counted.1).expect("a rule with this name");
                let required = RequiredLookups::Enforced;
                pipeline.with_policies(&Arc::new(parts), required, move |pipeline, parts, found| {
                    match found {
                        Ok(deadline) => {
                            let operation = Operation { deadline, ..operation };
                            decide_parts(pipeline, &parts.parts(), operation, wait)
                        }
                        Err(error) => {
                            pipeline.report_failed_lookup(parts.main(), operation, &error)
                        }
                    }
                })
            }
        };
        decision.map(move |decision| decision.labelled(label))
    }

    /// Returns the permit of the request once its decision is made.
    fn permit_once_decided(self, decision: MaybeReady<Decision>) -> MaybeReady<Permit> {
        if let MaybeReady::Ready(decision) = decision {
            return MaybeReady::Ready(decision.map(|decision| self.permit(decision)));
        }
        let pipeline = Arc::clone(self.pipeline);
        match self.subjects.0 {
            Subjects::Subject(subject) => {
                let subject = subject.clone();
                decision.map(move |decision| Permit::new(&pipeline, None, subject, decision))
            }
            Subjects::Parts(parts) => {
                let parts = OwnedParts::new(parts);
                decision.map(move |made| Permit::of_parts(&pipeline, &parts.as_parts(), made))
            }
            Subjects::Rule(of) => {
                let (rule, subject) = (of.rule.to_owned(), of.subject.clone());
                let permit = move |decision| {
                    let of = OfRule { rule: &rule, tier: None, subject: &subject };
                    LimiterRequest::of_rule(&pipeline, of).permit(decision)
                };
                decision.map(permit)
            }
        }
    }

    /// Runs an operation of an administrator on the parts of the request, once their policies are
    /// known. The failure policy does not apply. A subject without limits has no parts. Under a
    /// rule, there is also a part for each tier if `of_each_tier` is set.
    fn administer<T, E>(
        self,
        of_each_tier: bool,
        operation: impl FnOnce(&Pipeline, &[Part<'_>]) -> MaybeReady<Result<T, E>> + Send + 'static,
    ) -> MaybeReady<Result<T, E>>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let pipeline = self.pipeline;
        match (self.subjects.0, self.policy) {
            (Subjects::Subject(subject), Some(policy)) => {
                operation(pipeline, &[Part::new(subject, policy, Cost::ZERO)])
            }
            (Subjects::Subject(subject), None) => {
                with_policy(pipeline, subject, |pipeline, subject, policy| {
                    let part = policy.map(|policy| Part::new(subject, policy, Cost::ZERO));
                    operation(pipeline, part.as_slice())
                })
            }
            (Subjects::Parts(parts), _) => operation(pipeline, &self.with_settings(parts)),
            (Subjects::Rule(of), policy) => {
                let rules = self.pipeline.current_rules();
                let part = policy
                    .and_then(|policy| rules.as_ref()?.part_of_rule(of, Some(policy), Cost::ZERO));
                if let Some(part) = part {
                    return operation(pipeline, &[part]);
                }
                let Some(parts) = rules.as_ref().and_then(|set| set.parts_of_rule(of, Cost::ZERO))
                else {
                    return MaybeReady::ready(Err(unknown(of.rule).into()));
                };
                let required = RequiredLookups::All;
                pipeline.with_policies(&Arc::new(parts), required, move |pipeline, parts, found| {
                    match found {
                        Err(error) => MaybeReady::ready(Err(error.into())),
                        Ok(_) if of_each_tier => operation(pipeline, &parts.parts_of_each_tier()),
                        Ok(_) => operation(pipeline, &parts.parts()),
                    }
                })
            }
        }
    }

    /// Returns the cost of a request of one subject.
    fn cost_of_one(&self) -> Cost {
        self.cost.unwrap_or(Cost::ONE)
    }

    /// Returns the parts with the cost and the policy of the request, if they are set.
    fn with_settings(&self, parts: &'a [Part<'a>]) -> Cow<'a, [Part<'a>]> {
        if self.cost.is_none() && self.policy.is_none() {
            return Cow::Borrowed(parts);
        }
        let with_settings = |part: &Part<'a>| Part {
            cost: self.cost.unwrap_or(part.cost),
            policy: self.policy.unwrap_or(part.policy),
            ..*part
        };
        parts.iter().map(with_settings).collect()
    }
}

/// A request that waits while its limits deny it. [`LimiterRequest::wait`] creates it.
#[derive(Clone, Copy, Debug)]
#[must_use = "a request does nothing until it is checked"]
pub struct WaitingRequest<'a> {
    request: LimiterRequest<'a>,
    wait: Wait,
}

impl WaitingRequest<'_> {
    /// Decides like [`LimiterRequest::check`]. If the limits deny the request, it waits until they
    /// allow it.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped leaves the queue. If a check is in flight at that time, it may
    /// charge its units.
    ///
    /// # Panics
    ///
    /// The future panics if it has to wait outside a tokio runtime with a timer.
    pub fn check(self) -> MaybeReady<Decision> {
        self.request.decide_or_wait(Mode::Check, Some(self.wait))
    }

    /// Decides like [`check`](Self::check), and returns a permit, as [`LimiterRequest::acquire`]
    /// does.
    ///
    /// # Cancel safety
    ///
    /// As [`check`](Self::check).
    ///
    /// # Panics
    ///
    /// As [`check`](Self::check).
    pub fn acquire(self) -> MaybeReady<Permit> {
        let request = self.request.reserving(true);
        request.permit_once_decided(request.decide_or_wait(Mode::Check, Some(self.wait)))
    }
}

/// Decides the parts of a request. If the limits deny it, it waits within the bounds of `wait`.
fn decide_parts(
    pipeline: &Arc<Pipeline>,
    parts: &[Part<'_>],
    operation: Operation,
    wait: Option<Wait>,
) -> MaybeReady<Decision> {
    match wait {
        None => pipeline.decide_parts(parts, operation),
        Some(wait) => QueuedRequest::of_parts(pipeline, parts, wait, operation).check(),
    }
}

fn unknown(rule: &str) -> StoreError {
    let rule: String = rule.chars().take(80).collect();
    let detail = format!("rule {rule:?} is not defined: expected the name of a rule");
    StoreError::new(FailureKind::Unsupported).with_detail(detail)
}

impl fmt::Debug for LimiterRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterRequest")
            .field("subjects", &self.subjects)
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}
