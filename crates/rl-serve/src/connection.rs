//! One connection: its requests, and its end.

use std::convert::Infallible;
use std::future::{self, pending};
use std::net::SocketAddr;
use std::pin::Pin;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ConnectInfo;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutWriter;

use crate::limits::{Protocol, Timeouts, pause};
use crate::memory::ConnectionMemory;
use crate::service::HttpService;
use crate::shares::{PeerShares, Share};
#[cfg(feature = "tls")]
use crate::tls::Tls;

/// The bytes that a header line takes beside its name and value.
const HEADER_LINE: usize = 128;

/// The state that the connections of a server share.
#[derive(Debug)]
pub(crate) struct Connections<S> {
    pub(crate) app: S,
    pub(crate) builder: auto::Builder<TokioExecutor>,
    pub(crate) protocol: Protocol,
    pub(crate) timeouts: Timeouts,
    /// The bytes that the requests of peers share.
    pub(crate) memory: Option<PeerShares>,
    pub(crate) max_age: Option<Duration>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
    /// Whether responses announce that their connection closes.
    pub(crate) is_stopping: AtomicBool,
    /// Becomes true when idle connections close.
    pub(crate) closing: watch::Receiver<bool>,
}

/// A connection that was accepted.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    /// Its slot under the maximum number of connections; `None` if it came from the backlog of a
    /// server that stops.
    pub(crate) slot: Option<OwnedSemaphorePermit>,
    /// Its share of the connections, if peers share them.
    pub(crate) share: Option<Share>,
}

impl<S: HttpService> Connections<S> {
    /// Serves the requests of a connection until it ends.
    pub(crate) async fn serve(self: Arc<Self>, accepted: Accepted) {
        let Accepted { stream, peer, slot: _slot, share: _share } = accepted;
        // Small responses must not wait for the acknowledgement of earlier ones.
        let _ = stream.set_nodelay(true);
        // hyper has no time limit for a client that reads nothing.
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(self.timeouts.unread));
        let stream = Box::pin(stream);
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let handshake = tls.accept(stream, self.protocol);
            if let Ok(Ok(stream)) = timeout(self.timeouts.head, handshake).await {
                self.serve_requests(stream, peer).await;
            }
            return;
        }
        self.serve_requests(stream, peer).await;
    }

    async fn serve_requests<IO>(self: Arc<Self>, stream: IO, peer: SocketAddr)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let memory = match self.memory.as_ref().map(|memory| memory.take(Some(peer.ip()), 0)) {
            Some(None) => return,
            share => share.flatten().map(ConnectionMemory::new),
        };
        let activity = Arc::new(Activity { memory, ..Activity::default() });
        let (connections, of_service) = (Arc::clone(&self), Arc::clone(&activity));
        let service = ConnectionService { connections, peer, activity: of_service };
        let connection = self.builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let mut closing = self.closing.clone();
        // The server always closes a connection before it drops the sender.
        let closing = async move { drop(closing.wait_for(|is_closing| *is_closing).await) };
        tokio::select! {
            biased;
            _ = connection.as_mut() => return,
            () = closing => {}
            () = self.too_old(&activity) => {}
            () = self.too_long_idle(&activity) => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = timeout(self.timeouts.drain, connection).await;
    }

    /// Waits until the connection has its maximum age, and has then announced its end for
    /// [`Timeouts::notice`].
    async fn too_old(&self, activity: &Activity) {
        let Some(max) = self.max_age else { return pending().await };
        // Clients that connected at the same time must not reconnect at the same time.
        pause(max.mul_f64(1.0 - fastrand::f64() / 10.0)).await;
        activity.is_ending.store(true, Ordering::Relaxed);
        pause(self.timeouts.notice).await;
    }

    /// Waits until the connection has been idle for too long.
    ///
    /// hyper has time limits for heads and idle connections over HTTP/1 only. It has none over HTTP/2,
    /// and none for the first bytes of a connection, from which it finds the version.
    async fn too_long_idle(&self, activity: &Activity) {
        let mut seen = 0;
        loop {
            pause(self.timeouts.head).await;
            let begun = activity.begun.load(Ordering::Acquire);
            let is_idle = begun == seen && activity.in_progress.load(Ordering::Acquire) == 0;
            if is_idle && (begun == 0 || activity.is_http2.load(Ordering::Relaxed)) {
                return;
            }
            seen = begun;
        }
    }
}

/// The requests of a connection.
#[derive(Debug, Default)]
struct Activity {
    /// The number of requests so far.
    begun: AtomicUsize,
    /// The number of requests whose response is not complete.
    in_progress: AtomicUsize,
    is_http2: AtomicBool,
    /// Whether responses announce that the connection closes.
    is_ending: AtomicBool,
    /// The memory of the requests, if it is bounded.
    memory: Option<ConnectionMemory>,
}

/// A request in progress, and the memory that it takes.
#[derive(Debug)]
struct InProgress {
    activity: Arc<Activity>,
    /// The bytes that the request takes.
    bytes: AtomicUsize,
}

impl InProgress {
    fn new(activity: &Arc<Activity>) -> Arc<Self> {
        activity.in_progress.fetch_add(1, Ordering::AcqRel);
        activity.begun.fetch_add(1, Ordering::AcqRel);
        Arc::new(Self { activity: Arc::clone(activity), bytes: AtomicUsize::new(0) })
    }

    /// Takes the memory of the request before its body arrives. Returns whether the peer may take it.
    fn take_head(&self, request: &Request<Incoming>) -> bool {
        let Some(memory) = &self.activity.memory else { return true };
        let in_progress = self.activity.in_progress.load(Ordering::Acquire);
        memory.take_stream(in_progress) && self.take(size_of_head(request))
    }

    /// Takes memory. Returns whether the peer may take it.
    fn take(&self, bytes: usize) -> bool {
        let is_taken = self.activity.memory.as_ref().is_none_or(|memory| memory.take(bytes));
        if is_taken {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        is_taken
    }

    /// Returns the response without a body.
    fn respond<B: Default>(self: Arc<Self>, status: StatusCode) -> Response<CountedBody<B>> {
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

/// Passes the requests of a connection to the service.
#[derive(Debug)]
struct ConnectionService<S> {
    connections: Arc<Connections<S>>,
    peer: SocketAddr,
    activity: Arc<Activity>,
}

impl<S: HttpService> Service<Request<Incoming>> for ConnectionService<S> {
    type Response = Response<CountedBody<S::Body>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let request_in_progress = InProgress::new(&self.activity);
        let is_http2 = request.version() == Version::HTTP_2;
        // hyper reads both versions if it handles upgrades.
        let is_other_version = match self.connections.protocol {
            Protocol::Http1 => is_http2,
            Protocol::Http2 => !is_http2,
            Protocol::Both => false,
        };
        if is_other_version {
            let response = request_in_progress.respond(StatusCode::HTTP_VERSION_NOT_SUPPORTED);
            return Box::pin(future::ready(Ok(response)));
        }
        if is_http2 {
            self.activity.is_http2.store(true, Ordering::Relaxed);
        }
        if !request_in_progress.take_head(&request) {
            let response = request_in_progress.respond(StatusCode::SERVICE_UNAVAILABLE);
            return Box::pin(future::ready(Ok(response)));
        }
        let in_body = Arc::clone(&request_in_progress);
        let mut request = request.map(|body| RequestBody { body, request_in_progress: in_body });
        request.extensions_mut().insert(ConnectInfo(self.peer));
        let connections = Arc::clone(&self.connections);
        let response = connections.app.clone().call(request);
        Box::pin(async move {
            // A timer starts only if the response is not ready at once.
            let Ok(response) = timeout(connections.timeouts.request, response).await else {
                return Ok(request_in_progress.respond(StatusCode::REQUEST_TIMEOUT));
            };
            let mut response = response?;
            let is_ending = connections.is_stopping.load(Ordering::Relaxed)
                || request_in_progress.activity.is_ending.load(Ordering::Relaxed);
            // A client may leave the response unread.
            let length = response.body().size_hint().exact().unwrap_or(0);
            if !request_in_progress.take(usize::try_from(length).unwrap_or(usize::MAX)) {
                return Ok(request_in_progress.respond(StatusCode::SERVICE_UNAVAILABLE));
            }
            // HTTP/2 has no such header.
            if is_ending && !is_http2 {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response.map(|body| CountedBody { body, request_in_progress }))
        })
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
    struct CountedBody<B> {
        #[pin]
        body: B,
        request_in_progress: Arc<InProgress>,
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
