//! One connection: its requests, and its end.

use std::convert::Infallible;
use std::future::{self, pending};
use std::net::SocketAddr;
use std::pin::Pin;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::ConnectInfo;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::timeout;
use tokio_io_timeout::TimeoutWriter;

use crate::limits::{Protocol, Timeouts, pause};
use crate::memory::ConnectionMemory;
use crate::request::{Activity, CountedBody, InProgress, RequestBody};
use crate::service::HttpService;
use crate::shares::{PeerShares, Share};
#[cfg(feature = "tls")]
use crate::tls::Tls;

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
        let mut request = request.map(|body| RequestBody::new(body, in_body));
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
            Ok(response.map(|body| CountedBody::new(body, request_in_progress)))
        })
    }
}
