//! Asks a server whether it is ready.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustls::crypto::ring;
use ureq::Agent;
use ureq::http::Uri;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

/// The time limit for the answer.
const LIMIT: Duration = Duration::from_secs(3);

/// The server that is asked, and the certificates of this call.
#[derive(Debug, Args)]
pub(crate) struct Health {
    /// The URL of the server [default: http:// and RL_LISTEN, or http://127.0.0.1:8080]
    url: Option<String>,
    /// The certificate of the authority that signed that of the server [default: those of the system]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The certificate of this client, for a server with mutual TLS
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The private key of --cert
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

impl Health {
    /// Asks the server whether it is ready. `listen` is the address on which it listens unless a URL
    /// is given.
    ///
    /// # Errors
    ///
    /// Returns the reason why it is not ready, or cannot be asked.
    pub(crate) fn check(&self, listen: Option<String>) -> Result<(), String> {
        let url = self
            .url
            .clone()
            .unwrap_or_else(|| format!("http://{}", listen.as_deref().unwrap_or("127.0.0.1:8080")));
        let ready = ready_url(&url)?;
        let mut settings = Agent::config_builder()
            .proxy(None)
            .timeout_global(Some(LIMIT))
            .http_status_as_error(false);
        if url.starts_with("https:") {
            settings = settings.tls_config(self.tls()?);
        }
        let answer = Agent::new_with_config(settings.build()).get(&ready).call();
        let mut answer = answer.map_err(|error| format!("{url}: {error}"))?;
        let status = answer.status();
        if status == 200 {
            return Ok(());
        }
        let body = answer.body_mut().read_to_string().unwrap_or_default();
        Err(format!("{url}: not ready: status {status}: {}", body.trim()))
    }

    fn tls(&self) -> Result<TlsConfig, String> {
        let roots = match &self.ca {
            Some(path) => certificates(path)?,
            None => {
                let roots = rustls_native_certs::load_native_certs().certs;
                roots.iter().map(|root| Certificate::from_der(root).to_owned()).collect()
            }
        };
        let client = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                let expected = |_| format!("{}: expected a private key in PEM", key.display());
                let private = PrivateKey::from_pem(&read(key)?).map_err(expected)?;
                Some(ClientCert::new_with_certs(&certificates(cert)?, private))
            }
            _ => None,
        };
        Ok(TlsConfig::builder()
            .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
            .root_certs(RootCerts::new_with_certs(&roots))
            .client_cert(client)
            .build())
    }
}

/// Reads the certificates of a file.
fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, String> {
    let pem = read(path)?;
    let items = parse_pem(&pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let found: Vec<_> = items.collect();
    if found.is_empty() {
        return Err(format!("{}: expected a certificate in PEM", path.display()));
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the URL of `/readyz`. An address on which a server listens for all hosts is asked on this
/// machine.
fn ready_url(text: &str) -> Result<String, String> {
    let expected = || format!("{text:?}: expected http://HOST:PORT or https://HOST:PORT");
    let uri: Uri = text.parse().map_err(|_| expected())?;
    let (Some(scheme @ ("http" | "https")), Some(authority)) = (uri.scheme_str(), uri.authority())
    else {
        return Err(expected());
    };
    let port = authority.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    let host = authority.host();
    // A login, or a port that is not a number.
    if host.is_empty() || format!("{host}{port}") != authority.as_str() {
        return Err(expected());
    }
    let host = match host {
        "0.0.0.0" => "127.0.0.1",
        "[::]" => "[::1]",
        host => host,
    };
    Ok(format!("{scheme}://{host}{port}/readyz"))
}

#[cfg(test)]
mod tests {
    use super::ready_url;

    #[test]
    fn the_host_and_port_of_a_url_are_asked_and_wildcards_on_this_machine() {
        for (url, expected) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/readyz"),
            ("http://0.0.0.0:8080/readyz", "http://127.0.0.1:8080/readyz"),
            ("https://[::]:8080", "https://[::1]:8080/readyz"),
            ("http://limits", "http://limits/readyz"),
        ] {
            assert_eq!(ready_url(url).unwrap(), expected);
        }
        for url in ["ftp://x", "x:80", "http://", "http://x:y"] {
            assert!(ready_url(url).unwrap_err().contains("expected http://HOST:PORT"), "{url}");
        }
    }
}
