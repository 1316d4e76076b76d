use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Request;
use pin_project_lite::pin_project;
use rl_core::Decision;
use tower_layer::Layer;
use tower_service::Service;

/// Sends [degraded](Decision::is_degraded) requests to another service.
///
/// Put the layer in front of the service to protect, inside a limiter that degrades requests.
///
/// ```
/// use axum::{Router, routing::get};
/// use rl_tower::{DegradeLayer, Limit, OverLimit, RateLimitLayer, RateLimiter};
///
/// let limiter = RateLimiter::builder().limit(Limit::per_second(10)).build()?;
/// let cached: Router = Router::new().fallback(async || "from the cache");
/// let app: Router = Router::new()
///     .route("/", get(async || "computed"))
///     .layer(DegradeLayer::new(cached))
///     .layer(RateLimitLayer::new(limiter).on_over_limit(OverLimit::Degrade));
/// # Ok::<(), rl_tower::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DegradeLayer<F> {
    fallback: F,
}

impl<F> DegradeLayer<F> {
    /// Creates a layer that sends degraded requests to `fallback`.
    pub const fn new(fallback: F) -> Self {
        Self { fallback }
    }
}

impl<S, F: Clone> Layer<S> for DegradeLayer<F> {
    type Service = Degrade<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        Degrade { inner, fallback: self.fallback.clone() }
    }
}

/// A service with a second service for degraded requests, made by [`DegradeLayer`].
///
/// It is ready when both services are ready, because the decision is not known before the call.
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
        let state = if is_degraded {
            State::Fallback { future: self.fallback.call(request) }
        } else {
            State::Inner { future: self.inner.call(request) }
        };
        DegradeFuture { state }
    }
}

pin_project! {
    /// Response future of [`Degrade`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct DegradeFuture<S, F> {
        #[pin]
        state: State<S, F>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = StateProj]
    enum State<S, F> {
        Inner { #[pin] future: S },
        Fallback { #[pin] future: F },
    }
}

impl<S: Future, F: Future<Output = S::Output>> Future for DegradeFuture<S, F> {
    type Output = S::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<S::Output> {
        match self.project().state.project() {
            StateProj::Inner { future } => future.poll(cx),
            StateProj::Fallback { future } => future.poll(cx),
        }
    }
}
