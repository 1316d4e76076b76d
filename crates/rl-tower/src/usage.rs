use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use rl_core::MaybeReady;
use rl_core::adapter::HttpLimiter;
use rl_core::denial::Denial;
use tower_service::Service;

use crate::request::HttpRequest;
use crate::response;

/// A service that answers a client what is left of its limits, made by
/// [`RateLimitLayer::usage_service`](crate::RateLimitLayer::usage_service).
#[derive(Clone, Debug)]
pub struct UsageService {
    limiter: HttpLimiter,
}

impl UsageService {
    pub(crate) const fn new(limiter: HttpLimiter) -> Self {
        Self { limiter }
    }
}

impl<B: Body + 'static> Service<Request<B>> for UsageService {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = UsageFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> UsageFuture {
        UsageFuture { report: self.limiter.usage(&HttpRequest(&request)) }
    }
}

/// Response future of [`UsageService`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct UsageFuture {
    report: MaybeReady<Denial>,
}

impl Future for UsageFuture {
    type Output = Result<Response<String>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let report = Pin::new(&mut self.report).poll(cx);
        report.map(|report| Ok(response::with_body(report, |body| body.into_owned())))
    }
}
