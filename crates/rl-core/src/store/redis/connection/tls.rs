//! TLS: certificates, and connections that use them.
//!
//! This module uses rustls directly. The TLS of the client library reads the system's certificates
//! from disk for each connection. It also panics if the crates of a service bring two cryptographic
//! providers.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::{RedisConnectionInfo, RedisError};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, SignatureScheme};

use super::stream::{DrivenConnection, ReplyMeter, connect_tcp, log_in};
use crate::model::{FailureKind, StoreError};
use crate::store::redis::error::{ConnectError, classify};

/// Certificates for URLs with `rediss://`.
///
/// By default, a server must have a certificate that the operating system trusts. Servers are
/// always verified, including their host name. Behind sentinels and in a cluster, the host name is
/// the address that the server announces.
///
/// ```no_run
/// use rl_core::RedisStore;
/// use rl_core::store::Tls;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let tls = Tls::new()
///     .ca_file("/etc/service/redis-ca.pem")
///     .client_certificate_files("/etc/service/redis.pem", "/etc/service/redis-key.pem");
/// let store = RedisStore::builder("rediss://redis.internal/").tls(tls).connect().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct Tls {
    ca: Option<Pem>,
    client: Option<(Pem, Pem)>,
}

impl Tls {
    /// Trusts the certificate authorities of the operating system, and uses no client certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these certificate authorities (PEM text) instead of those of the system.
    pub fn ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(Pem::Text(pem.into()));
        self
    }

    /// Reads the certificate authorities of [`ca`](Self::ca) from a file, once, when the store
    /// connects.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(Pem::File(path.into()));
        self
    }

    /// Presents a client certificate to servers (mutual TLS).
    ///
    /// `certificate` is the certificate, followed by the intermediate certificates if there are
    /// any. `key` is its private key. Both are PEM text.
    pub fn client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.client = Some((Pem::Text(certificate.into()), Pem::Text(key.into())));
        self
    }

    /// Reads the [`client_certificate`](Self::client_certificate) and its key from files, once,
    /// when the store connects.
    pub fn client_certificate_files(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.client = Some((Pem::File(certificate.into()), Pem::File(key.into())));
        self
    }

    /// Reads the certificates.
    pub(super) fn client(&self) -> Result<TlsClient, ConnectError> {
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|_| invalid("no version of TLS is supported"))?
            .with_root_certificates(self.authorities()?);
        let config = match &self.client {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificate.certificates("the client's certificate")?;
                let key = key.read("the client's key")?;
                // The library's error is discarded, because it may quote a line of the key.
                let key = PrivateKeyDer::from_pem_slice(&key)
                    .map_err(|_| invalid("the client's key: no private key in PEM text"))?;
                config.with_client_auth_cert(chain, key).map_err(|_| {
                    invalid("the client's key cannot be used, or is not that of its certificate")
                })?
            }
        };
        Ok(TlsClient { config: Arc::new(config) })
    }

    /// Reads the certificate authorities.
    fn authorities(&self) -> Result<RootCertStore, ConnectError> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(pem) => {
                const WHAT: &str = "the certificate authority";
                for certificate in pem.certificates(WHAT)? {
                    let added = roots.add(certificate);
                    added.map_err(|_| invalid(&format!("{WHAT}: not a valid certificate")))?;
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
            }
        }
        if roots.is_empty() {
            return Err(invalid(
                "the system has no certificate authorities: configure one with `ca`",
            ));
        }
        Ok(roots)
    }
}

// Omits the paths and the PEM texts, one of which may be a private key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("own_ca", &self.ca.is_some())
            .field("client_certificate", &self.client.is_some())
            .finish()
    }
}

/// PEM text, or a file that contains it.
#[derive(Clone)]
enum Pem {
    Text(Vec<u8>),
    File(PathBuf),
}

impl Pem {
    /// Returns the text. An error message calls it `what`.
    fn read(&self, what: &str) -> Result<Vec<u8>, ConnectError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => fs::read(path).map_err(|error| {
                invalid(&format!("{what}: cannot read {}: {}", path.display(), error.kind()))
            }),
        }
    }

    /// Returns at least one certificate, or an error. An error message calls the certificates
    /// `what`.
    fn certificates(&self, what: &str) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
        let text = self.read(what)?;
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        match certificates {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            _ => Err(invalid(&format!("{what}: no certificate in PEM text"))),
        }
    }
}

/// Opens connections over TLS.
#[derive(Clone)]
pub(super) struct TlsClient {
    config: Arc<ClientConfig>,
}

impl TlsClient {
    /// Opens a connection and logs in.
    pub(super) async fn connect(
        &self,
        host: &str,
        port: u16,
        login: &RedisConnectionInfo,
        meter: Option<Arc<ReplyMeter>>,
    ) -> Result<DrivenConnection, StoreError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            StoreError::new(FailureKind::Untrusted)
                .with_detail("the host name is not valid in a certificate")
        })?;
        // A server that requires a client certificate and gets none only closes the connection. The
        // resolver records the server's request for a certificate, so that the error can name the
        // reason.
        let has_no_certificate = Arc::new(AtomicBool::new(false));
        let mut tls = ClientConfig::clone(&self.config);
        tls.client_auth_cert_resolver = Arc::new(ObservedResolver {
            inner: Arc::clone(&tls.client_auth_cert_resolver),
            has_no_certificate: Arc::clone(&has_no_certificate),
        });

        let explain = |error: RedisError| {
            if has_no_certificate.load(Ordering::Relaxed) && error.is_io_error() {
                return StoreError::new(FailureKind::Refused)
                    .with_detail("the server asks for a client certificate, and none is set");
            }
            classify(error)
        };
        let stream = connect_tcp(host, port).await.map_err(explain)?;
        let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await;
        let stream = stream.map_err(|error| explain(error.into()))?;
        log_in(stream, login, meter).await.map_err(explain)
    }
}

/// Records whether the server requested a client certificate although none is configured.
#[derive(Debug)]
struct ObservedResolver {
    inner: Arc<dyn ResolvesClientCert>,
    has_no_certificate: Arc<AtomicBool>,
}

impl ResolvesClientCert for ObservedResolver {
    fn resolve(&self, hints: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let certificate = self.inner.resolve(hints, schemes);
        self.has_no_certificate.store(certificate.is_none(), Ordering::Relaxed);
        certificate
    }

    fn has_certs(&self) -> bool {
        self.inner.has_certs()
    }
}

/// Returns the error of a certificate or key that cannot be used.
fn invalid(why: &str) -> ConnectError {
    ConnectError::Certificate { why: why.to_owned() }
}
