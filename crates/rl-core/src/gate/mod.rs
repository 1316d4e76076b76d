//! A limiter in front of a web service, whatever the framework: who is counted, who is exempt, what
//! the client is told. The adapters wrap it in their framework's words.
//!
//! # Rules
//!
//! 1. **Exempt** requests are not counted and get no header: CORS preflights, and whatever
//!    [`Gate::exempt`] says.
//! 2. **Who is counted** is found by the [`KeyExtractor`]; by default it is the address of the peer.
//!    What happens to a request that does not say is a setting, [`MissingKey`].
//! 3. **Once for each limiter.** A request that meets the same limiter again, in a nested layer,
//!    passes without being charged a second time. (Two limiters on one store need
//!    [namespaces](crate::RateLimiterBuilder::namespace) of their own.)
//! 4. **Over its limits** a request is turned away, waits or is answered with less: [`OverLimit`].
//!    Under a concurrency limit it holds its place until its response has ended, the body included.
//! 5. **The cost** is one unit, or what [`Gate::cost`] finds in the request. What it was in the end can
//!    be told by the handler ([`Gate::metered`]) and found in the response ([`Gate::true_cost`],
//!    [`Gate::refund_if`]); it is settled when the response has ended, its body included.
//! 6. **Nested limiters** merge what they tell: of headers with a single value the stricter stay,
//!    lists stand beside each other.
//!
//! # Example
//!
//! ```
//! use rl_core::headers::{HeaderFamily, Headers};
//! use rl_core::key::{ApiKey, ClientAddress, KeyExtractor, KeySecret};
//! use rl_core::{Gate, Limit, RateLimiter};
//!
//! let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
//! let secret = KeySecret::new(b"from your configuration")?;
//! let gate = Gate::new(limiter)
//!     .key(ApiKey::header("x-api-key", secret)?.or(ClientAddress::default()))
//!     .exempt(|request| request.path() == "/health")
//!     .headers(Headers::new(HeaderFamily::Ietf));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod admission;
mod over_limit;
mod response;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use admission::{Admission, Caller};
pub use over_limit::OverLimit;
pub use response::ResponseInfo;

use crate::denial::{Denial, DenialBody};
use crate::headers::{HeaderLine, Headers};
use crate::key::{ClientAddress, KeyExtractor, RequestInfo};
use crate::{Cost, Decision, Eventual, Permit, Policy, RateLimiter, Realm, Subject, observe};

/// What happens to a request that does not say who is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissingKey {
    /// It is turned away with 403.
    #[default]
    Deny,
    /// It passes and is not counted.
    Pass,
    /// It is counted with all others of its kind, as one subject in the realm `unknown`.
    Share,
}

/// A limiter in front of a web service. The [module](self) states the rules.
///
/// Clones share the limiter and so its counters.
pub struct Gate<K = ClientAddress> {
    limiter: RateLimiter,
    key: Arc<K>,
    rules: Rules,
}

/// What does not depend on the type of the key extractor.
#[derive(Clone)]
struct Rules {
    missing_key: MissingKey,
    count_preflight: bool,
    exempt: Vec<Predicate>,
    cost: Option<CostOf>,
    metered: bool,
    true_cost: Option<TrueCostOf>,
    over_limit: Option<OverLimitOf>,
    headers: Headers,
    denial: DenialBody,
    responder: Option<Responder>,
    missing_key_seen: Arc<AtomicBool>,
}

type Predicate = Arc<dyn Fn(&dyn RequestInfo) -> bool + Send + Sync>;
type CostOf = Arc<dyn Fn(&dyn RequestInfo) -> Cost + Send + Sync>;
type TrueCostOf = Arc<dyn Fn(&dyn ResponseInfo) -> Option<Cost> + Send + Sync>;
type OverLimitOf = Arc<dyn Fn(&dyn RequestInfo) -> OverLimit + Send + Sync>;
type Responder = Arc<dyn Fn(&Decision, &Caller) -> Denial + Send + Sync>;

impl Gate {
    /// Counts by the address of the peer, exempts CORS preflights, sets the headers of
    /// [`HeaderFamily::OpenBank`](crate::headers::HeaderFamily::OpenBank) and denies in JSON.
    #[must_use]
    pub fn new(limiter: RateLimiter) -> Self {
        let rules = Rules {
            missing_key: MissingKey::default(),
            count_preflight: false,
            exempt: Vec::new(),
            cost: None,
            metered: false,
            true_cost: None,
            over_limit: None,
            headers: Headers::default(),
            denial: DenialBody::default(),
            responder: None,
            missing_key_seen: Arc::default(),
        };
        Self { limiter, key: Arc::default(), rules }
    }
}

impl From<RateLimiter> for Gate {
    fn from(limiter: RateLimiter) -> Self {
        Self::new(limiter)
    }
}

impl<K: KeyExtractor> Gate<K> {
    /// Who is counted. Defaults to the address of the peer.
    #[must_use]
    pub fn key<L: KeyExtractor>(self, key: L) -> Gate<L> {
        Gate { limiter: self.limiter, key: Arc::new(key), rules: self.rules }
    }

    /// What happens to a request that does not say who is counted. Defaults to
    /// [`MissingKey::Deny`].
    #[must_use]
    pub fn missing_key(self, missing_key: MissingKey) -> Self {
        self.with(|rules| rules.missing_key = missing_key)
    }

    /// Leaves requests for which `predicate` is true uncounted. Defaults to CORS preflights alone;
    /// every call adds to what is exempt.
    #[must_use]
    pub fn exempt(
        self,
        predicate: impl Fn(&dyn RequestInfo) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.exempt.push(Arc::new(predicate)))
    }

    /// How many units a request takes. Defaults to one for each.
    ///
    /// ```
    /// # use rl_core::{Cost, Gate, Limit, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let gate = Gate::new(limiter).cost(|request| match request.method() {
    ///     "GET" | "HEAD" => Cost::ONE,
    ///     _ => Cost::new(5),
    /// });
    /// # Ok::<(), rl_core::limiter::BuildError>(())
    /// ```
    #[must_use]
    pub fn cost(self, cost: impl Fn(&dyn RequestInfo) -> Cost + Send + Sync + 'static) -> Self {
        self.with(|rules| rules.cost = Some(Arc::new(cost)))
    }

    /// Whether handlers can change what a request costs: then each finds a [`Permit`] in the request's
    /// extensions. Defaults to `false`, as it takes an allocation.
    #[must_use]
    pub fn metered(self, metered: bool) -> Self {
        self.with(|rules| rules.metered = metered)
    }

    /// What a request did cost, as its response tells; `None` leaves it as it is.
    ///
    /// It is asked when the head of the response is there, and has the last word over what a handler
    /// has said until then.
    ///
    /// ```
    /// # use rl_core::{Cost, Gate, Limit, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// // What the cache answers is free.
    /// let gate = Gate::new(limiter).true_cost(|response| {
    ///     let mut is_hit = false;
    ///     response.header_lines("x-cache", &mut |value| is_hit |= value == b"HIT");
    ///     is_hit.then_some(Cost::ZERO)
    /// });
    /// # Ok::<(), rl_core::limiter::BuildError>(())
    /// ```
    #[must_use]
    pub fn true_cost(
        self,
        cost: impl Fn(&dyn ResponseInfo) -> Option<Cost> + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.true_cost = Some(Arc::new(cost)))
    }

    /// Gives back what a request has cost if its response is such: a short form of
    /// [`true_cost`](Self::true_cost), which it replaces.
    ///
    /// ```
    /// # use rl_core::{Gate, Limit, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// // Nobody pays for our own mistakes.
    /// let gate = Gate::new(limiter).refund_if(|response| response.status() >= 500);
    /// # Ok::<(), rl_core::limiter::BuildError>(())
    /// ```
    #[must_use]
    pub fn refund_if(
        self,
        predicate: impl Fn(&dyn ResponseInfo) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.true_cost(move |response| predicate(response).then_some(Cost::ZERO))
    }

    /// What becomes of requests that are over their limits. Defaults to [`OverLimit::Reject`].
    #[must_use]
    pub fn over_limit(self, over_limit: OverLimit) -> Self {
        self.over_limit_by(move |_| over_limit)
    }

    /// What becomes of a request that is over its limits, chosen for each.
    ///
    /// ```
    /// # use rl_core::{Gate, Limit, RateLimiter, gate::OverLimit};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let gate = Gate::new(limiter).over_limit_by(|request| match request.method() {
    ///     "GET" => OverLimit::Degrade,
    ///     _ => OverLimit::Reject,
    /// });
    /// # Ok::<(), rl_core::limiter::BuildError>(())
    /// ```
    #[must_use]
    pub fn over_limit_by(
        self,
        over_limit: impl Fn(&dyn RequestInfo) -> OverLimit + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.over_limit = Some(Arc::new(over_limit)))
    }

    /// Whether CORS preflights are counted. Defaults to `false`: a browser sends them unasked.
    #[must_use]
    pub fn count_preflight(self, count: bool) -> Self {
        self.with(|rules| rules.count_preflight = count)
    }

    /// Which headers a response carries. Defaults to
    /// [`HeaderFamily::OpenBank`](crate::headers::HeaderFamily::OpenBank).
    #[must_use]
    pub fn headers(self, headers: Headers) -> Self {
        self.with(|rules| rules.headers = headers)
    }

    /// In which form a client is turned away. Defaults to [`DenialBody::open_bank`].
    #[must_use]
    pub fn denial_body(self, body: DenialBody) -> Self {
        self.with(|rules| rules.denial = body)
    }

    /// Your own answer to clients that are turned away by a decision. The header lines are added
    /// to it.
    #[must_use]
    pub fn deny_with(
        self,
        responder: impl Fn(&Decision, &Caller) -> Denial + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.responder = Some(Arc::new(responder)))
    }

    fn with(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        change(&mut self.rules);
        self
    }

    /// The limiter that decides.
    #[must_use]
    pub const fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// What to do with `request`: for adapters.
    ///
    /// A request that has passed a limiter before carries that [`Decision`] in its extensions.
    pub fn admit<R: RequestInfo>(&self, request: &R) -> Admission {
        let id = self.limiter.id();
        let passed = request.extension(|outer: &Decision| outer.passed(id));
        if passed == Some(true) || self.is_exempt(request) {
            return Admission::Exempt;
        }
        let subject = match (self.key.subject(request), self.rules.missing_key) {
            (Some(subject), _) => subject,
            (None, MissingKey::Share) => Subject::new(Realm::Unknown, ""),
            (None, MissingKey::Pass) => return Admission::Exempt,
            (None, MissingKey::Deny) => {
                if !self.rules.missing_key_seen.swap(true, Ordering::Relaxed) {
                    observe::missing_key();
                }
                let denial = self.rules.denial.missing_key(admission::speaks_grpc(request));
                return Admission::TurnedAway(denial);
            }
        };
        let decision = self.decide(request, &subject);
        Admission::Asked { decision, caller: Caller::new(subject, request) }
    }

    fn decide<R: RequestInfo>(&self, request: &R, subject: &Subject) -> Eventual<Decision> {
        let Self { limiter, rules, .. } = self;
        let cost = rules.cost.as_ref().map_or(Cost::ONE, |cost| cost(request));
        match rules.over_limit.as_ref().map_or(OverLimit::Reject, |choose| choose(request)) {
            OverLimit::Reject => limiter.check(subject, cost),
            OverLimit::Wait { at_most, queue } => {
                limiter.check_waiting(subject, cost, at_most, queue)
            }
            OverLimit::Degrade => limiter.check(subject, cost).map(Decision::or_degraded),
        }
    }

    fn is_exempt<R: RequestInfo>(&self, request: &R) -> bool {
        let rules = &self.rules;
        let is_preflight = || {
            let mut asks_for_method = false;
            request.header_lines("access-control-request-method", &mut |_| asks_for_method = true);
            request.method() == "OPTIONS" && asks_for_method
        };
        rules.exempt.iter().any(|predicate| predicate(request))
            || !rules.count_preflight && is_preflight()
    }

    /// What a request holds that goes on after `decision`: for adapters, who keep it until the body of
    /// the response has ended, and put a clone into the request's extensions.
    #[must_use]
    pub fn permit(&self, decision: &Decision, caller: Caller) -> Option<Permit> {
        let holds_place = || decision.policy().is_some_and(Policy::has_permits);
        let is_wanted = self.rules.metered || self.rules.true_cost.is_some() || holds_place();
        is_wanted.then(|| self.limiter.permit(caller.into_subject(), decision.clone()))
    }

    /// Finds in the head of the response what the request did cost: for adapters.
    pub fn answered(&self, permit: &Permit, response: &dyn ResponseInfo) {
        let true_cost = self.rules.true_cost.as_ref();
        if let Some(cost) = true_cost.and_then(|true_cost| true_cost(response)) {
            permit.set_cost(cost);
        }
    }

    /// The answer to a request that `decision` denies; [`write_headers`](Self::write_headers) adds
    /// to it.
    #[must_use]
    pub fn denial(&self, decision: &Decision, caller: &Caller) -> Denial {
        let rules = &self.rules;
        match &rules.responder {
            Some(responder) => responder(decision, caller),
            None => {
                let follow = rules.headers.followed();
                rules.denial.denial(decision, caller.realm(), follow, caller.is_grpc())
            }
        }
    }

    /// Calls `each` with the header lines of a response. `inner` is the decision that a limiter
    /// further in has left in the response's extensions; returns the one to leave there for
    /// limiters further out: the stricter of the two.
    ///
    /// A line of a list is to be added to those that are there; another replaces them. If `inner`
    /// is the stricter decision, its lines stay, and only lists are added to.
    pub fn write_headers(
        &self,
        decision: Decision,
        inner: Option<Decision>,
        each: &mut dyn FnMut(HeaderLine<'_>),
    ) -> Decision {
        let stricter_inner = inner.filter(|inner| !decision.is_stricter_than(inner));
        self.rules.headers.write(&decision, &mut |line| {
            if line.is_list || stricter_inner.is_none() {
                each(line);
            }
        });
        stricter_inner.unwrap_or(decision)
    }
}

// Not derived: an extractor need not be `Clone`.
impl<K> Clone for Gate<K> {
    fn clone(&self) -> Self {
        let Self { limiter, key, rules } = self;
        Self { limiter: limiter.clone(), key: Arc::clone(key), rules: rules.clone() }
    }
}

impl<K> fmt::Debug for Gate<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("limiter", &self.limiter)
            .field("missing_key", &self.rules.missing_key)
            .field("headers", &self.rules.headers)
            .field("denial_body", &self.rules.denial)
            .finish_non_exhaustive()
    }
}
