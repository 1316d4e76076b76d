//! Serves until SIGTERM or Ctrl-C, with time limits, and without losing requests when it stops.
//!
//! `axum::serve` sets no time limit for the head of a request. All axum examples include
//! `examples/serve.rs`. The server of rl-admin has a copy of it, because a package cannot include
//! files outside its folder.

use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, net::SocketAddr, time::Duration};

use axum::http::{HeaderValue, StatusCode, header::CONNECTION};
use axum::{Router, response::Response};
use axum_server::{Handle, Server, accept::Accept};
use hyper_util::rt::TokioTimer;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutWriter;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::TimeoutLayer;

/// The time limit for the head of a request, and for an idle connection.
const HEAD: Duration = Duration::from_secs(10);
/// The time limit for the rest of a request: its body, the wait queue, and the handler.
const REQUEST: Duration = Duration::from_secs(30);
/// The time limit for a client that reads nothing, although a response waits for it.
///
/// Linux reports free space only when a third of the send buffer is free. A client that reads less
/// than that in this time also loses its connection. The buffer of a fast connection grows to 4 MB.
const UNREAD: Duration = Duration::from_secs(30);
/// The time after the signal to stop in which each response announces that its connection closes.
const NOTICE: Duration = Duration::from_secs(1);
/// The time after [`NOTICE`] within which the requests in progress must end.
const DRAIN: Duration = Duration::from_secs(10);

/// Serves `app` until the process gets a signal to stop.
#[expect(clippy::disallowed_methods, reason = "clients and connections end in real time")]
pub(crate) async fn serve(listener: TcpListener, app: Router) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let is_stopping = Arc::new(AtomicBool::new(false));
    let close = {
        let is_stopping = is_stopping.clone();
        let close = HeaderValue::from_static("close");
        move |_: &Response| is_stopping.load(Ordering::Relaxed).then(|| close.clone())
    };
    let app = app
        .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, REQUEST))
        .layer(SetResponseHeaderLayer::overriding(CONNECTION, close))
        .into_make_service_with_connect_info::<SocketAddr>();

    let handle = Handle::<SocketAddr>::new();
    // `acceptor` would undo an earlier `http1_only`.
    let server = Server::from_listener(listener).acceptor(WithWriteTimeout);
    let mut server = server.http1_only().handle(handle.clone());
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(HEAD);
    tokio::select! {
        // The server is polled first, so that waiting connections are accepted before the listener
        // closes.
        biased;
        served = server.serve(app) => return served,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    // The listener is closed, and the connections stay open. If idle connections were closed now,
    // requests that have arrived on them but are not read yet would be lost.
    is_stopping.store(true, Ordering::Relaxed);
    sleep(NOTICE).await;
    handle.graceful_shutdown(None);
    let drained = async {
        // No event marks the end of the last connection, so the number of connections is polled.
        while handle.connection_count() > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let _ = timeout(DRAIN, drained).await;
    Ok(())
}

/// Gives each connection a time limit for writing. hyper has none for a client that reads nothing.
#[derive(Clone, Copy)]
struct WithWriteTimeout;

impl<S> Accept<TcpStream, S> for WithWriteTimeout {
    type Stream = Pin<Box<TimeoutWriter<TcpStream>>>;
    type Service = S;
    type Future = Ready<io::Result<(Self::Stream, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(UNREAD));
        ready(Ok((Box::pin(stream), service)))
    }
}
