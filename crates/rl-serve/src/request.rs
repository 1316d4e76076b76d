//! The requests of a connection: their number, their memory, and their bodies.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use pin_project_lite::pin_project;

use crate::memory::ConnectionMemory;

/// The bytes that a header line takes beside its name and value.
const HEADER_LINE: usize = 128;

/// The requests of a connection.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// The number of requests so far.
    pub(crate) begun: AtomicUsize,
    /// The number of requests whose response is not complete.
    pub(crate) in_progress: AtomicUsize,
    pub(crate) is_http2: AtomicBool,
    /// Whether responses announce that the connection closes.
    pub(crate) is_ending: AtomicBool,
    /// The memory of the requests, if it is bounded.
    pub(crate) memory: Option<ConnectionMemory>,
}

/// A request in progress, and the memory that it takes.
#[derive(Debug)]
pub(crate) struct InProgress {
    pub(crate) activity: Arc<Activity>,
    /// The bytes that the request takes.
    bytes: AtomicUsize,
}

impl InProgress {
    pub(crate) fn new(activity: &Arc<Activity>) -> Arc<Self> {
        activity.in_progress.fetch_add(1, Ordering::AcqRel);
        activity.begun.fetch_add(1, Ordering::AcqRel);
        Arc::new(Self { activity: Arc::clone(activity), bytes: AtomicUsize::new(0) })
    }

    /// Takes the memory of the request before its body arrives. Returns whether the peer may take it.
    pub(crate) fn take_head(&self, request: &Request<Incoming>) -> bool {
        let Some(memory) = &self.activity.memory else { return true };
        let in_progress = self.activity.in_progress.load(Ordering::Acquire);
        memory.take_stream(in_progress) && self.take(size_of_head(request))
    }

    /// Takes memory. Returns whether the peer may take it.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        let is_taken = self.activity.memory.as_ref().is_none_or(|memory| memory.take(bytes));
        if is_taken {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        is_taken
    }

    /// Returns the response without a body.
    pub(crate) fn respond<B: Default>(
        self: Arc<Self>,
        status: StatusCode,
    ) -> Response<CountedBody<B>> {
        let body = CountedBody { body: B::default(), request_in_progress: self };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        response
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.activity.in_progress.fetch_sub(1, Ordering::AcqRel);
        if let Some(memory) = &self.activity.memory {
            memory.give_back(*self.bytes.get_mut());
        }
    }
}

/// Returns the bytes that a request takes before its body arrives.
fn size_of_head(request: &Request<Incoming>) -> usize {
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let headers = request.headers().iter();
    let headers =
        headers.map(|(name, value)| 2 * (name.as_str().len() + value.len()) + HEADER_LINE);
    path + headers.sum::<usize>()
}

pin_project! {
    /// The body of a request. It ends with an error if its peer may take no more memory.
    #[derive(Debug)]
    pub struct RequestBody {
        #[pin]
        body: Incoming,
        request_in_progress: Arc<InProgress>,
    }
}

impl RequestBody {
    pub(crate) const fn new(body: Incoming, request_in_progress: Arc<InProgress>) -> Self {
        Self { body, request_in_progress }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(context));
        let length = frame.iter().flatten().filter_map(Frame::data_ref).map(Bytes::len).sum();
        if this.request_in_progress.take(length) {
            return Poll::Ready(frame.map(|frame| frame.map_err(axum::Error::new)));
        }
        Poll::Ready(Some(Err(axum::Error::new("the peer has too many requests in progress"))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

pin_project! {
    /// The body of a response, whose request is in progress until it ends.
    #[derive(Debug)]
    pub(crate) struct CountedBody<B> {
        #[pin]
        body: B,
        request_in_progress: Arc<InProgress>,
    }
}

impl<B> CountedBody<B> {
    pub(crate) const fn new(body: B, request_in_progress: Arc<InProgress>) -> Self {
        Self { body, request_in_progress }
    }
}

impl<B: Body> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Poll::Ready(ready!(self.project().body.poll_frame(context)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
