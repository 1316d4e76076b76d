//! A limiter in front of a web service, whatever the framework: who is counted, who is exempt, what
//! the client is told. The adapters wrap it in their framework's words.
//!
//! # Rules
//!
//! 1. **Exempt** requests are not counted and get no header. [`Gate::exempt`] chooses them, and
//!    [`Gate::exempt_preflights`] adds CORS preflights. Preflights are counted by default: put the CORS
//!    layer outside of the limiter, so that it answers them itself.
//! 2. **The subject** that is counted is found by the [`KeyExtractor`]; by default it is the address of
//!    the peer. What happens to a request without a key is a setting, [`MissingKey`]. A request whose key
//!    is [ambiguous](AmbiguousKey) is always rejected with 400, and counted nowhere.
//! 3. **Once for each limiter and subject.** A request that meets the same limiter again under the same
//!    subject, in a nested layer, passes without being charged a second time. Under another subject it is
//!    charged: one limiter may count addresses in one layer and consumers in another. (Two limiters on one
//!    store need [namespaces](crate::RateLimiterBuilder::namespace) of their own.)
//! 4. **Over its limits** a request is turned away, waits or is answered with less: [`OverLimit`].
//!    Under a concurrency limit it holds its place until its response has ended, the body included.
//! 5. **The cost** is one unit, or what [`Gate::cost`] finds in the request. What it was in the end can
//!    be told by the handler ([`Gate::metered`]) and found in the response ([`Gate::response_cost`],
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
mod denied;
mod over_limit;
mod preflight;
mod response;
mod settings;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use admission::{Admission, Caller};
pub use denied::Denied;
pub use over_limit::OverLimit;
pub use response::{ResponseInfo, ResponseRules};
use settings::Rules;

use crate::decision::Decision;
use crate::denial::{Denial, DenialReason};
use crate::key::{AmbiguousKey, ClientAddress, KeyExtractor, RequestInfo};
use crate::limiter::Wait;
use crate::limiter::{Permit, RateLimiter};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, Realm, Subject};
use crate::observe;
use crate::policy::Policy;

/// What happens to a request without a key.
///
/// A request with an [ambiguous](AmbiguousKey) key is not one of these: it is always rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissingKey {
    /// It is turned away with 403.
    #[default]
    Reject,
    /// It passes and is not counted.
    Allow,
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

impl Gate {
    /// Counts by the address of the peer, exempts nothing, sets the headers of
    /// [`HeaderFamily::OpenBank`](crate::headers::HeaderFamily::OpenBank) and denies in JSON.
    #[must_use]
    pub fn new(limiter: RateLimiter) -> Self {
        Self { limiter, key: Arc::default(), rules: Rules::default() }
    }
}

impl From<RateLimiter> for Gate {
    fn from(limiter: RateLimiter) -> Self {
        Self::new(limiter)
    }
}

impl<K: KeyExtractor> Gate<K> {
    /// The limiter that decides.
    #[must_use]
    pub const fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// Decides what to do with `request`: for adapters.
    ///
    /// A request that has passed a limiter before carries that [`Decision`] in its extensions.
    pub fn admit<R: RequestInfo>(&self, request: &R) -> Admission {
        if self.is_exempt(request) {
            return Admission::Exempt;
        }
        let subject = match (self.key.subject(request), self.rules.missing_key) {
            (Ok(Some(subject)), _) => subject,
            (Ok(None), MissingKey::Share) => Subject::new(Realm::Unknown, ""),
            (Ok(None), MissingKey::Allow) => return Admission::Exempt,
            (Ok(None), MissingKey::Reject) => return self.reject_missing_key(request),
            (Err(AmbiguousKey), _) => return self.reject_ambiguous_key(request),
        };
        let outer = request.find_extension::<Decision>();
        let caller = Caller::new(subject, request, outer.is_some());
        if outer.is_some_and(|outer| outer.was_made_by(self.limiter.id(), caller.subject_hash())) {
            return Admission::Exempt;
        }
        let decision = self.decide(request, caller.subject());
        Admission::Asked { decision, caller }
    }

    #[cold]
    fn reject_missing_key<R: RequestInfo>(&self, request: &R) -> Admission {
        if !self.rules.missing_key_seen.swap(true, Ordering::Relaxed) {
            observe::missing_key();
        }
        if self.limiter.is_shadow() {
            return Admission::Exempt;
        }
        self.reject(DenialReason::MissingKey, request)
    }

    #[cold]
    fn reject_ambiguous_key<R: RequestInfo>(&self, request: &R) -> Admission {
        if !self.rules.ambiguous_key_seen.swap(true, Ordering::Relaxed) {
            observe::ambiguous_key();
        }
        if self.limiter.is_shadow() {
            return Admission::Exempt;
        }
        self.reject(DenialReason::AmbiguousKey, request)
    }

    fn decide<R: RequestInfo>(&self, request: &R, subject: &Subject) -> MaybeReady<Decision> {
        let Self { limiter, rules, .. } = self;
        let cost = rules.cost.as_ref().map_or(Cost::ONE, |cost| cost(request));
        // Charges that are settled when the request ends may be reservations.
        let reserves = rules.metered || rules.response.cost.is_some();
        match rules.over_limit.as_ref().map_or(OverLimit::Reject, |choose| choose(request)) {
            OverLimit::Reject => limiter.check_as(subject, cost, reserves),
            OverLimit::Wait { at_most, queue } => {
                limiter.check_waiting_as(subject, cost, Wait { at_most, queue, reserves })
            }
            OverLimit::Degrade => {
                limiter.check_as(subject, cost, reserves).map(Decision::degraded_if_denied)
            }
        }
    }

    fn is_exempt<R: RequestInfo>(&self, request: &R) -> bool {
        let rules = &self.rules;
        rules.exempt.iter().any(|predicate| predicate(request))
            || rules.exempt_preflights && preflight::is_preflight(request)
    }

    /// What a request holds that goes on after `decision`: for adapters, who keep it until the body of
    /// the response has ended, and leave a clone in the request's extensions. `outer` is the one that
    /// they found there.
    #[must_use]
    pub fn permit(
        &self,
        decision: &Decision,
        caller: &Caller,
        outer: Option<Permit>,
    ) -> Option<Permit> {
        let Rules { metered, response, .. } = &self.rules;
        let holds_permits = decision.policy().is_some_and(Policy::has_permits);
        if !metered && response.cost.is_none() && !holds_permits {
            return outer;
        }
        let permit = self.limiter.permit(caller.subject(), decision.clone());
        Some(permit.metered(*metered).inside(outer))
    }

    /// What to do with the response to a request that was counted: for adapters.
    #[must_use]
    pub const fn response_rules(&self) -> &ResponseRules {
        &self.rules.response
    }

    /// The answer to a request that `decision` denies; [`write_headers`](ResponseRules::write_headers)
    /// adds to it.
    #[must_use]
    pub fn denial(&self, decision: &Decision, caller: &Caller) -> Denial {
        let reason = DenialReason::Decision { decision, subject: caller.subject() };
        self.answer(reason, caller.is_grpc())
    }

    /// Makes the response to a request that a handler has decided itself, with the form and the headers of
    /// this gate.
    #[must_use]
    pub fn denied(&self, decision: Decision, subject: &Subject) -> Denied {
        let reason = DenialReason::Decision { decision: &decision, subject };
        let denial = self.answer(reason, false);
        Denied::with(decision, denial, self.rules.response.headers.clone())
    }

    /// Rejects a request that is not counted.
    fn reject<R: RequestInfo>(&self, reason: DenialReason<'_>, request: &R) -> Admission {
        Admission::TurnedAway(self.answer(reason, admission::speaks_grpc(request)))
    }

    /// Returns the answer for `reason`: the default, or that of the responder.
    fn answer(&self, reason: DenialReason<'_>, is_grpc: bool) -> Denial {
        let rules = &self.rules;
        let default = rules.denial.denial(reason, rules.response.headers.followed(), is_grpc);
        match &rules.responder {
            None => default,
            Some(responder) if !is_grpc => responder(reason, default),
            Some(responder) => {
                let own = responder(reason, default.clone());
                if own.is_grpc() { own } else { default }
            }
        }
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
            .field("headers", &self.rules.response.headers)
            .field("denial_body", &self.rules.denial)
            .finish_non_exhaustive()
    }
}
