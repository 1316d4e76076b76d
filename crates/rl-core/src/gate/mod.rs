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
//! 4. **Nested limiters** merge what they tell: of headers with a single value the stricter stay,
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
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use admission::{Admission, Caller};

use crate::denial::{Denial, DenialBody};
use crate::headers::{HeaderLine, Headers};
use crate::key::{ClientAddress, KeyExtractor, RequestInfo};
use crate::{Cost, Decision, RateLimiter, Realm, Subject, observe};

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
    headers: Headers,
    denial: DenialBody,
    responder: Option<Responder>,
    missing_key_seen: Arc<AtomicBool>,
}

type Predicate = Arc<dyn Fn(&dyn RequestInfo) -> bool + Send + Sync>;
type CostOf = Arc<dyn Fn(&dyn RequestInfo) -> Cost + Send + Sync>;
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
        let caller = |realm: &Realm| Caller::new(realm.clone(), request);
        let subject = match (self.key.subject(request), self.rules.missing_key) {
            (Some(subject), _) => subject,
            (None, MissingKey::Share) => Subject::new(Realm::Unknown, ""),
            (None, MissingKey::Pass) => return Admission::Exempt,
            (None, MissingKey::Deny) => {
                if !self.rules.missing_key_seen.swap(true, Ordering::Relaxed) {
                    observe::missing_key();
                }
                let is_grpc = caller(&Realm::Unknown).is_grpc();
                return Admission::TurnedAway(self.rules.denial.missing_key(is_grpc));
            }
        };
        let cost = self.rules.cost.as_ref().map_or(Cost::ONE, |cost| cost(request));
        let decision = self.limiter.check(&subject, cost);
        Admission::Asked { decision, caller: caller(subject.realm()) }
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
