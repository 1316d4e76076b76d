use std::fmt;
use std::future::{Ready, ready};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{Payload, Service, ServiceRequest, ServiceResponse, Transform};
use actix_web::{Error, FromRequest, Handler, HttpMessage, HttpRequest, Responder};
use rl_core::Decision;

/// Sends [degraded](Decision::is_degraded) requests to another handler.
///
/// Wrap the service in this middleware, and both in a limiter that degrades requests.
///
/// ```
/// use actix_web::{App, web};
/// use rl_actix::{Degrade, Limit, OverLimit, RateLimit, RateLimiter};
///
/// let limiter = RateLimiter::builder().limit(Limit::per_second(10)).build()?;
/// let app = App::new()
///     .route("/", web::get().to(async || "computed"))
///     .wrap(Degrade::new(async || "from the cache"))
///     .wrap(RateLimit::new(limiter).on_over_limit(OverLimit::Degrade));
/// # Ok::<(), rl_actix::BuildError>(())
/// ```
pub struct Degrade<H, A> {
    handler: H,
    arguments: PhantomData<fn(A)>,
}

impl<H, A> Degrade<H, A>
where
    H: Handler<A>,
    H::Output: Responder,
    A: FromRequest,
{
    /// Creates a middleware that sends degraded requests to `handler`. Any handler that a route
    /// accepts can be used.
    pub const fn new(handler: H) -> Self {
        Self { handler, arguments: PhantomData }
    }
}

impl<S, B, H, A> Transform<S, ServiceRequest> for Degrade<H, A>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody,
    H: Handler<A>,
    H::Output: Responder,
    A: FromRequest + 'static,
{
    type Response = ServiceResponse<EitherBody<B>>;
    type Error = Error;
    type Transform = DegradeMiddleware<S, H, A>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        ready(Ok(DegradeMiddleware { service, degrade: self.clone() }))
    }
}

/// A service with a separate handler for degraded requests, made by [`Degrade`].
pub struct DegradeMiddleware<S, H, A> {
    service: S,
    degrade: Degrade<H, A>,
}

impl<S, B, H, A> Service<ServiceRequest> for DegradeMiddleware<S, H, A>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody,
    H: Handler<A>,
    H::Output: Responder,
    A: FromRequest + 'static,
{
    type Response = ServiceResponse<EitherBody<B>>;
    type Error = Error;
    // Boxed, because the type of an `async` block has no name.
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>>>>;

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let is_degraded = request.extensions().get().is_some_and(Decision::is_degraded);
        if !is_degraded {
            let response = self.service.call(request);
            return Box::pin(async move { Ok(response.await?.map_into_left_body()) });
        }
        let handler = self.degrade.handler.clone();
        Box::pin(async move {
            let (request, mut payload) = request.into_parts();
            let response = call_handler::<H, A>(&handler, &request, &mut payload).await?;
            Ok(ServiceResponse::new(request, response).map_into_right_body())
        })
    }
}

/// Calls the handler.
async fn call_handler<H, A>(
    handler: &H,
    request: &HttpRequest,
    payload: &mut Payload,
) -> Result<actix_web::HttpResponse, Error>
where
    H: Handler<A>,
    H::Output: Responder,
    A: FromRequest,
{
    let arguments = A::from_request(request, payload).await.map_err(Into::into)?;
    Ok(handler.call(arguments).await.respond_to(request).map_into_boxed_body())
}

// Not derived, because a derive would require the arguments of the handler to be `Clone`.
impl<H: Clone, A> Clone for Degrade<H, A> {
    fn clone(&self) -> Self {
        Self { handler: self.handler.clone(), arguments: PhantomData }
    }
}

impl<H, A> fmt::Debug for Degrade<H, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Degrade").finish_non_exhaustive()
    }
}

impl<S: fmt::Debug, H, A> fmt::Debug for DegradeMiddleware<S, H, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DegradeMiddleware").field("service", &self.service).finish_non_exhaustive()
    }
}
