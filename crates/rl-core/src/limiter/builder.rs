use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::events::Events;
use super::failure_policy::{FailurePolicy, Fallback};
use super::in_flight::InFlight;
use super::pauses::Pauses;
use super::pipeline::Pipeline;
use super::policies::Policies;
use super::renewals::Renewals;
use super::settlements::Settlements;
use super::stores::{Stores, bounded};
use super::tally::Tally;
use super::wait_queue::WaitQueues;
use super::{BuildError, RateLimiter, Share};
use crate::model::{Cost, Limit, OnFailure};
use crate::observe::{self, EventLocation, Observer};
use crate::policy::{Policy, PolicyBuilder};
use crate::rules::{ActiveRules, RuleSet, RuleSource};
use crate::source::PolicySource;
use crate::store::memory::MemoryStore;
use crate::store::{Namespace, Store};
use crate::time::{Clock, SystemClock};

/// Builds a [`RateLimiter`].
///
/// # How the defaults were chosen
///
/// | setting | default | because |
/// |---|---|---|
/// | store | memory | it needs no installation |
/// | deadline | 100 ms | a limiter must not slow down the service that it protects |
/// | in flight | 4096 | at 100 ms each that is 40 000 decisions per second, and a few megabytes |
/// | store failure | allow | an outage of the limiter should not be one of the service |
/// | configuration failure | reject | it lasts until an operator mends it, and could be provoked |
/// | fallback failure | reject | a fallback is set to keep a limit during outages |
/// | overload | reject | a client can cause an overload, and must not lift the limits by it |
#[must_use]
pub struct RateLimiterBuilder {
    policy: PolicyBuilder,
    policies: Option<Policies>,
    rules: Option<RuleSource>,
    store: Option<Arc<dyn Store>>,
    namespace: String,
    enabled: bool,
    deadline: Duration,
    max_in_flight: usize,
    failure_policy: FailurePolicy,
    policy_when_overloaded: Option<Policy>,
    fallback: Option<Fallback>,
    clock: Arc<dyn Clock>,
    observer: Option<Arc<dyn Observer>>,
    reservation: Option<Duration>,
}

impl Default for RateLimiterBuilder {
    fn default() -> Self {
        Self {
            policy: Policy::builder(),
            policies: None,
            rules: None,
            store: None,
            namespace: Namespace::default().to_string(),
            enabled: true,
            deadline: Duration::from_millis(100),
            max_in_flight: 4_096,
            failure_policy: FailurePolicy {
                on_store_failure: OnFailure::Allow,
                on_configuration_failure: OnFailure::Reject,
                on_overload: OnFailure::Reject,
                on_fallback_failure: OnFailure::Reject,
                is_shadow: false,
            },
            policy_when_overloaded: None,
            fallback: None,
            clock: Arc::new(SystemClock),
            observer: None,
            reservation: None,
        }
    }
}

impl RateLimiterBuilder {
    /// Adds a limit to the policy of all subjects. The limit is named after its period, as in
    /// [`PolicyBuilder::limit`]: `second`, `15minutes`.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.policy = self.policy.limit(limit);
        self
    }

    /// Adds a limit with a name of its own to the policy of all subjects.
    pub fn named_limit(mut self, name: &str, limit: Limit) -> Self {
        self.policy = self.policy.named(name, limit);
        self
    }

    /// Sets the policy of all subjects, instead of single limits.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies = Some(Policies::One(policy));
        self
    }

    /// Sets the source that finds the policy of each subject, instead of single limits.
    pub fn policies(mut self, policies: impl PolicySource) -> Self {
        self.policies = Some(Policies::from_source(policies));
        self
    }

    /// Sets the [rules](crate::rules) under which requests are decided, instead of limits that
    /// apply to all requests. Takes [`Rules`](crate::rules::Rules), or a file that is read again
    /// when it changes.
    ///
    /// The adapters decide their requests under these rules.
    /// [`rule`](RateLimiter::rule) creates requests under one rule. Operations that take only a
    /// subject, such as [`check`](RateLimiter::check), have no limits, and fail as
    /// [`Unsupported`](crate::FailureKind::Unsupported).
    pub fn rules(mut self, rules: impl Into<RuleSource>) -> Self {
        self.rules = Some(rules.into());
        self
    }

    /// Sets the store that keeps the counters. Defaults to a new [`MemoryStore`].
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Sets the namespace, which keeps the counters apart from those of other limiters on the same
    /// store. Defaults to `default`.
    ///
    /// Limiters of one namespace on one store share counters. The instances of a service should
    /// share them. Two nested limiters of one service should not, because both would charge each
    /// request to the same counters. If two limiters in this process share counters under different
    /// limits, the second logs a warning.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.to_owned();
        self
    }

    /// Sets whether the limiter is switched on. Defaults to `true`. A limiter that is switched off
    /// allows every request, calls no store and sets no header.
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// Sets whether the limiter is in shadow. Defaults to `false`. A limiter in shadow decides and
    /// reports, but denies nothing. It serves to try limits out on real traffic.
    ///
    /// Decisions have [`Origin::Shadow`](crate::Origin::Shadow). The limits that would have denied
    /// the request are in [`Decision::over_in_shadow`](crate::Decision::over_in_shadow), in the
    /// header `x-rate-limit-warning`, in
    /// [`EventKind::WouldDeny`](crate::observe::EventKind::WouldDeny) and in one log line for each
    /// window. A single limit is put in shadow by [`Limit::shadow`].
    pub fn shadow(mut self, is_shadow: bool) -> Self {
        self.failure_policy.is_shadow = is_shadow;
        self
    }

    /// Sets the longest time that a decision may take, including the look-up of its policy.
    /// Defaults to 100 ms.
    ///
    /// After this time the [failure policy](Self::on_store_failure) decides.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = bounded(deadline);
        self
    }

    /// Sets how many decisions may wait for a server of the store at the same time. Defaults to
    /// 4096. Limiters on clones of one store share its servers, and so the number that waits.
    ///
    /// While a server answers late, the limiter lowers this bound until answers arrive in time.
    /// [`on_overload`](Self::on_overload) decides requests beyond the bound without waiting. With a
    /// store in memory, no decision waits.
    pub fn max_in_flight(mut self, decisions: usize) -> Self {
        self.max_in_flight = decisions;
        self
    }

    /// Sets what happens to requests while the store, or the source of policies, is down, slow or
    /// failing over. Defaults to [`OnFailure::Allow`].
    pub fn on_store_failure(mut self, on_failure: OnFailure) -> Self {
        self.failure_policy.on_store_failure = on_failure;
        self
    }

    /// Sets what happens to requests when the store refuses the call: wrong password, missing
    /// permission, damaged data. Defaults to [`OnFailure::Reject`].
    pub fn on_configuration_failure(mut self, on_failure: OnFailure) -> Self {
        self.failure_policy.on_configuration_failure = on_failure;
        self
    }

    /// Sets what happens to a request when the store, or the source of policies, is overloaded.
    /// Defaults to [`OnFailure::Reject`]: 503 with `Retry-After: 1`.
    ///
    /// An overload differs from an outage. One client can cause an overload by inventing subjects,
    /// and with [`OnFailure::Allow`] it would lift the limits of all clients. A subject with a
    /// cached denial that still holds is denied under every setting. A time-out counts as an
    /// overload if other replies still arrive from the same server.
    pub fn on_overload(mut self, on_failure: OnFailure) -> Self {
        self.failure_policy.on_overload = on_failure;
        self
    }

    /// Sets the policy of subjects whose look-up is refused because the source of policies is
    /// [overloaded](crate::FailureKind::Overloaded). Without it,
    /// [`on_overload`](Self::on_overload) decides these requests.
    ///
    /// A subject whose policy was looked up before keeps that policy. The store counts the others
    /// under `policy`, which should be as strict as the policy of an anonymous client.
    pub fn policy_when_overloaded(mut self, policy: Policy) -> Self {
        self.policy_when_overloaded = Some(policy);
        self
    }

    /// Sets the store that decides while the primary store is down, slow, failing over or
    /// overloaded. The store enforces this instance's share of the limits. Also sets
    /// [`OnFailure::Fallback`] for store failures and for overload.
    ///
    /// The fallback cannot decide a request whose policy is unknown because the source of policies
    /// fails. Such a request is rejected, unless
    /// [`on_fallback_failure`](Self::on_fallback_failure) allows it.
    ///
    /// A [`MemoryStore`] decides without waiting; a fallback on a server has its own deadline, and
    /// its own bound of [`max_in_flight`](Self::max_in_flight) decisions. Its decisions have
    /// [`Origin::Fallback`](crate::Origin::Fallback) and the limits of the share; clients read the
    /// [configured](crate::LimitStatus::configured) limits. After the
    /// recovery the primary store decides again, with the counts that it had before the outage.
    /// They do not include the requests that the fallback allowed.
    pub fn fallback(mut self, store: impl Store, share: Share) -> Self {
        self.fallback = Some(Fallback { store: Arc::new(store), share });
        self.on_store_failure(OnFailure::Fallback).on_overload(OnFailure::Fallback)
    }

    /// Sets what happens to a request that the fallback cannot decide. Defaults to
    /// [`OnFailure::Reject`].
    ///
    /// A fallback cannot decide if its store fails, or if the source of policies fails.
    ///
    /// ```
    /// use rl_core::{Limit, MemoryStore, OnFailure, RateLimiter, Share};
    ///
    /// // A share of the limits during an outage, and no limits if the fallback fails too.
    /// let limiter = RateLimiter::builder()
    ///     .limit(Limit::per_second(10))
    ///     .fallback(MemoryStore::new(), Share::with_instances(4))
    ///     .on_fallback_failure(OnFailure::Allow)
    ///     .build()?;
    /// # Ok::<(), rl_core::BuildError>(())
    /// ```
    pub fn on_fallback_failure(mut self, on_failure: OnFailure) -> Self {
        self.failure_policy.on_fallback_failure = on_failure;
        self
    }

    /// Sets the clock on which [blocks](Policy::blocked_until) end. Defaults to the
    /// [`SystemClock`]. Counters use the clock of their store.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Refunds the units of a [permit](crate::Permit) if its process dies. They are refunded when
    /// the permit has been neither settled nor renewed for `time`. Defaults to never: the estimate
    /// stays charged until its windows end.
    ///
    /// A task renews the reservation of a permit after each third of `time`, so some seconds are
    /// enough even for long requests. The setting applies to charges of
    /// [`acquire`](RateLimiter::acquire) and of metered adapters, on Redis in the packed layout.
    /// (In memory, the counts are lost with their process.) The next decision on the subject
    /// refunds expired units, as if the permit had been settled at 0. If the machine of a request
    /// was suspended, the permit may expire before it is renewed. The request is then charged its
    /// whole cost when it ends.
    ///
    /// The setting costs one more call for each permit that is settled at its estimate, and one for
    /// each renewal. Each decision of this limiter is a call of its own: it is neither batched nor
    /// leased. Set it on every limiter that shares the counters: a limiter without it never refunds
    /// expired units.
    pub fn reservation_expires_after(mut self, time: Duration) -> Self {
        self.reservation = Some(bounded(time));
        self
    }

    /// Adds an observer of decisions and [events](crate::observe::EventKind). Defaults to none;
    /// log lines are written in any case.
    ///
    /// With an observer of decisions, the limiter does not use its fast path: a decision in memory
    /// takes 2600 instructions instead of 550. An observer of [other events
    /// only](Observer::observes_decisions) does not slow decisions in memory.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(observe::add(self.observer, Arc::new(observer)));
        self
    }

    /// Checks the settings, and builds the limiter.
    ///
    /// # Errors
    ///
    /// Returns an error for the first setting that is not valid: [`BuildError`] lists them.
    pub fn build(self) -> Result<RateLimiter, BuildError> {
        let Self {
            policy,
            policies,
            rules,
            store,
            namespace,
            enabled,
            deadline,
            max_in_flight,
            failure_policy,
            policy_when_overloaded,
            fallback,
            clock,
            observer,
            reservation,
        } = self;
        let policies = Policies::chosen(policy, policies, rules.is_some())?;
        if deadline.is_zero() {
            return Err(BuildError::ZeroDeadline);
        }
        if reservation.is_some_and(|time| time.is_zero()) {
            return Err(BuildError::ZeroReservation);
        }
        if max_in_flight == 0 {
            return Err(BuildError::NoneInFlight);
        }
        match &fallback {
            None if failure_policy.may_fall_back() => return Err(BuildError::NoFallback),
            Some(fallback) if fallback.share.instances() == 0 => {
                return Err(BuildError::NoInstances);
            }
            _ => {}
        }
        if failure_policy.on_fallback_failure == OnFailure::Fallback {
            return Err(BuildError::FallbackOfFallback);
        }
        let primary = store.unwrap_or_else(|| Arc::new(MemoryStore::new()));
        let namespace: Namespace = namespace.parse().map_err(BuildError::Namespace)?;
        // Another store may be in this process too. A warning too many does no harm.
        let report = primary.report();
        let (is_shared, decides_at_once) = (report.label != "memory", report.decides_at_once);
        let rules = rules.map(|rules| rules.activate(&namespace, is_shared).map(Box::new));
        let rules = rules.transpose();
        let rules = rules.map_err(BuildError::Rules)?;
        let own = policies.of_all().map(|policy| (&namespace, vec![policy.clone()]));
        let shares = fallback.as_ref().map(|Fallback { store, share }| Shares {
            share: *share,
            limiter: namespace.clone(),
            fallback: store.report().label.to_owned(),
        });
        let registration = register(&primary, own, rules.as_deref(), shares);
        let [in_flight, fallback_slots] = [(); 2].map(|()| InFlight::new(max_in_flight, deadline));
        let (breaker, wait_queues) = (Arc::default(), Arc::new(WaitQueues::new(&namespace)));
        let observes_decisions = observer.as_ref().is_some_and(|one| one.observes_decisions());
        let is_plain = enabled && !failure_policy.is_shadow && reservation.is_none();
        let tally = Tally::new(&namespace, policies.of_all().cloned());
        let stores = Stores { primary, fallback, fallback_slots, namespace, deadline, reservation };
        let events = Arc::new(Events::new(observer, failure_policy, &in_flight, &stores));
        events.observe_readings(rules.as_deref());
        let settlements = Settlements::new(&breaker, &events, &wait_queues);
        let pipeline = Pipeline {
            enabled,
            has_fast_path: decides_at_once && is_plain && !observes_decisions,
            policies,
            rules,
            tally,
            stores,
            clock,
            policy_when_overloaded,
            breaker,
            in_flight,
            failure_policy,
            events,
            wait_queues,
            pauses: Pauses::default(),
            settlements,
            renewals: Renewals::default(),
            has_logged_unknown_rule: AtomicBool::new(false),
            _registration: registration,
        };
        Ok(RateLimiter { pipeline: Arc::new(pipeline) })
    }
}

impl fmt::Debug for RateLimiterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiterBuilder")
            .field("policy", &self.policy)
            .field("store", &self.store)
            .field("namespace", &self.namespace)
            .field("enabled", &self.enabled)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// Registers a limiter until the returned token is dropped. `own` is its namespace with the policy
/// of all subjects, if there is one. Logs a warning if another limiter on the store has other
/// limits for the same counters, now or after a change of `rules`. Also logs warnings about the
/// shares of its fallback.
fn register(
    store: &Arc<dyn Store>,
    own: Option<(&Namespace, Vec<Policy>)>,
    rules: Option<&ActiveRules>,
    shares: Option<Shares>,
) -> Option<Arc<()>> {
    let current = rules.map(ActiveRules::current);
    if let Some(shares) = &shares {
        for policy in own.iter().flat_map(|(_, policies)| policies) {
            shares.warn(None, policy, Cost::ONE);
        }
        current.iter().for_each(|rules| shares.warn_of_rules(rules));
    }
    let of_rules = current.iter().flat_map(|rules| rules.policies());
    let may_change = rules.is_some_and(ActiveRules::may_change);
    let report = store.report();
    let registered = report
        .registry
        .map(|registry| registry.register(own.into_iter().chain(of_rules), may_change));
    let (token, conflict) = registered.unzip();
    if let Some(namespace) = conflict.flatten() {
        observe::shared_counters(EventLocation::new(namespace.as_str(), report.label));
    }
    if let Some(rules) = rules {
        let (store, limiter) = (Arc::downgrade(store), token.as_ref().map(Arc::downgrade));
        rules.on_change(move |rules| {
            shares.iter().for_each(|shares| shares.warn_of_rules(rules));
            let limiter = limiter.as_ref().and_then(std::sync::Weak::upgrade);
            let (Some(store), Some(limiter)) = (store.upgrade(), limiter) else { return };
            let report = store.report();
            let conflict = report.registry.and_then(|all| all.replace(&limiter, rules.policies()));
            if let Some(namespace) = conflict {
                let location = EventLocation::new(namespace.as_str(), report.label);
                observe::shared_counters(location);
            }
        });
    }
    token
}

/// The shares of the limits that the fallback of a limiter enforces.
struct Shares {
    share: Share,
    /// The namespace of the limiter.
    limiter: Namespace,
    /// The name of the fallback.
    fallback: String,
}

impl Shares {
    fn warn_of_rules(&self, rules: &RuleSet) {
        for (rule, policies, cost) in rules.known_costs() {
            policies.iter().for_each(|policy| self.warn(Some(rule), policy, cost));
        }
    }

    /// Logs a warning for each limit of `policy` whose share has to be raised for `cost`.
    fn warn(&self, rule: Option<&str>, policy: &Policy, cost: Cost) {
        let location = EventLocation::new(self.limiter.as_str(), &self.fallback).with_rule(rule);
        self.share.warn_if_raised(location, policy, cost.units());
    }
}
