//! One HTTP request on a connection of its own.
//!
//! The request is sent with hyper directly. A general client would resolve the host again after the
//! address was checked, follow redirects, and use the proxies of the environment.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;

use axum::body::Bytes;
use axum::http::{Request, StatusCode};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::address::is_allowed;
use super::receiver::Receiver;

/// Opens connections to receivers.
#[derive(Clone)]
pub(super) struct Connector(Option<TlsConnector>);

impl Connector {
    /// Reads the certificate authorities of the operating system, if TLS is needed.
    pub(super) fn new(needs_tls: bool) -> Self {
        Self(needs_tls.then(tls).flatten())
    }

    /// Sends a request, and returns the status of its response.
    pub(super) async fn send(
        &self,
        receiver: &Receiver,
        request: Request<Full<Bytes>>,
    ) -> io::Result<StatusCode> {
        let stream = connect(receiver).await?;
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
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .ok()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Some(TlsConnector::from(Arc::new(config)))
}

/// Connects to the first allowed address of the receiver that accepts the connection.
async fn connect(receiver: &Receiver) -> io::Result<TcpStream> {
    let mut last = other("the receiver has no address to which webhooks may be sent");
    let addresses: Vec<SocketAddr> =
        lookup_host((receiver.bare_host(), receiver.port)).await?.collect();
    for address in addresses {
        if !is_allowed(address.ip(), receiver.is_tls) {
            continue;
        }
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> io::Result<StatusCode> {
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
