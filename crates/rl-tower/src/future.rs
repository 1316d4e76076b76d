use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use rl_core::adapter::{CountedRequest, HttpLimiter, RequestContext};
use rl_core::{Decision, MaybeReady};
use tower_service::Service;

use crate::request::HttpExtensions;
use crate::response::{self, HttpResponse, ResponseBody};

pin_project! {
    /// Response future of [`RateLimit`](crate::RateLimit).
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, F, ReqBody, ResBody> {
        #[pin]
        state: State<S, F, ReqBody, ResBody>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, F, ReqBody, ResBody> {
        // Waits for the decision: a remote store, a policy look-up or a wait queue. The box keeps
        // the future small for users of the memory store.
        Pending { pending: Option<Box<Pending<S, ReqBody>>> },
        // Waits for the inner service.
        Calling { #[pin] future: F, counted: Option<CountedRequest> },
        // Holds the response to a rejected request.
        Rejected { response: Option<Response<ResponseBody<ResBody>>> },
    }
}

/// A request that waits for its decision.
struct Pending<S, ReqBody> {
    decision: MaybeReady<Decision>,
    // The instance of the inner service that was ready when the request arrived.
    inner: S,
    request: Request<ReqBody>,
    limiter: HttpLimiter,
    context: RequestContext,
}

impl<S, F, ReqBody, ResBody> ResponseFuture<S, F, ReqBody, ResBody> {
    pub(crate) const fn exempt(future: F) -> Self {
        Self { state: State::Calling { future, counted: None } }
    }

    pub(crate) const fn rejected(response: Response<ResponseBody<ResBody>>) -> Self {
        Self { state: State::Rejected { response: Some(response) } }
    }

    pub(crate) fn pending(
        inner: S,
        request: Request<ReqBody>,
        limiter: HttpLimiter,
        decision: MaybeReady<Decision>,
        context: RequestContext,
    ) -> Self {
        let pending = Box::new(Pending { decision, inner, request, limiter, context });
        Self { state: State::Pending { pending: Some(pending) } }
    }

    pub(crate) fn decided(
        inner: &mut S,
        mut request: Request<ReqBody>,
        limiter: &HttpLimiter,
        decision: Decision,
        context: &RequestContext,
    ) -> Self
    where
        S: Service<Request<ReqBody>, Future = F>,
    {
        let mut extensions = HttpExtensions(request.extensions_mut());
        let (counted, denial) = limiter.apply(decision, context, &mut extensions);
        let Some(denial) = denial else {
            let future = inner.call(request);
            return Self { state: State::Calling { future, counted: Some(counted) } };
        };
        let mut response = response::from_denial(denial);
        counted.finish(&mut HttpResponse(&mut response));
        Self::rejected(response)
    }
}

impl<S, F, ReqBody, ResBody, E> Future for ResponseFuture<S, F, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>, Future = F>,
    F: Future<Output = Result<Response<ResBody>, E>>,
    ResBody: Body,
{
    type Output = Result<Response<ResponseBody<ResBody>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProj::Pending { pending } => {
                    let waiting = pending.as_mut().expect("polled after completion");
                    let decision = ready!(Pin::new(&mut waiting.decision).poll(cx));
                    let pending = pending.take().expect("polled above");
                    let Pending { mut inner, request, limiter, context, .. } = *pending;
                    let next = Self::decided(&mut inner, request, &limiter, decision, &context);
                    this.state.set(next.state);
                }
                StateProj::Calling { future, counted } => {
                    let result = ready!(future.poll(cx));
                    // If the service failed, no body holds the permit, and it is released now.
                    let counted = counted.take();
                    return Poll::Ready(result.map(|mut response| {
                        let permit = counted
                            .and_then(|counted| counted.finish(&mut HttpResponse(&mut response)));
                        response.map(|body| ResponseBody::inner(body, permit))
                    }));
                }
                StateProj::Rejected { response } => {
                    let response = response.take().expect("polled after completion");
                    return Poll::Ready(Ok(response));
                }
            }
        }
    }
}

impl<S, F, ReqBody, ResBody> fmt::Debug for ResponseFuture<S, F, ReqBody, ResBody> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Pending { .. } => "ResponseFuture::Pending",
            State::Calling { .. } => "ResponseFuture::Calling",
            State::Rejected { .. } => "ResponseFuture::Rejected",
        })
    }
}
