use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Request;
use pin_project_lite::pin_project;
use rl_core::Decision;
use tower_layer::Layer;
use tower_service::Service;

/// Sends requests that are [degraded](Decision::is_degraded) to another service.
///
/// It stands inside of a limiter that degrades, in front of the service that is to be spared.
///
/// ```
/// use axum::{Router, routing::get};
/// use rl_core::gate::OverLimit;
/// use rl_tower::{DegradeLayer, Gate, Limit, RateLimitLayer, RateLimiter};
///
/// let limiter = RateLimiter::builder().limit(Limit::per_second(10)).build()?;
/// let cached: Router = Router::new().fallback(async || "what we knew an hour ago");
/// let app: Router = Router::new()
///     .route("/", get(async || "computed for you"))
///     .layer(DegradeLayer::to(cached))
///     .layer(RateLimitLayer::new(Gate::new(limiter).over_limit(OverLimit::Degrade)));
/// # Ok::<(), rl_core::limiter::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DegradeLayer<F> {
    fallback: F,
}

impl<F> DegradeLayer<F> {
    /// A layer that sends them to `fallback`.
    pub const fn to(fallback: F) -> Self {
        Self { fallback }
    }
}

impl<S, F: Clone> Layer<S> for DegradeLayer<F> {
    type Service = Degrade<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        Degrade { inner, fallback: self.fallback.clone() }
    }
}

/// A service with another one for degraded requests, made by [`DegradeLayer`].
///
/// It is ready when both are, because which of them is called is not known before.
#[derive(Clone, Copy, Debug)]
pub struct Degrade<S, F> {
    inner: S,
    fallback: F,
}

impl<S, F, B> Service<Request<B>> for Degrade<S, F>
where
    S: Service<Request<B>>,
    F: Service<Request<B>, Response = S::Response, Error = S::Error>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = DegradeFuture<S::Future, F::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        ready!(self.inner.poll_ready(cx))?;
        self.fallback.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let is_degraded = request.extensions().get().is_some_and(Decision::is_degraded);
        let answer = if is_degraded {
            Answer::Degraded { answer: self.fallback.call(request) }
        } else {
            Answer::Full { answer: self.inner.call(request) }
        };
        DegradeFuture { answer }
    }
}

pin_project! {
    /// Response future of [`Degrade`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct DegradeFuture<S, F> {
        #[pin]
        answer: Answer<S, F>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = AnswerProj]
    enum Answer<S, F> {
        Full { #[pin] answer: S },
        Degraded { #[pin] answer: F },
    }
}

impl<S: Future, F: Future<Output = S::Output>> Future for DegradeFuture<S, F> {
    type Output = S::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<S::Output> {
        match self.project().answer.project() {
            AnswerProj::Full { answer } => answer.poll(cx),
            AnswerProj::Degraded { answer } => answer.poll(cx),
        }
    }
}
