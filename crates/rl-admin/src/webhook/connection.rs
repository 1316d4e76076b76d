//! One HTTP request on a connection of its own.
//!
//! The request is sent with hyper directly. A general client would resolve the host again after the
//! address was checked, follow redirects, and use the proxies of the environment.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, StatusCode};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, join, split};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::address::is_allowed;
use super::receiver::Receiver;

/// The number of bytes that are read from a receiver, which sends the head of a response, perhaps
/// after informational ones. A receiver that sends those without end would occupy a thread.
const LONGEST_HEAD: u64 = 64 * 1024;

/// Opens connections to receivers.
#[derive(Clone)]
pub(super) struct Connector(Option<TlsConnector>);

impl Connector {
    /// Reads the certificate authorities of the operating system, if TLS is needed.
    pub(super) fn new(needs_tls: bool) -> Self {
        Self(needs_tls.then(tls).flatten())
    }

    /// Sends a request, and returns the status of its response. The caller waits for this time at
    /// most.
    pub(super) async fn send(
        &self,
        receiver: &Receiver,
        request: Request<Full<Bytes>>,
        time: Duration,
    ) -> io::Result<StatusCode> {
        let addresses = lookup_host((receiver.bare_host(), receiver.port)).await?;
        let is_allowed = |address: &SocketAddr| is_allowed(address.ip(), receiver.is_tls);
        let stream = connect(&addresses.filter(is_allowed).collect::<Vec<_>>(), time).await?;
        if !receiver.is_tls {
            return exchange(stream, request).await;
        }
        let tls =
            self.0.as_ref().ok_or_else(|| other("the system has no certificate authorities"))?;
        let name = match receiver.bare_host().parse::<IpAddr>() {
            Ok(address) => ServerName::from(address),
            Err(_) => ServerName::try_from(receiver.host.clone()).map_err(other)?,
        };
        exchange(tls.connect(name, stream).await?, request).await
    }
}

fn tls() -> Option<TlsConnector> {
    client_config().map(|config| TlsConnector::from(Arc::new(config)))
}

/// Returns the settings of TLS with the certificate authorities of the operating system.
pub(crate) fn client_config() -> Option<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .ok()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Some(config)
}

/// Connects to the first address that accepts the connection. Each address has a share of the time,
/// so one that never answers does not use it up.
async fn connect(addresses: &[SocketAddr], time: Duration) -> io::Result<TcpStream> {
    let mut last = other("the receiver has no address to which webhooks may be sent");
    let share = time.checked_div(u32::try_from(addresses.len()).unwrap_or(u32::MAX));
    for address in addresses {
        match timeout(share.unwrap_or(time), TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(late) => last = late.into(),
        }
    }
    Err(last)
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> io::Result<StatusCode> {
    let (read, write) = split(stream);
    let stream = join(read.take(LONGEST_HEAD), write);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(other)?;
    let mut response = pin!(sender.send_request(request));
    // The connection is driven only until the head of the response has arrived, and then closed. If
    // the connection ends first, the response is ready or fails.
    let response = tokio::select! {
        biased;
        response = &mut response => response,
        _ = connection => response.await,
    };
    Ok(response.map_err(other)?.status())
}

fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::other(error)
}

// Omits the certificates.
impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("has_tls", &self.0.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpSocket;

    use super::*;

    /// Fault: an address that never answered used up the time of each attempt, so the next address
    /// of the receiver was never tried.
    #[tokio::test]
    async fn an_address_that_never_answers_leaves_time_for_the_next_one() {
        let local = "127.0.0.1:0".parse().unwrap();
        let [full, ready] = [1, 8].map(|backlog| {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(local).unwrap();
            socket.listen(backlog).unwrap()
        });
        let [full, ready] = [&full, &ready].map(|listener| listener.local_addr().unwrap());
        let mut waiting = Vec::new();
        let short = Duration::from_millis(200);
        while let Ok(stream) = connect(&[full], short).await {
            waiting.push(stream);
        }
        let stream = connect(&[full, ready], 2 * short).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), ready);
    }
}
