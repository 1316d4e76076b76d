use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::requested_pause::{is_rejection, requested_pause};
use super::settings::Settings;
use super::throttled::{BoxError, Throttled};
use crate::response::ResponseBody;

/// Response future of [`Throttle`].
pub type ThrottleFuture<R> = Pin<Box<dyn Future<Output = Result<R, BoxError>> + Send>>;

/// A client whose calls are paced, made by [`ThrottleLayer`](super::ThrottleLayer).
#[derive(Clone, Debug)]
pub struct Throttle<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> Throttle<S> {
    pub(super) const fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }

    /// Returns the client.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Throttle<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    ReqBody: Body + Send + 'static,
    ResBody: Body<Data: From<Vec<u8>>>,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = BoxError;
    type Future = ThrottleFuture<Self::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // This instance is ready, but its clone may not be. A call that is not sent drops the ready
        // instance, and with it what it holds.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let settings = Arc::clone(&self.settings);
        let (subject, cost) = settings.counted(&request);
        Box::pin(async move {
            let Settings { limiter, clock, .. } = &*settings;
            let adaptive = settings.adaptive.as_deref();
            if adaptive.is_some_and(|adaptive| adaptive.rejects(&subject, clock.now())) {
                return Err(Throttled::Adaptive.into_error(&request));
            }
            let waiting = limiter.request(&subject).cost(cost);
            let permit = waiting.wait(settings.at_most, settings.queue).acquire().await;
            if !permit.decision().is_allowed() {
                let throttled = Throttled::new(permit.decision(), settings.at_most);
                return Err(throttled.into_error(&request));
            }
            let called = inner.call(request).await.map_err(Into::into);
            let is_accepted = called.as_ref().is_ok_and(|response| !is_rejection(response));
            if let Some(adaptive) = adaptive {
                adaptive.record(&subject, is_accepted, clock.now());
            }
            let response = called?;
            if let Some(pause) = requested_pause(&response, clock.now()) {
                limiter.pause(&subject, pause.min(settings.max_pause));
            }
            Ok(response.map(|body| ResponseBody::inner(body, Some(permit))))
        })
    }
}
