use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use actix_web::body::MessageBody;
use actix_web::dev::{Service, ServiceRequest, ServiceResponse};
use actix_web::{Error, HttpMessage};
use pin_project_lite::pin_project;
use rl_core::adapter::{CountedRequest, HttpLimiter, RequestContext};
use rl_core::{Decision, MaybeReady};

use crate::request::ActixExtensions;
use crate::response::{self, ActixResponse, ResponseBody};

pin_project! {
    /// Response future of [`RateLimitMiddleware`](crate::RateLimitMiddleware).
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, F, B> {
        #[pin]
        state: State<S, F, B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, F, B> {
        // Waits for the decision: a remote store, a policy look-up or a wait queue. The box keeps
        // the future small for users of the memory store.
        Pending { pending: Option<Box<Pending<S>>> },
        // Waits for the inner service.
        Calling { #[pin] future: F, counted: Option<CountedRequest> },
        // Holds the response to a rejected request.
        Rejected { response: Option<ServiceResponse<ResponseBody<B>>> },
    }
}

/// A request that waits for its decision.
struct Pending<S> {
    decision: MaybeReady<Decision>,
    service: Rc<S>,
    request: ServiceRequest,
    limiter: HttpLimiter,
    context: RequestContext,
}

impl<S, F, B> ResponseFuture<S, F, B> {
    pub(crate) const fn exempt(future: F) -> Self {
        Self { state: State::Calling { future, counted: None } }
    }

    pub(crate) const fn rejected(response: ServiceResponse<ResponseBody<B>>) -> Self {
        Self { state: State::Rejected { response: Some(response) } }
    }

    pub(crate) fn pending(
        service: Rc<S>,
        request: ServiceRequest,
        limiter: HttpLimiter,
        decision: MaybeReady<Decision>,
        context: RequestContext,
    ) -> Self {
        let pending = Box::new(Pending { decision, service, request, limiter, context });
        Self { state: State::Pending { pending: Some(pending) } }
    }

    pub(crate) fn decided(
        service: &S,
        request: ServiceRequest,
        limiter: &HttpLimiter,
        decision: Decision,
        context: &RequestContext,
    ) -> Self
    where
        S: Service<ServiceRequest, Future = F>,
    {
        let mut extensions = ActixExtensions(request.extensions_mut());
        let (counted, denial) = limiter.apply(decision, context, &mut extensions);
        drop(extensions);
        let Some(denial) = denial else {
            let future = service.call(request);
            return Self { state: State::Calling { future, counted: Some(counted) } };
        };
        let mut response = response::from_denial(denial);
        counted.finish(&mut ActixResponse(&mut response));
        Self::rejected(request.into_response(response))
    }
}

impl<S, F, B> Future for ResponseFuture<S, F, B>
where
    S: Service<ServiceRequest, Future = F>,
    F: Future<Output = Result<ServiceResponse<B>, Error>>,
    B: MessageBody,
{
    type Output = Result<ServiceResponse<ResponseBody<B>>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProj::Pending { pending } => {
                    let waiting = pending.as_mut().expect("polled after completion");
                    let decision = ready!(Pin::new(&mut waiting.decision).poll(cx));
                    let pending = pending.take().expect("polled above");
                    let Pending { service, request, limiter, context, .. } = *pending;
                    let next = Self::decided(&*service, request, &limiter, decision, &context);
                    this.state.set(next.state);
                }
                StateProj::Calling { future, counted } => {
                    let result = ready!(future.poll(cx));
                    let counted = counted.take();
                    return Poll::Ready(match result {
                        Ok(mut response) => {
                            let permit = counted.and_then(|counted| {
                                counted.finish(&mut ActixResponse(response.response_mut()))
                            });
                            Ok(response.map_body(|_, body| ResponseBody::inner(body, permit)))
                        }
                        // actix-web makes the response of an error outside of all middleware. The
                        // final cost depends on it. No body holds the permit: it is released now.
                        Err(error) => {
                            if let Some(counted) = counted {
                                counted.finish(&mut ActixResponse(&mut error.error_response()));
                            }
                            Err(error)
                        }
                    });
                }
                StateProj::Rejected { response } => {
                    let response = response.take().expect("polled after completion");
                    return Poll::Ready(Ok(response));
                }
            }
        }
    }
}

impl<S, F, B> fmt::Debug for ResponseFuture<S, F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Pending { .. } => "ResponseFuture::Pending",
            State::Calling { .. } => "ResponseFuture::Calling",
            State::Rejected { .. } => "ResponseFuture::Rejected",
        })
    }
}
