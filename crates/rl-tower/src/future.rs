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
    ///
    /// Its fields are options and not the variants of an enum. The compiler copies the future of the
    /// inner service once into a field, and would copy it twice into a variant.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, F, ReqBody, ResBody> {
        // The call of the inner service.
        #[pin]
        calling: Option<F>,
        // The request of this call, if it is counted.
        counted: Option<CountedRequest>,
        // Waits for the decision: a remote store, a policy look-up or a wait queue. The box keeps
        // the future small for users of the memory store.
        pending: Option<Box<Pending<S, ReqBody>>>,
        // The response to a rejected request.
        rejected: Option<Response<ResponseBody<ResBody>>>,
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
    /// Creates the future of a request that the inner service handles. The request is `counted`
    /// unless it is exempt.
    pub(crate) const fn calling(future: F, counted: Option<CountedRequest>) -> Self {
        Self { calling: Some(future), counted, pending: None, rejected: None }
    }

    pub(crate) const fn rejected(response: Response<ResponseBody<ResBody>>) -> Self {
        Self { calling: None, counted: None, pending: None, rejected: Some(response) }
    }

    pub(crate) fn pending(
        inner: S,
        request: Request<ReqBody>,
        limiter: HttpLimiter,
        decision: MaybeReady<Decision>,
        context: RequestContext,
    ) -> Self {
        let pending = Box::new(Pending { decision, inner, request, limiter, context });
        Self { calling: None, counted: None, pending: Some(pending), rejected: None }
    }
}

impl<S, F, ReqBody, ResBody, E> Future for ResponseFuture<S, F, ReqBody, ResBody>
where
    S: Service<Request<ReqBody>, Future = F>,
    F: Future<Output = Result<Response<ResBody>, E>>,
    ResBody: Body,
{
    type Output = Result<Response<ResponseBody<ResBody>>, E>;

    // Otherwise its caller copies the response once more.
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let pending = self.as_mut().project().pending;
        if let Some(waiting) = pending {
            let decision = ready!(Pin::new(&mut waiting.decision).poll(cx));
            let pending = pending.take().expect("polled above");
            let Pending { mut inner, mut request, limiter, context, .. } = *pending;
            let mut extensions = HttpExtensions(request.extensions_mut());
            let next = match limiter.apply(decision, &context, &mut extensions) {
                (counted, None) => Self::calling(inner.call(request), Some(counted)),
                (counted, Some(denial)) => Self::rejected(response::denied(counted, denial)),
            };
            self.set(next);
        }
        let this = self.project();
        let Some(future) = this.calling.as_pin_mut() else {
            let response = this.rejected.take().expect("polled after completion");
            return Poll::Ready(Ok(response));
        };
        let mut response = match ready!(future.poll(cx)) {
            Ok(response) => response,
            Err(error) => {
                // No body will hold the permit, so it is released now.
                *this.counted = None;
                return Poll::Ready(Err(error));
            }
        };
        let counted = this.counted.take();
        let permit = counted.and_then(|counted| counted.finish(&mut HttpResponse(&mut response)));
        Poll::Ready(Ok(response.map(|body| ResponseBody::inner(body, permit))))
    }
}

impl<S, F, ReqBody, ResBody> fmt::Debug for ResponseFuture<S, F, ReqBody, ResBody> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (&self.pending, &self.calling) {
            (Some(_), _) => "ResponseFuture::Pending",
            (None, Some(_)) => "ResponseFuture::Calling",
            (None, None) => "ResponseFuture::Rejected",
        })
    }
}
