//! From certificates to connections.
//!
//! The client library has TLS too, but reads the system's certificates from disk for each
//! connection, and panics where two crates of a service bring two cryptographic providers.

use std::error::Error;
use std::fs;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisError};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{
    self, AlertDescription, CertificateError, ClientConfig, RootCertStore, SignatureScheme,
};

use super::{Pem, Tls};
use crate::model::FailureKind;
use crate::model::StoreError;
use crate::store::redis::ConnectError;
use crate::store::redis::error::classify;

/// Makes connections over TLS.
#[derive(Clone)]
pub(crate) struct Connector {
    config: Arc<ClientConfig>,
}

impl Tls {
    /// Reads the certificates.
    pub(crate) fn connector(&self) -> Result<Connector, ConnectError> {
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|_| wrong("no version of TLS to speak"))?
            .with_root_certificates(self.authorities()?);
        let config = match &self.client {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificate.certificates("the client's certificate")?;
                let key = key.read("the client's key")?;
                // The library's errors may quote a line of the key.
                let key = PrivateKeyDer::from_pem_slice(&key)
                    .map_err(|_| wrong("the client's key: no private key in PEM text"))?;
                config.with_client_auth_cert(chain, key).map_err(|_| {
                    wrong("the client's key cannot be used, or is not that of its certificate")
                })?
            }
        };
        Ok(Connector { config: Arc::new(config) })
    }

    fn authorities(&self) -> Result<RootCertStore, ConnectError> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(pem) => {
                const WHAT: &str = "the certificate authority";
                for certificate in pem.certificates(WHAT)? {
                    let added = roots.add(certificate);
                    added.map_err(|_| wrong(&format!("{WHAT}: not a valid certificate")))?;
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
            }
        }
        if roots.is_empty() {
            return Err(wrong("the system has no certificate authorities: give one of your own"));
        }
        Ok(roots)
    }
}

impl Pem {
    fn read(&self, what: &str) -> Result<Vec<u8>, ConnectError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => fs::read(path).map_err(|why| {
                wrong(&format!("{what}: cannot read {}: {}", path.display(), why.kind()))
            }),
        }
    }

    fn certificates(&self, what: &str) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
        let text = self.read(what)?;
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        match certificates {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            _ => Err(wrong(&format!("{what}: no certificate in PEM text"))),
        }
    }
}

fn wrong(why: &str) -> ConnectError {
    ConnectError::Certificate { why: why.to_owned() }
}

impl Connector {
    pub(crate) async fn connect(
        &self,
        host: &str,
        port: u16,
        login: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, StoreError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            let kind = FailureKind::Untrusted;
            StoreError::new(kind).with_detail("the host's name can stand in no certificate")
        })?;
        // A server that misses our certificate closes the connection, and often that is all that
        // arrives. What it asked for says why.
        let missed = Arc::new(AtomicBool::new(false));
        let mut tls = ClientConfig::clone(&self.config);
        let certificate = Arc::clone(&tls.client_auth_cert_resolver);
        tls.client_auth_cert_resolver =
            Arc::new(Witness { certificate, missed: Arc::clone(&missed) });

        let explain = |error: RedisError| {
            if missed.load(Ordering::Relaxed) && error.is_io_error() {
                return StoreError::new(FailureKind::Refused)
                    .with_detail("the server asks for a client certificate, and none is set");
            }
            classify(error)
        };
        let stream = TcpStream::connect((host, port)).await.map_err(|why| explain(why.into()))?;
        let _ = stream.set_nodelay(true);
        let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await;
        let stream = stream.map_err(|why| explain(why.into()))?;
        let connected = MultiplexedConnection::new_with_config(login, stream, config).await;
        let (connection, driver) = connected.map_err(explain)?;
        tokio::spawn(driver);
        Ok(connection)
    }
}

/// Notices when a server asks for a certificate that we do not have.
#[derive(Debug)]
struct Witness {
    certificate: Arc<dyn ResolvesClientCert>,
    missed: Arc<AtomicBool>,
}

impl ResolvesClientCert for Witness {
    fn resolve(&self, hints: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let certificate = self.certificate.resolve(hints, schemes);
        self.missed.store(certificate.is_none(), Ordering::Relaxed);
        certificate
    }

    fn has_certs(&self) -> bool {
        self.certificate.has_certs()
    }
}

/// What TLS says about a failure, if it was one of TLS.
pub(crate) fn failure(error: &RedisError) -> Option<(FailureKind, &'static str)> {
    // The library shares what is beneath.
    let shared = error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    let error = shared.downcast_ref::<std::io::Error>()?;
    Some(match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(why) => (FailureKind::Untrusted, unverified(why)),
        rustls::Error::NoCertificatesPresented => (FailureKind::Untrusted, "it showed none"),
        rustls::Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied => {
                (FailureKind::Refused, "the server does not accept the client certificate")
            }
            AlertDescription::CloseNotify | AlertDescription::UserCanceled => return None,
            _ => (FailureKind::Protocol, "the server broke off the TLS handshake"),
        },
        _ if error.kind() == ErrorKind::InvalidData => {
            (FailureKind::Protocol, "the server does not speak TLS as we do")
        }
        _ => return None,
    })
}

/// In words of ours: the library's name hosts.
const fn unverified(why: &CertificateError) -> &'static str {
    match why {
        CertificateError::UnknownIssuer => "its issuer is not known",
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is for another host name"
        }
        CertificateError::Revoked => "it was revoked",
        _ => "it is not valid",
    }
}
