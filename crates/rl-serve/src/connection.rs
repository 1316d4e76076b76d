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

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body::{Frame, SizeHint};
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
use tower_service::Service as _;

use crate::limits::{Protocol, Timeouts, pause};
use crate::shares::Share;
#[cfg(feature = "tls")]
use crate::tls::Tls;

/// The state that the connections of a server share.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) app: Router,
    pub(crate) builder: auto::Builder<TokioExecutor>,
    pub(crate) protocol: Protocol,
    pub(crate) timeouts: Timeouts,
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

impl Connections {
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

    async fn serve_requests<S>(self: Arc<Self>, stream: S, peer: SocketAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = Arc::new(Activity::default());
        let service = ConnectionService {
            connections: Arc::clone(&self),
            peer,
            activity: Arc::clone(&activity),
        };
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
}

/// A request in progress.
#[derive(Debug)]
struct InProgress(Arc<Activity>);

impl InProgress {
    fn new(activity: &Arc<Activity>) -> Self {
        activity.in_progress.fetch_add(1, Ordering::AcqRel);
        activity.begun.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(activity))
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Passes the requests of a connection to the router.
#[derive(Debug)]
struct ConnectionService {
    connections: Arc<Connections>,
    peer: SocketAddr,
    activity: Arc<Activity>,
}

impl Service<Request<Incoming>> for ConnectionService {
    type Response = Response<CountedBody>;
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
            let mut response =
                Response::new(CountedBody { body: Body::empty(), request_in_progress });
            *response.status_mut() = StatusCode::HTTP_VERSION_NOT_SUPPORTED;
            return Box::pin(future::ready(Ok(response)));
        }
        if is_http2 {
            self.activity.is_http2.store(true, Ordering::Relaxed);
        }
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(self.peer));
        let connections = Arc::clone(&self.connections);
        let response = connections.app.clone().call(request);
        Box::pin(async move {
            let mut response = response.await?;
            let is_ending = connections.is_stopping.load(Ordering::Relaxed)
                || request_in_progress.0.is_ending.load(Ordering::Relaxed);
            // HTTP/2 has no such header.
            if is_ending && !is_http2 {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response.map(|body| CountedBody { body, request_in_progress }))
        })
    }
}

pin_project! {
    /// The body of a response, whose request is in progress until it ends.
    #[derive(Debug)]
    struct CountedBody {
        #[pin]
        body: Body,
        request_in_progress: InProgress,
    }
}

impl http_body::Body for CountedBody {
    type Data = <Body as http_body::Body>::Data;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Poll::Ready(ready!(self.project().body.poll_frame(context)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
