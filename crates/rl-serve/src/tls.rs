//! TLS: certificates from files, which are read again when they change.

use std::error::Error;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::limits::Protocol;

/// The maximum length of a file, in bytes.
const MAX_LEN: usize = 8 * 1024 * 1024;

/// The time between two readings of the files.
const PAUSE: Duration = Duration::from_secs(10);

/// The files of a server with TLS, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by those that lead to a root.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The roots of client certificates. If it is set, clients without a valid certificate are
    /// rejected (mutual TLS).
    pub client_ca: Option<PathBuf>,
}

/// TLS for one or several servers. Clones share the certificates.
///
/// # Examples
///
/// ```no_run
/// # async fn example(app: axum::Router) -> Result<(), Box<dyn std::error::Error>> {
/// use rl_serve::{HttpServer, Shutdown, Tls, TlsFiles};
///
/// let files = TlsFiles {
///     cert: "/etc/rl/tls.crt".into(),
///     key: "/etc/rl/tls.key".into(),
///     client_ca: Some("/etc/rl/clients.crt".into()),
/// };
/// let tls = Tls::from_files(files)?;
/// tls.watch()?;
/// let listener = tokio::net::TcpListener::bind("0.0.0.0:8443").await?;
/// HttpServer::new(app).http2().tls(tls).serve(listener, &Shutdown::on_signal()?).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Tls(Arc<Certificates>);

struct Certificates {
    files: TlsFiles,
    /// The content of the files when they were last read, valid or not.
    read: Mutex<Content>,
    config: RwLock<Configs>,
}

/// The content of [`TlsFiles`].
#[derive(Clone, PartialEq, Eq)]
struct Content {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// The same certificates for each [`Protocol`].
#[derive(Clone)]
struct Configs {
    http1: Arc<ServerConfig>,
    http2: Arc<ServerConfig>,
    both: Arc<ServerConfig>,
}

/// The reason why certificates cannot be used.
pub struct TlsError {
    path: PathBuf,
    reason: String,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read, or its content is not valid.
    pub fn from_files(files: TlsFiles) -> Result<Self, TlsError> {
        let content = Content::read(&files)?;
        let config = RwLock::new(content.configs(&files)?);
        Ok(Self(Arc::new(Certificates { files, read: Mutex::new(content), config })))
    }

    /// Reads the files again. New connections get the new certificate; connections that are open
    /// stay as they are. Returns whether the content has changed since the last reading.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read, or its new content is not valid. The last valid
    /// certificates continue to apply.
    pub fn reload(&self) -> Result<bool, TlsError> {
        self.0.reload()
    }

    /// Reads the files again on SIGHUP and every ten seconds, until the last clone is dropped.
    /// Changes and errors are logged.
    ///
    /// # Errors
    ///
    /// Returns an error if the handler of the signal cannot be installed.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub fn watch(&self) -> io::Result<()> {
        let mut hangup = signal(SignalKind::hangup())?;
        let certificates = Arc::downgrade(&self.0);
        let mut ticks = interval(PAUSE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = hangup.recv() => {}
                    _ = ticks.tick() => {}
                }
                let certificates = certificates.clone();
                // A file system may hang.
                match spawn_blocking(move || reload_logged(&certificates)).await {
                    Ok(true) => {}
                    Ok(false) | Err(_) => return,
                }
            }
        });
        Ok(())
    }

    /// Makes the handshake of a connection.
    pub(crate) async fn accept<S>(&self, stream: S, protocol: Protocol) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = {
            let configs = self.0.config.read().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(match protocol {
                Protocol::Http1 => &configs.http1,
                Protocol::Http2 => &configs.http2,
                Protocol::Both => &configs.both,
            })
        };
        TlsAcceptor::from(config).accept(stream).await
    }
}

/// Reads the files again, and logs the result. Returns whether the certificates are still used.
fn reload_logged(certificates: &Weak<Certificates>) -> bool {
    let Some(certificates) = certificates.upgrade() else { return false };
    let path = certificates.files.cert.display();
    match certificates.reload() {
        Ok(true) => tracing::info!(target: "rl_serve", %path, "certificates applied"),
        Ok(false) => {}
        Err(error) => tracing::warn!(target: "rl_serve", %error, "certificates not applied"),
    }
    true
}

impl Certificates {
    fn reload(&self) -> Result<bool, TlsError> {
        let content = Content::read(&self.files)?;
        // Holding the lock keeps a concurrent call from applying an older content later.
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if *read == content {
            return Ok(false);
        }
        *read = content;
        let configs = read.configs(&self.files)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = configs;
        Ok(true)
    }
}

/// Reads a regular file of at most `max` bytes. A pipe or a device could make the reader wait for
/// ever, or never end.
///
/// # Errors
///
/// Returns an error, without the path, if the file cannot be read, or is another one.
pub fn read_regular_file(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
    if !fs::metadata(path)?.is_file() {
        return Err(invalid("expected a regular file".to_owned()));
    }
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        return Err(invalid(format!("a file of more than {max} bytes")));
    }
    Ok(bytes)
}

impl Content {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let read = |path: &Path| {
            read_regular_file(path, MAX_LEN).map_err(|error| TlsError::new(path, error))
        };
        Ok(Self {
            cert: read(&files.cert)?,
            key: read(&files.key)?,
            client_ca: files.client_ca.as_deref().map(read).transpose()?,
        })
    }

    fn configs(&self, files: &TlsFiles) -> Result<Configs, TlsError> {
        let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("ring has the ciphers of TLS 1.2 and 1.3");
        let builder = match files.client_ca.as_deref().zip(self.client_ca.as_deref()) {
            None => builder.with_no_client_auth(),
            Some((path, pem)) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path, pem)? {
                    roots.add(certificate).map_err(|error| TlsError::new(path, error))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(
                    verifier.map_err(|error| TlsError::new(path, error))?,
                )
            }
        };
        // An error of the parser does not contain the key.
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| TlsError::new(&files.key, "expected a private key in PEM"))?;
        let mut config = builder
            .with_single_cert(certificates(&files.cert, &self.cert)?, key)
            .map_err(|error| TlsError::new(&files.cert, error))?;
        let mut with = |protocols: &[&str]| {
            config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
            Arc::new(config.clone())
        };
        Ok(Configs {
            http1: with(&["http/1.1"]),
            http2: with(&["h2"]),
            both: with(&["h2", "http/1.1"]),
        })
    }
}

/// Reads the certificates of a file, at least one.
fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(TlsError::new(path, "expected certificates in PEM")),
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("files", &self.files).finish_non_exhaustive()
    }
}

impl TlsError {
    fn new(path: &Path, reason: impl fmt::Display) -> Self {
        Self { path: path.to_owned(), reason: reason.to_string() }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

impl fmt::Debug for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for TlsError {}
