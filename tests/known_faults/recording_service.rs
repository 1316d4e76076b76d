//! An inner service that counts its calls, and panics if it is called before it is ready.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::Service;

/// A service that enforces tower's contract. An instance is ready only after it was polled, and its
/// clones are not ready. A call to an instance that is not ready panics.
#[derive(Debug, Default)]
pub(super) struct RecordingService {
    is_ready: bool,
    called: Arc<AtomicUsize>,
}

impl RecordingService {
    /// Returns a function that returns the number of calls to all clones.
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
