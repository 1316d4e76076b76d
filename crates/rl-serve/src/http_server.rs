//! A server: its settings, the loop that accepts connections, and the shutdown.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::connection::{Accepted, Connections};
use crate::limits::{Protocol, Timeouts, pause};
use crate::service::HttpService;
use crate::shares::PeerShares;
use crate::shutdown::Shutdown;
#[cfg(feature = "tls")]
use crate::tls::Tls;

/// The maximum length of the head of a request, in bytes.
const MAX_HEAD: u32 = 64 * 1024;
/// The maximum number of header lines over HTTP/1. Gateways add some to those of their clients.
const MAX_HEADERS: usize = 512;
/// The maximum number of connections that are accepted from the backlog when the server stops. Linux
/// has the same default maximum for a backlog.
const MAX_BACKLOG: usize = 4_096;
/// The time after which a server without free file descriptors accepts connections again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves an axum `Router`, or another [`HttpService`].
///
/// # Examples
///
/// Two servers, which stop together:
///
/// ```no_run
/// # async fn example(public: axum::Router, internal: axum::Router) -> std::io::Result<()> {
/// use rl_serve::{HttpServer, Shutdown};
/// use tokio::net::TcpListener;
///
/// let shutdown = Shutdown::on_signal()?;
/// let first = TcpListener::bind("0.0.0.0:8080").await?;
/// let second = TcpListener::bind("127.0.0.1:9090").await?;
/// tokio::try_join!(
///     HttpServer::new(public).http2().max_connections(10_000).serve(first, &shutdown),
///     HttpServer::new(internal).serve(second, &shutdown),
/// )?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use]
pub struct HttpServer<S = axum::Router> {
    app: S,
    protocol: Protocol,
    timeouts: Timeouts,
    max_connections: usize,
    shares: Option<PeerShares>,
    memory: Option<PeerShares>,
    max_age: Option<Duration>,
    max_streams: u32,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl<S: HttpService> HttpServer<S> {
    /// Creates a server that accepts HTTP/1.
    pub fn new(app: S) -> Self {
        Self {
            app,
            protocol: Protocol::Http1,
            timeouts: Timeouts::default(),
            max_connections: Semaphore::MAX_PERMITS,
            shares: None,
            memory: None,
            max_age: None,
            max_streams: 256,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Accepts HTTP/2 too: with TLS if the client chooses it (ALPN), and without TLS if the client
    /// begins with it (prior knowledge).
    pub fn http2(self) -> Self {
        Self { protocol: Protocol::Both, ..self }
    }

    /// Accepts HTTP/2 only.
    pub fn http2_only(self) -> Self {
        Self { protocol: Protocol::Http2, ..self }
    }

    /// Sets the time limits.
    pub fn timeouts(self, timeouts: Timeouts) -> Self {
        Self { timeouts, ..self }
    }

    /// Sets the maximum number of open connections, at least one. More connections wait in the
    /// backlog of the listener. Defaults to no limit.
    ///
    /// A connection that was upgraded, such as to a WebSocket, does not count. When the server
    /// stops, it accepts the connections in the backlog too, and answers their requests.
    pub fn max_connections(self, max: usize) -> Self {
        Self { max_connections: max.clamp(1, Semaphore::MAX_PERMITS), ..self }
    }

    /// Sets the connections that peers share. A connection above the share of its peer is closed at
    /// once. Defaults to none: a peer may have all connections.
    pub fn share_connections(self, shares: PeerShares) -> Self {
        Self { shares: Some(shares), ..self }
    }

    /// Sets the bytes that the requests of peers share: the head, the body as it arrives, and the
    /// response, until it is sent; and 16 KiB for each of the highest number of concurrent requests of
    /// a connection, until it ends. Each header line counts twice its length, and 128 bytes. A
    /// connection takes these bytes in chunks of 32 KiB, and gives back what it does not need when
    /// none of its requests is in progress.
    ///
    /// A request beyond the share of its peer gets 503, and a body beyond it ends with an error.
    /// Defaults to none: no bound.
    pub fn share_memory(self, bytes: PeerShares) -> Self {
        Self { memory: Some(bytes), ..self }
    }

    /// Sets the age at which a connection is closed without losing requests, so that clients find
    /// new instances of the server. Each connection has an age of its own, up to a tenth below
    /// `max`. Defaults to no limit.
    pub fn max_connection_age(self, max: Duration) -> Self {
        Self { max_age: Some(max), ..self }
    }

    /// Sets the maximum number of requests that a connection over HTTP/2 may have in progress.
    /// Defaults to 256.
    pub fn max_concurrent_streams(self, max: u32) -> Self {
        Self { max_streams: max, ..self }
    }

    /// Encrypts connections.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn tls(self, tls: Tls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// Serves until `shutdown` starts and the connections have ended. Dropping the future closes
    /// the connections.
    ///
    /// # Errors
    ///
    /// Returns an error if the listener cannot be closed.
    pub async fn serve(self, listener: TcpListener, shutdown: &Shutdown) -> io::Result<()> {
        let slots = Arc::new(Semaphore::new(self.max_connections));
        let (is_closing, closing) = watch::channel(false);
        let notice = self.timeouts.notice;
        let shares = self.shares.clone();
        let connections = Arc::new(self.into_connections(closing));
        let mut tasks = JoinSet::new();
        loop {
            let slot = tokio::select! {
                biased;
                () = shutdown.started() => break,
                slot = Arc::clone(&slots).acquire_owned() => slot.ok(),
            };
            let accepted = tokio::select! {
                biased;
                () = shutdown.started() => break,
                accepted = listener.accept() => accepted,
            };
            // A task that has ended holds memory until it is joined.
            while tasks.try_join_next().is_some() {}
            match accepted {
                Ok((stream, peer)) => {
                    let share = shares.as_ref().map(|shares| shares.take(Some(peer.ip()), 1));
                    if matches!(share, Some(None)) {
                        continue;
                    }
                    let accepted = Accepted { stream, peer, slot, share: share.flatten() };
                    tasks.spawn(Arc::clone(&connections).serve(accepted));
                }
                Err(error) if is_caused_by_client(&error) => {}
                Err(error) => {
                    tracing::warn!(target: "rl_serve", %error, "connection not accepted");
                    pause(ACCEPT_PAUSE).await;
                }
            }
        }
        connections.is_stopping.store(true, Ordering::Relaxed);
        for accepted in backlog(listener)? {
            tasks.spawn(Arc::clone(&connections).serve(accepted));
        }
        // If idle connections were closed now, requests that have arrived on them but are not read
        // yet would be lost.
        tokio::select! {
            () = pause(notice) => {}
            () = all_ended(&mut tasks) => {}
        }
        is_closing.send_replace(true);
        all_ended(&mut tasks).await;
        Ok(())
    }

    fn into_connections(self, closing: watch::Receiver<bool>) -> Connections<S> {
        let Self { app, protocol, timeouts, memory, max_age, max_streams, .. } = self;
        Connections {
            app,
            builder: builder(protocol, timeouts, max_streams),
            protocol,
            timeouts,
            memory,
            max_age,
            #[cfg(feature = "tls")]
            tls: self.tls,
            is_stopping: AtomicBool::new(false),
            closing,
        }
    }
}

/// Returns the settings of HTTP connections.
fn builder(
    protocol: Protocol,
    timeouts: Timeouts,
    max_streams: u32,
) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(timeouts.head)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        // Finds clients that have gone without closing their connection.
        .keep_alive_interval(timeouts.head)
        .keep_alive_timeout(timeouts.head)
        .max_header_list_size(MAX_HEAD)
        .max_concurrent_streams(max_streams);
    match protocol {
        Protocol::Http1 => builder.http1_only(),
        Protocol::Http2 => builder.http2_only(),
        Protocol::Both => builder,
    }
}

/// Closes the listener, and returns the connections that waited in its backlog.
fn backlog(listener: TcpListener) -> io::Result<Vec<Accepted>> {
    // The runtime may not have noticed a connection yet, so accept from the system directly.
    let listener = listener.into_std()?;
    let mut waiting: Vec<(std::net::TcpStream, SocketAddr)> = Vec::new();
    while waiting.len() < MAX_BACKLOG {
        match listener.accept() {
            Ok(accepted) => waiting.push(accepted),
            Err(error) if is_caused_by_client(&error) => {}
            Err(_) => break,
        }
    }
    drop(listener);
    let accepted = waiting.into_iter().filter_map(|(stream, peer)| {
        stream.set_nonblocking(true).ok()?;
        let stream = TcpStream::from_std(stream).ok()?;
        Some(Accepted { stream, peer, slot: None, share: None })
    });
    Ok(accepted.collect())
}

/// Returns whether accepting failed because the client has closed its connection already.
fn is_caused_by_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::Interrupted
    )
}

async fn all_ended(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}
