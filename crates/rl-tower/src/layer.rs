use rl_core::adapter::HttpLimiter;
use rl_core::denial::{Denial, DenialBody, DenialReason};
use rl_core::headers::Headers;
use rl_core::key::{KeyExtractor, KeySecret, RequestInfo};
use rl_core::{Cost, Decision, MissingKey, OverLimit, RateLimiter, ResponseInfo, Subject};
use tower_layer::Layer;

use crate::denied::Denied;
use crate::service::RateLimit;
use crate::usage::UsageService;

/// Puts a limiter in front of a service.
///
/// Clones share the limiter, and so do the services that the layer creates. axum creates a service
/// for each route, and clones it for each connection; all of them share the counters. A setting
/// changes only the clone on which it is set.
///
/// The [crate] has an example, and [`adapter`](rl_core::adapter#rules) describes how requests are
/// handled.
#[derive(Clone, Debug)]
pub struct RateLimitLayer {
    limiter: HttpLimiter,
}

impl RateLimitLayer {
    /// Creates a layer that counts by the address of the peer.
    ///
    /// It exempts nothing, sends the headers of
    /// [`HeaderFamily::OpenBank`](rl_core::headers::HeaderFamily::OpenBank) and rejects in JSON.
    #[must_use]
    pub fn new(limiter: RateLimiter) -> Self {
        Self::from(HttpLimiter::new(limiter))
    }

    /// Returns the limiter that decides.
    #[must_use]
    pub fn limiter(&self) -> &RateLimiter {
        self.limiter.limiter()
    }

    /// Sets the extractor that finds the subject of a request. Defaults to the address of the peer.
    ///
    /// ```
    /// use rl_tower::Realm;
    /// use rl_tower::key::{ApiKey, ClientAddress, KeyExtractor, KeySecret};
    /// # use rl_tower::{Limit, RateLimitLayer, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let secret = KeySecret::new(b"from your configuration")?;
    /// let sold = secret.subject(Realm::Key, b"key-of-alice");
    /// let key = ApiKey::header("x-api-key", secret)?
    ///     .known(move |key| *key == sold); // a client cannot invent keys
    /// let layer = RateLimitLayer::new(limiter).key(key.or(ClientAddress::default()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn key(self, key: impl KeyExtractor) -> Self {
        self.set(|limiter| limiter.key(key))
    }

    /// Sets how requests without a key are handled. Defaults to [`MissingKey::Reject`].
    #[must_use]
    pub fn on_missing_key(self, missing_key: MissingKey) -> Self {
        self.set(|limiter| limiter.on_missing_key(missing_key))
    }

    /// Exempts requests for which `predicate` returns true.
    ///
    /// Exempt requests are not counted, and their responses get no headers. Repeated calls add
    /// predicates. A predicate can read the extensions of the request with
    /// [`RequestExt`](crate::RequestExt).
    ///
    /// ```
    /// # use rl_tower::{Limit, RateLimitLayer, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let layer = RateLimitLayer::new(limiter).exempt(|request| request.path() == "/health");
    /// # Ok::<(), rl_tower::BuildError>(())
    /// ```
    #[must_use]
    pub fn exempt(
        self,
        predicate: impl Fn(&dyn RequestInfo) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.set(|limiter| limiter.exempt(predicate))
    }

    /// Exempts CORS preflights. By default they are counted.
    ///
    /// A CORS layer outside the limiter answers preflights itself, so they never reach the limiter.
    /// This setting is for services whose CORS layer is inside the limiter.
    ///
    /// Only an `OPTIONS` request with one `Origin` and one valid `Access-Control-Request-Method` is
    /// exempt, if it has no body and no header that overrides the method. A request that may reach
    /// a gRPC service is never exempt. A client can send any number of preflights, so only the CORS
    /// layer should answer them.
    #[must_use]
    pub fn exempt_preflights(self) -> Self {
        self.set(HttpLimiter::exempt_preflights)
    }

    /// Sets the function that returns the cost of a request. Defaults to one unit for each request.
    ///
    /// A request that costs 0 is never denied, not even by a limit of requests or a concurrency
    /// limit. So return at least 1 if the client chooses the cost, or if the response contains the
    /// final one.
    ///
    /// An outer layer can leave a value in the extensions of the request, such as the size of a
    /// body that it has read. [`RequestExt`](crate::RequestExt) reads that value.
    ///
    /// ```
    /// # use rl_tower::{Cost, Limit, RateLimitLayer, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let layer = RateLimitLayer::new(limiter).cost(|request| match request.method() {
    ///     "GET" | "HEAD" => Cost::ONE,
    ///     _ => Cost::new(5),
    /// });
    /// # Ok::<(), rl_tower::BuildError>(())
    /// ```
    #[must_use]
    pub fn cost(self, cost: impl Fn(&dyn RequestInfo) -> Cost + Send + Sync + 'static) -> Self {
        self.set(|limiter| limiter.cost(cost))
    }

    /// Lets handlers change the cost of a request through the [`Permit`](crate::Permit) in its
    /// extensions.
    ///
    /// This costs one allocation for each request. Requests also have a permit under a concurrency
    /// limit and with [`response_cost`](Self::response_cost), but only this setting lets the permit
    /// change the cost.
    ///
    /// ```
    /// use axum::Extension;
    /// use rl_tower::Permit;
    /// # use rl_tower::{Limit, RateLimitLayer, RateLimiter};
    ///
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(40_000)).build()?;
    /// let layer = RateLimitLayer::new(limiter).metered();
    ///
    /// async fn complete(Extension(permit): Extension<Permit>) {
    ///     permit.set_cost(1_280); // tokens
    /// }
    /// # let _: axum::routing::MethodRouter = axum::routing::post(complete);
    /// # Ok::<(), rl_tower::BuildError>(())
    /// ```
    #[must_use]
    pub fn metered(self) -> Self {
        self.set(HttpLimiter::metered)
    }

    /// Sets the function that reads the final cost of a request from the head of its response.
    ///
    /// `None` leaves the cost unchanged. `Some` replaces the cost, even if a handler has set it. If
    /// the limiter has [rules](rl_core::rules), the result is the cost under each rule that has no
    /// [cost](rl_core::rules::Rule::cost) of its own. A rule may read its own cost from the
    /// response with [`Rule::response_cost`](rl_core::rules::Rule::response_cost).
    ///
    /// ```
    /// # use rl_tower::{Cost, Limit, RateLimitLayer, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// // Responses from the cache are free.
    /// let layer = RateLimitLayer::new(limiter).response_cost(|response| {
    ///     (response.header("x-cache") == Some(b"HIT")).then_some(Cost::ZERO)
    /// });
    /// # Ok::<(), rl_tower::BuildError>(())
    /// ```
    #[must_use]
    pub fn response_cost(
        self,
        cost: impl Fn(&dyn ResponseInfo) -> Option<Cost> + Send + Sync + 'static,
    ) -> Self {
        self.set(|limiter| limiter.response_cost(cost))
    }

    /// Refunds a request if `predicate` returns true for its response. Replaces
    /// [`response_cost`](Self::response_cost).
    ///
    /// ```
    /// # use rl_tower::{Limit, RateLimitLayer, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// // Clients do not pay for errors of the server.
    /// let layer = RateLimitLayer::new(limiter).refund_if(|response| response.status() >= 500);
    /// # Ok::<(), rl_tower::BuildError>(())
    /// ```
    #[must_use]
    pub fn refund_if(
        self,
        predicate: impl Fn(&dyn ResponseInfo) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.set(|limiter| limiter.refund_if(predicate))
    }

    /// Sets how requests over their limits are handled. Defaults to [`OverLimit::Reject`].
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rl_tower::OverLimit;
    /// # use rl_tower::{Limit, RateLimitLayer, RateLimiter};
    ///
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let layer = RateLimitLayer::new(limiter)
    ///     .on_over_limit(OverLimit::Wait { at_most: Duration::from_secs(2), queue: 100 });
    /// # Ok::<(), rl_tower::BuildError>(())
    /// ```
    #[must_use]
    pub fn on_over_limit(self, over_limit: OverLimit) -> Self {
        self.set(|limiter| limiter.on_over_limit(over_limit))
    }

    /// Sets the function that chooses how a request over its limits is handled.
    ///
    /// ```
    /// # use rl_tower::{Limit, OverLimit, RateLimitLayer, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let layer = RateLimitLayer::new(limiter).on_over_limit_by(|request| match request.method() {
    ///     "GET" => OverLimit::Degrade,
    ///     _ => OverLimit::Reject,
    /// });
    /// # Ok::<(), rl_tower::BuildError>(())
    /// ```
    #[must_use]
    pub fn on_over_limit_by(
        self,
        choose: impl Fn(&dyn RequestInfo) -> OverLimit + Send + Sync + 'static,
    ) -> Self {
        self.set(|limiter| limiter.on_over_limit_by(choose))
    }

    /// Sets the headers of responses. Defaults to
    /// [`HeaderFamily::OpenBank`](rl_core::headers::HeaderFamily::OpenBank).
    #[must_use]
    pub fn headers(self, headers: Headers) -> Self {
        self.set(|limiter| limiter.headers(headers))
    }

    /// Sets the form of denials. Defaults to [`DenialBody::json`].
    #[must_use]
    pub fn denial_body(self, body: DenialBody) -> Self {
        self.set(|limiter| limiter.denial_body(body))
    }

    /// Sets the words, codes and fields of the Open Bank Project:
    /// [`Headers::open_bank`](rl_core::headers::Headers::open_bank), and [`DenialBody::open_bank`]
    /// with the prefix `OBP-10018: ` and the ids of consumers.
    #[must_use]
    pub fn open_bank(self) -> Self {
        self.set(HttpLimiter::open_bank)
    }

    /// Discloses the names of all [rules](rl_core::rules) in headers, bodies and gRPC details:
    /// `login/minute`. By default clients read a hash of the name: `r3f2a1/minute`.
    #[must_use]
    pub fn name_rules(self) -> Self {
        self.set(HttpLimiter::name_rules)
    }

    /// Adds the partition key `pk` to the lists of
    /// [`HeaderFamily::IetfDraft11`](rl_core::headers::HeaderFamily::IetfDraft11): a hash of the
    /// subject, keyed with `secret`. All instances need the same secret.
    ///
    /// ```
    /// use rl_tower::headers::{HeaderFamily, Headers};
    /// use rl_tower::key::KeySecret;
    /// # use rl_tower::{Limit, RateLimitLayer, RateLimiter};
    ///
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let layer = RateLimitLayer::new(limiter)
    ///     .headers(Headers::new(HeaderFamily::IetfDraft11))
    ///     .partition_keys(KeySecret::new(b"from your configuration")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn partition_keys(self, secret: KeySecret) -> Self {
        self.set(|limiter| limiter.partition_keys(secret))
    }

    /// Sets the function that returns the response to a rejected request.
    ///
    /// The responder gets the reason and the default response, which has the form of
    /// [`denial_body`](Self::denial_body). The rate limit headers are added to the response that it
    /// returns. Most responders should keep `default.status`, which is 503 if the limiter cannot
    /// decide.
    ///
    /// A gRPC client can read only a gRPC response. If the responder returns another form for a
    /// gRPC call ([`Denial::is_grpc`] is false), the default is sent instead.
    ///
    /// ```
    /// use rl_tower::denial::Denial;
    /// # use rl_tower::{Limit, RateLimitLayer, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let layer = RateLimitLayer::new(limiter).deny_with(|reason, default| match reason.decision() {
    ///     Some(decision) if !decision.origin().is_failure() => {
    ///         Denial::json(default.status, r#"{"error":"slow_down"}"#)
    ///     }
    ///     _ => default,
    /// });
    /// # Ok::<(), rl_tower::BuildError>(())
    /// ```
    #[must_use]
    pub fn deny_with(
        self,
        responder: impl Fn(DenialReason<'_>, Denial) -> Denial + Send + Sync + 'static,
    ) -> Self {
        self.set(|limiter| limiter.deny_with(responder))
    }

    /// Puts the [`Decision`] into the extensions of responses, where layers outside this one can
    /// read it. If limiters are nested, it is the stricter decision.
    ///
    /// This costs four allocations for a response that has no other extensions. Handlers find the
    /// decision in the extensions of the request in any case.
    #[must_use]
    pub fn expose_decision(self) -> Self {
        self.set(HttpLimiter::expose_decision)
    }

    /// Puts the [`CountedSubject`](crate::CountedSubject) into the extensions of requests, where
    /// handlers can read it.
    ///
    /// This costs an allocation for each request.
    ///
    /// ```
    /// use axum::Extension;
    /// use rl_tower::CountedSubject;
    /// # use rl_tower::{Limit, RateLimitLayer, RateLimiter};
    ///
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let layer = RateLimitLayer::new(limiter).expose_subject();
    ///
    /// async fn show(Extension(CountedSubject(subject)): Extension<CountedSubject>) -> String {
    ///     format!("You are counted by {}.", subject.realm().as_str())
    /// }
    /// # let _: axum::routing::MethodRouter = axum::routing::get(show);
    /// # Ok::<(), rl_tower::BuildError>(())
    /// ```
    #[must_use]
    pub fn expose_subject(self) -> Self {
        self.set(HttpLimiter::expose_subject)
    }

    /// Returns the response to a request that a handler has denied itself. It has the form and the
    /// headers of this layer.
    #[must_use]
    pub fn denied(&self, decision: Decision, subject: &Subject) -> Denied {
        self.limiter.denied(decision, subject).into()
    }

    /// Returns a service that answers a client what is left of its limits, in JSON:
    /// [`HttpLimiter::usage`].
    ///
    /// Create it after all settings of the layer. Its requests are not charged, so put it outside
    /// of this layer, or exempt its path. They cost the store a look-up, so a limit of their own
    /// does no harm.
    ///
    /// ```
    /// use axum::Router;
    /// use axum::routing::{get, get_service};
    /// # use rl_tower::{Limit, RateLimitLayer, RateLimiter};
    ///
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let layer = RateLimitLayer::new(limiter);
    /// let usage = get_service(layer.usage_service());
    /// let app: Router = Router::new()
    ///     .route("/", get(async || "hello"))
    ///     .layer(layer)
    ///     .route("/rate_limit", usage); // after the layer, which does not count it
    /// # Ok::<(), rl_tower::BuildError>(())
    /// ```
    #[must_use]
    pub fn usage_service(&self) -> UsageService {
        UsageService::new(self.limiter.clone())
    }

    fn set(self, change: impl FnOnce(HttpLimiter) -> HttpLimiter) -> Self {
        Self { limiter: change(self.limiter) }
    }
}

impl From<HttpLimiter> for RateLimitLayer {
    fn from(limiter: HttpLimiter) -> Self {
        Self { limiter }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, self.limiter.clone())
    }
}
