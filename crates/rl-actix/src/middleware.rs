use std::future::{Ready, ready};
use std::rc::Rc;
use std::task::{Context, Poll};

use actix_web::body::MessageBody;
use actix_web::dev::{Service, ServiceRequest, ServiceResponse, Transform, fn_service};
use actix_web::{Error, HttpMessage, Route, web};
use rl_core::adapter::{Admission, HttpLimiter};
use rl_core::denial::{Denial, DenialBody, DenialReason};
use rl_core::headers::Headers;
use rl_core::key::{KeyExtractor, KeySecret, RequestInfo};
use rl_core::{
    Cost, Decision, MaybeReady, MissingKey, OverLimit, RateLimiter, ResponseInfo, Subject,
};

use crate::denied::Denied;
use crate::future::ResponseFuture;
use crate::request::ActixRequest;
use crate::response::{self, ResponseBody};

/// Puts a limiter in front of an app, a scope or a resource.
///
/// Clones share the limiter. A setting changes only the clone on which it is set.
///
/// The [crate] has an example, and [`adapter`](rl_core::adapter#rules) describes how requests are
/// handled.
#[derive(Clone, Debug)]
pub struct RateLimit {
    limiter: HttpLimiter,
}

impl RateLimit {
    /// Creates a middleware that counts by the address of the peer.
    ///
    /// It exempts nothing, and sends denials in JSON and the headers of
    /// [`HeaderFamily::OpenBank`](rl_core::headers::HeaderFamily::OpenBank).
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
    /// use rl_actix::Realm;
    /// use rl_actix::key::{ApiKey, ClientAddress, KeyExtractor, KeySecret};
    /// # use rl_actix::{Limit, RateLimit, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let secret = KeySecret::new(b"from your configuration")?;
    /// let sold = secret.subject(Realm::Key, b"key-of-alice");
    /// let key = ApiKey::header("x-api-key", secret)?.known(move |key| *key == sold);
    /// let limit = RateLimit::new(limiter).key(key.or(ClientAddress::default()));
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
    /// # use rl_actix::{Limit, RateLimit, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let limit = RateLimit::new(limiter).exempt(|request| request.path() == "/health");
    /// # Ok::<(), rl_actix::BuildError>(())
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
    /// This setting is for services whose CORS layer is inside the limiter. Over HTTP/2 it exempts
    /// nothing, because actix-web does not report whether a body follows.
    ///
    /// Only `OPTIONS` with one `Origin`, one valid `Access-Control-Request-Method`, no body and no
    /// header that overrides the method is exempt. A client can send any number of such requests,
    /// so only the CORS layer should answer them.
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
    /// An outer middleware can leave a value in the extensions of the request, such as the size of
    /// a body that it has read. [`RequestExt`](crate::RequestExt) reads that value.
    ///
    /// ```
    /// # use rl_actix::{Cost, Limit, RateLimit, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let limit = RateLimit::new(limiter).cost(|request| match request.method() {
    ///     "GET" | "HEAD" => Cost::ONE,
    ///     _ => Cost::new(5),
    /// });
    /// # Ok::<(), rl_actix::BuildError>(())
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
    /// use actix_web::web::{self, ReqData};
    /// use rl_actix::Permit;
    /// # use rl_actix::{Limit, RateLimit, RateLimiter};
    ///
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(40_000)).build()?;
    /// let limit = RateLimit::new(limiter).metered();
    ///
    /// async fn complete(permit: ReqData<Permit>) -> &'static str {
    ///     permit.set_cost(1_280); // tokens
    ///     "completed"
    /// }
    /// # let _: actix_web::Route = web::post().to(complete);
    /// # Ok::<(), rl_actix::BuildError>(())
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
    /// # use rl_actix::{Cost, Limit, RateLimit, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// // Responses from the cache are free.
    /// let limit = RateLimit::new(limiter).response_cost(|response| {
    ///     (response.header("x-cache") == Some(b"HIT")).then_some(Cost::ZERO)
    /// });
    /// # Ok::<(), rl_actix::BuildError>(())
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
    /// # use rl_actix::{Limit, RateLimit, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// // Clients do not pay for errors of the server.
    /// let limit = RateLimit::new(limiter).refund_if(|response| response.status() >= 500);
    /// # Ok::<(), rl_actix::BuildError>(())
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
    /// use rl_actix::OverLimit;
    /// # use rl_actix::{Limit, RateLimit, RateLimiter};
    ///
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let limit = RateLimit::new(limiter)
    ///     .on_over_limit(OverLimit::Wait { at_most: Duration::from_secs(2), queue: 100 });
    /// # Ok::<(), rl_actix::BuildError>(())
    /// ```
    #[must_use]
    pub fn on_over_limit(self, over_limit: OverLimit) -> Self {
        self.set(|limiter| limiter.on_over_limit(over_limit))
    }

    /// Sets the function that chooses how a request over its limits is handled.
    ///
    /// ```
    /// # use rl_actix::{Limit, OverLimit, RateLimit, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let limit = RateLimit::new(limiter).on_over_limit_by(|request| match request.method() {
    ///     "GET" => OverLimit::Degrade,
    ///     _ => OverLimit::Reject,
    /// });
    /// # Ok::<(), rl_actix::BuildError>(())
    /// ```
    #[must_use]
    pub fn on_over_limit_by(
        self,
        choose: impl Fn(&dyn RequestInfo) -> OverLimit + Send + Sync + 'static,
    ) -> Self {
        self.set(|limiter| limiter.on_over_limit_by(choose))
    }

    /// Sets the headers of responses. Defaults to `Headers::default()`: `X-Rate-Limit-*`.
    #[must_use]
    pub fn headers(self, headers: Headers) -> Self {
        self.set(|limiter| limiter.headers(headers))
    }

    /// Sets the form of denials. Defaults to [`DenialBody::json`].
    #[must_use]
    pub fn denial_body(self, body: DenialBody) -> Self {
        self.set(|limiter| limiter.denial_body(body))
    }

    /// Sets the words, codes and fields of the Open Bank Project: [`HttpLimiter::open_bank`].
    #[must_use]
    pub fn open_bank(self) -> Self {
        self.set(HttpLimiter::open_bank)
    }

    /// Discloses the names of all [rules](rl_core::rules) to clients: [`HttpLimiter::name_rules`].
    #[must_use]
    pub fn name_rules(self) -> Self {
        self.set(HttpLimiter::name_rules)
    }

    /// Adds the partition key `pk` to the fields of the IETF: [`HttpLimiter::partition_keys`].
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
    /// use rl_actix::denial::Denial;
    /// # use rl_actix::{Limit, RateLimit, RateLimiter};
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let limit = RateLimit::new(limiter).deny_with(|reason, default| match reason.decision() {
    ///     Some(decision) if !decision.origin().is_failure() => {
    ///         Denial::json(default.status, r#"{"error":"slow_down"}"#)
    ///     }
    ///     _ => default,
    /// });
    /// # Ok::<(), rl_actix::BuildError>(())
    /// ```
    #[must_use]
    pub fn deny_with(
        self,
        responder: impl Fn(DenialReason<'_>, Denial) -> Denial + Send + Sync + 'static,
    ) -> Self {
        self.set(|limiter| limiter.deny_with(responder))
    }

    /// Puts the [`Decision`] into the extensions of responses, where middlewares outside this one
    /// can read it. If limiters are nested, it is the stricter decision.
    ///
    /// This costs three allocations for a response that has no other extensions. Handlers find the
    /// decision in the extensions of the request in any case.
    #[must_use]
    pub fn expose_decision(self) -> Self {
        self.set(HttpLimiter::expose_decision)
    }

    /// Puts the [`CountedSubject`](crate::CountedSubject) into the extensions of requests, where
    /// handlers can read it. This costs an allocation for each request.
    ///
    /// ```
    /// use actix_web::web::{self, ReqData};
    /// use rl_actix::CountedSubject;
    /// # use rl_actix::{Limit, RateLimit, RateLimiter};
    ///
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let limit = RateLimit::new(limiter).expose_subject();
    ///
    /// async fn show(counted: ReqData<CountedSubject>) -> String {
    ///     format!("You are counted by {}.", counted.0.realm().as_str())
    /// }
    /// # let _: actix_web::Route = web::get().to(show);
    /// # Ok::<(), rl_actix::BuildError>(())
    /// ```
    #[must_use]
    pub fn expose_subject(self) -> Self {
        self.set(HttpLimiter::expose_subject)
    }

    /// Returns the response to a request that a handler has denied itself. It has the form and the
    /// headers of this middleware.
    #[must_use]
    pub fn denied(&self, decision: Decision, subject: &Subject) -> Denied {
        self.limiter.denied(decision, subject).into()
    }

    /// Returns a route that answers a client what is left of its limits, in JSON:
    /// [`HttpLimiter::usage`].
    ///
    /// Create it after all settings of the middleware. Its requests are not charged, so put it
    /// outside of this middleware, or exempt its path. They cost the store a look-up, so a limit of
    /// their own does no harm.
    ///
    /// ```
    /// use actix_web::{App, web};
    /// # use rl_actix::{Limit, RateLimit, RateLimiter};
    ///
    /// # let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
    /// let limit = RateLimit::new(limiter).exempt(|request| request.path() == "/rate_limit");
    /// let app = App::new()
    ///     .route("/rate_limit", limit.usage_route())
    ///     .route("/", web::get().to(async || "hello"))
    ///     .wrap(limit);
    /// # let _ = app;
    /// # Ok::<(), rl_actix::BuildError>(())
    /// ```
    #[must_use]
    pub fn usage_route(&self) -> Route {
        let limiter = self.limiter.clone();
        web::get().service(fn_service(move |request: ServiceRequest| {
            let report = limiter.usage(&ActixRequest::new(&request));
            async move {
                let response = response::boxed(report.await);
                Ok::<_, Error>(request.into_response(response))
            }
        }))
    }

    fn set(self, change: impl FnOnce(HttpLimiter) -> HttpLimiter) -> Self {
        Self { limiter: change(self.limiter) }
    }
}

impl From<HttpLimiter> for RateLimit {
    fn from(limiter: HttpLimiter) -> Self {
        Self { limiter }
    }
}

impl<S, B> Transform<S, ServiceRequest> for RateLimit
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody,
{
    type Response = ServiceResponse<ResponseBody<B>>;
    type Error = Error;
    type Transform = RateLimitMiddleware<S>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        let limiter = self.limiter.clone();
        ready(Ok(RateLimitMiddleware { service: Rc::new(service), limiter }))
    }
}

/// A service behind a limiter, made by [`RateLimit`].
#[derive(Debug)]
pub struct RateLimitMiddleware<S> {
    // Shared with the requests that wait for a remote store.
    service: Rc<S>,
    limiter: HttpLimiter,
}

impl<S, B> Service<ServiceRequest> for RateLimitMiddleware<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody,
{
    type Response = ServiceResponse<ResponseBody<B>>;
    type Error = Error;
    type Future = ResponseFuture<S, S::Future, B>;

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let admission = {
            let extensions = request.extensions();
            self.limiter.admit(&ActixRequest::new(&request), extensions.get())
        };
        let context = match admission {
            Admission::Exempt => return ResponseFuture::exempt(self.service.call(request)),
            Admission::Rejected(denial) => {
                let response = response::from_denial(denial);
                return ResponseFuture::rejected(request.into_response(response));
            }
            Admission::Counted(context) => context,
        };
        let decision = self.limiter.decide(&ActixRequest::new(&request), &context);
        match decision {
            MaybeReady::Ready(Some(decision)) => {
                let (service, limiter) = (&*self.service, &self.limiter);
                ResponseFuture::decided(service, request, limiter, decision, &context)
            }
            pending => {
                let service = Rc::clone(&self.service);
                ResponseFuture::pending(service, request, self.limiter.clone(), pending, context)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use actix_web::HttpResponse;
    use actix_web::test::TestRequest;
    use rl_core::Limit;

    use super::*;

    async fn handler(request: ServiceRequest) -> Result<ServiceResponse, Error> {
        Ok(request.into_response(HttpResponse::Ok().content_type("text/plain").finish()))
    }

    /// Returns the number of allocations for the second request of a client.
    fn allocations<S: Service<ServiceRequest>>(service: &S) -> u64 {
        let call = || {
            let request = TestRequest::default().peer_addr(([192, 0, 2, 7], 50_000).into());
            let request = request.to_srv_request();
            let counted = allocation_counter::measure(|| {
                let future = pin!(service.call(request));
                let polled = future.poll(&mut Context::from_waker(Waker::noop()));
                assert!(polled.is_ready(), "the store is in memory");
            });
            counted.count_total
        };
        call();
        call()
    }

    fn middleware() -> RateLimit {
        let limiter = RateLimiter::builder()
            .limit(Limit::per_second(100))
            .limit(Limit::per_day(5_000))
            .build()
            .unwrap();
        RateLimit::new(limiter)
    }

    fn limited(RateLimit { limiter }: RateLimit) -> impl Service<ServiceRequest> {
        RateLimitMiddleware { service: Rc::new(fn_service(handler)), limiter }
    }

    /// The two allocations are the decision in the extensions of the request, and the table of
    /// these extensions. A server would reuse the table for the next request.
    #[test]
    fn an_allowed_request_allocates_twice() {
        let limited = limited(middleware());
        assert_eq!(allocations(&limited) - allocations(&fn_service(handler)), 2);
    }

    #[test]
    fn a_decision_in_the_response_needs_three_more_allocations() {
        let limited = limited(middleware().expose_decision());
        assert_eq!(allocations(&limited) - allocations(&fn_service(handler)), 5);
    }
}
