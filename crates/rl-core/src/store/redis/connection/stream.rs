//! Opens a stream to a server, and a connection over it.
//!
//! The client library could open the stream as well, but would then spawn the driver of the
//! connection itself. The store needs the driver, because its end shows that the connection is
//! closed.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::store::ServerLoad;

/// A connection and its driver.
pub(super) type DrivenConnection = (MultiplexedConnection, ConnectionDriver);

/// Moves the bytes of a connection, and ends when the connection is closed. The caller spawns it.
pub(super) type ConnectionDriver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Reports the replies on one connection to the load of its server.
///
/// Replies are seen at the socket, so that those to calls that have timed out count too: a server
/// that sends them is late, but not down. Only replies to scripts count. A server that answers
/// other commands may still execute no script, as during a fail-over. So other commands are sent on
/// connections of their own, or before the meter is started.
pub(super) struct ReplyMeter {
    load: Arc<ServerLoad>,
    is_started: AtomicBool,
}

impl ReplyMeter {
    /// Creates the meter of a connection to this server. It counts nothing yet.
    pub(super) fn new(load: &Arc<ServerLoad>) -> Arc<Self> {
        Arc::new(Self { load: Arc::clone(load), is_started: AtomicBool::new(false) })
    }

    /// Returns the load of the server.
    pub(super) fn load(&self) -> &ServerLoad {
        &self.load
    }

    /// Counts replies from now on. Records that the server can be reached.
    pub(super) fn start(&self) {
        self.is_started.store(true, Ordering::Relaxed);
        self.load.record_connection();
    }

    fn received(&self) {
        if self.is_started.load(Ordering::Relaxed) {
            self.load.record_reply();
        }
    }
}

/// A stream that reports what it receives. Without a meter, it reports nothing.
struct MeteredStream<S> {
    stream: S,
    meter: Option<Arc<ReplyMeter>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if let Some(meter) = &self.meter
            && buffer.filled().len() > before
        {
            meter.received();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MeteredStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Opens a TCP connection that sends small commands without delay.
pub(super) async fn connect_tcp(host: &str, port: u16) -> RedisResult<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    // An error is ignored: without the option, the connection works, but is slower.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Logs in over an open stream. `meter` gets the replies on the connection.
pub(super) async fn log_in(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    login: &RedisConnectionInfo,
    meter: Option<Arc<ReplyMeter>>,
) -> RedisResult<DrivenConnection> {
    let stream = MeteredStream { stream, meter };
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let (connection, driver) =
        MultiplexedConnection::new_with_config(login, stream, config).await?;
    Ok((connection, Box::pin(driver)))
}
