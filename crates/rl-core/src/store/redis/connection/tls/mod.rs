//! TLS: what proves to the service who the servers are, and to them who the service is.

mod connect;

use std::fmt;
use std::path::PathBuf;

pub(crate) use connect::{Connector, failure};

/// Certificates for URLs with `rediss://`.
///
/// Without any, servers must have a certificate that the operating system trusts. Servers are always
/// verified, their host name included: behind sentinels and in a cluster, the name is the address
/// under which they are announced there.
///
/// ```no_run
/// use rl_core::RedisStore;
/// use rl_core::store::redis::Tls;
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

/// Text between `-----BEGIN` and `-----END`, or a file of it.
#[derive(Clone)]
enum Pem {
    Text(Vec<u8>),
    File(PathBuf),
}

impl Tls {
    /// The certificate authorities of the operating system, and no certificate of the service.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these certificate authorities, as PEM text, instead of those of the system.
    pub fn ca(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(Pem::Text(pem.into()));
        self
    }

    /// As [`ca`](Self::ca), from a file that is read once, when the store connects.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(Pem::File(path.into()));
        self
    }

    /// Proves to servers who the service is (mutual TLS): its certificate, with those between it
    /// and the authority if there are any, and its private key, as PEM text.
    pub fn client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.client = Some((Pem::Text(certificate.into()), Pem::Text(key.into())));
        self
    }

    /// As [`client_certificate`](Self::client_certificate), from files that are read once, when the
    /// store connects.
    pub fn client_certificate_files(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.client = Some((Pem::File(certificate.into()), Pem::File(key.into())));
        self
    }
}

// Where a key is, is nobody's business; the key itself much less.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("own_ca", &self.ca.is_some())
            .field("client_certificate", &self.client.is_some())
            .finish()
    }
}
