//! What can be set on a [`Gate`].

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{Gate, MissingKey, OverLimit, ResponseInfo, ResponseRules};
use crate::denial::{Denial, DenialBody, DenialReason};
use crate::headers::Headers;
use crate::key::{KeyExtractor, RequestInfo};
use crate::model::Cost;

/// What does not depend on the type of the key extractor.
#[derive(Clone, Default)]
pub(super) struct Rules {
    pub(super) missing_key: MissingKey,
    pub(super) exempt_preflights: bool,
    pub(super) exempt: Vec<Predicate>,
    pub(super) cost: Option<CostOf>,
    pub(super) metered: bool,
    pub(super) over_limit: Option<OverLimitOf>,
    pub(super) response: ResponseRules,
    pub(super) denial: DenialBody,
    pub(super) responder: Option<Responder>,
    pub(super) missing_key_seen: Arc<AtomicBool>,
    pub(super) ambiguous_key_seen: Arc<AtomicBool>,
}

type Predicate = Arc<dyn Fn(&dyn RequestInfo) -> bool + Send + Sync>;
type CostOf = Arc<dyn Fn(&dyn RequestInfo) -> Cost + Send + Sync>;
type OverLimitOf = Arc<dyn Fn(&dyn RequestInfo) -> OverLimit + Send + Sync>;
type Responder = Arc<dyn Fn(DenialReason<'_>, Denial) -> Denial + Send + Sync>;

impl<K: KeyExtractor> Gate<K> {
    /// Sets how the subject of a request is found. Defaults to the address of the peer.
    #[must_use]
    pub fn key<L: KeyExtractor>(self, key: L) -> Gate<L> {
        Gate { limiter: self.limiter, key: Arc::new(key), rules: self.rules }
    }

    /// Sets what happens to a request without a key. Defaults to [`MissingKey::Reject`].
    #[must_use]
    pub fn missing_key(self, missing_key: MissingKey) -> Self {
        self.with(|rules| rules.missing_key = missing_key)
    }

    /// Leaves requests for which `predicate` is true uncounted. Defaults to none; every call adds to what
    /// is exempt.
    ///
    /// `RequestExt` of the adapters reads the extensions of an earlier layer, as in [`cost`](Self::cost).
    #[must_use]
    pub fn exempt(
        self,
        predicate: impl Fn(&dyn RequestInfo) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.exempt.push(Arc::new(predicate)))
    }

    /// Sets how many units a request takes. Defaults to one for each.
    ///
    /// An earlier layer can leave a value in the extensions of the request, such as the size of a body that
    /// it has read. Read it with `request.extension::<T>()` (`RequestExt` of rl-tower or rl-actix).
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

    /// Whether handlers can change what a request costs, by the [`Permit`](crate::Permit) in the
    /// request's extensions. Defaults to `false`, as it takes an allocation.
    ///
    /// A request also holds a permit under a concurrency limit, or with
    /// [`response_cost`](Self::response_cost): unless the gate is metered, a handler cannot change the
    /// cost by that.
    ///
    /// ```
    /// # use rl_core::{Gate, Limit, Permit, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(40_000)).build()?;
    /// let gate = Gate::new(limiter).metered(true);
    ///
    /// /// In axum `Extension(permit): Extension<Permit>`, in actix-web `permit: ReqData<Permit>`.
    /// fn answer(permit: &Permit, tokens: u64) {
    ///     permit.set_cost(tokens);
    /// }
    /// # Ok::<(), rl_core::limiter::BuildError>(())
    /// ```
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
    /// let gate = Gate::new(limiter).response_cost(|response| {
    ///     let mut is_hit = false;
    ///     response.header_lines("x-cache", &mut |value| is_hit |= value == b"HIT");
    ///     is_hit.then_some(Cost::ZERO)
    /// });
    /// # Ok::<(), rl_core::limiter::BuildError>(())
    /// ```
    #[must_use]
    pub fn response_cost(
        self,
        cost: impl Fn(&dyn ResponseInfo) -> Option<Cost> + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.response.cost = Some(Arc::new(cost)))
    }

    /// Gives back what a request has cost if its response is such: a short form of
    /// [`response_cost`](Self::response_cost), which it replaces.
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
        self.response_cost(move |response| predicate(response).then_some(Cost::ZERO))
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

    /// Sets whether CORS preflights are exempt. Defaults to `false`.
    ///
    /// A CORS layer outside of the limiter answers preflights itself, and the limiter never sees them.
    /// This setting is for services whose CORS layer is inside of the limiter.
    ///
    /// Only an `OPTIONS` request with one `Origin` and one valid `Access-Control-Request-Method` is exempt,
    /// whose headers announce no body and override no method. A client can send such requests without
    /// limit, so only the CORS layer should answer them.
    #[must_use]
    pub fn exempt_preflights(self, are_exempt: bool) -> Self {
        self.with(|rules| rules.exempt_preflights = are_exempt)
    }

    /// Which headers a response carries. Defaults to
    /// [`HeaderFamily::OpenBank`](crate::headers::HeaderFamily::OpenBank).
    #[must_use]
    pub fn headers(self, headers: Headers) -> Self {
        self.with(|rules| rules.response.headers = headers)
    }

    /// In which form a client is turned away. Defaults to [`DenialBody::open_bank`].
    #[must_use]
    pub fn denial_body(self, body: DenialBody) -> Self {
        self.with(|rules| rules.denial = body)
    }

    /// Sets your own answer to requests that are rejected: by a decision, without a key, or with an
    /// ambiguous one.
    ///
    /// The responder gets the reason and the default answer, in the form of
    /// [`denial_body`](Self::denial_body), and returns what is sent. The header lines of a decision are
    /// added to it. Keep `default.status` unless you mean to change it: it is 503 where the limiter
    /// itself cannot decide.
    ///
    /// A gRPC call always gets a gRPC answer, which is all that its client can read. If the responder returns
    /// another form ([`Denial::is_grpc`] is false), the default is sent instead.
    ///
    /// ```
    /// use rl_core::denial::Denial;
    /// # use rl_core::{Gate, Limit, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let gate = Gate::new(limiter).deny_with(|reason, default| match reason.decision() {
    ///     Some(decision) if !decision.origin().is_failure() => {
    ///         Denial::json(default.status, r#"{"error":"slow_down"}"#)
    ///     }
    ///     _ => default,
    /// });
    /// # Ok::<(), rl_core::limiter::BuildError>(())
    /// ```
    #[must_use]
    pub fn deny_with(
        self,
        responder: impl Fn(DenialReason<'_>, Denial) -> Denial + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.responder = Some(Arc::new(responder)))
    }

    /// Whether the [`Decision`](crate::Decision) is left in the extensions of the response, where layers further out can
    /// read it. Handlers find it in those of the request in any case.
    ///
    /// Defaults to `true`. A response that has no extensions otherwise takes three allocations for it;
    /// without it, a request that passes takes one in all.
    ///
    /// ```
    /// # use rl_core::{Gate, Limit, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let gate = Gate::new(limiter).decision_in_response(false);
    /// # Ok::<(), rl_core::limiter::BuildError>(())
    /// ```
    #[must_use]
    pub fn decision_in_response(self, is_left: bool) -> Self {
        self.with(|rules| rules.response.hides_decision = !is_left)
    }

    fn with(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        change(&mut self.rules);
        self
    }
}
