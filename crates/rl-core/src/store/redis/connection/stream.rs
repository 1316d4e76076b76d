//! Opens a stream to a server, and a connection over it.
//!
//! The client library could open the stream as well, but would then spawn the driver of the
//! connection itself. The store needs the driver, because its end shows that the connection is
//! closed.

use std::future::Future;
use std::pin::Pin;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A connection and its driver.
pub(super) type DrivenConnection = (MultiplexedConnection, ConnectionDriver);

/// Moves the bytes of a connection, and ends when the connection is closed. The caller spawns it.
pub(super) type ConnectionDriver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Opens a TCP connection that sends small commands without delay.
pub(super) async fn connect_tcp(host: &str, port: u16) -> RedisResult<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    // An error is ignored: without the option, the connection works, but is slower.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Logs in over an open stream.
pub(super) async fn log_in(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    login: &RedisConnectionInfo,
) -> RedisResult<DrivenConnection> {
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let (connection, driver) =
        MultiplexedConnection::new_with_config(login, stream, config).await?;
    Ok((connection, Box::pin(driver)))
}
