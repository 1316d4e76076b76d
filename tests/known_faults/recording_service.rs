//! An inner service that counts its calls and panics if called before it is ready.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::Service;

/// A service that takes tower's contract by the letter: an instance is ready only once it was polled,
/// its clones are not, and a call to one that is not ready is a panic.
#[derive(Debug, Default)]
pub(super) struct RecordingService {
    is_ready: bool,
    called: Arc<AtomicUsize>,
}

impl RecordingService {
    /// How often it was called, counted over all clones.
    pub(super) fn calls(&self) -> impl Fn() -> usize + use<> {
        let called = Arc::clone(&self.called);
        move || called.load(Ordering::SeqCst)
    }
}

impl Clone for RecordingService {
    fn clone(&self) -> Self {
        Self { is_ready: false, called: Arc::clone(&self.called) }
    }
}

impl<B> Service<Request<B>> for RecordingService {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called without having been ready");
        self.called.fetch_add(1, Ordering::SeqCst);
        ready(Ok(Response::new(Full::from("called"))))
    }
}
