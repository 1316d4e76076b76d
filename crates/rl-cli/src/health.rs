//! Asks a server whether it is ready.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use reqwest::{Certificate, ClientBuilder, Identity, Url};
use tokio_rustls::rustls::crypto::ring;

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
    pub(crate) async fn check(&self, listen: Option<String>) -> Result<(), String> {
        let url = self
            .url
            .clone()
            .unwrap_or_else(|| format!("http://{}", listen.as_deref().unwrap_or("127.0.0.1:8080")));
        let ready = ready_url(&url)?;
        let client = self.client().await?.build();
        let client = client.map_err(|error| format!("--cert, --key: {}", reason(&error)))?;
        let answer = client.get(ready).send().await;
        let answer = answer.map_err(|error| format!("{url}: {}", reason(&error)))?;
        if answer.status() == 200 {
            return Ok(());
        }
        let status = answer.status();
        let body = answer.text().await.unwrap_or_default();
        Err(format!("{url}: not ready: status {status}: {}", body.trim()))
    }

    async fn client(&self) -> Result<ClientBuilder, String> {
        // The only other caller is the store, which names its provider itself.
        let _ = ring::default_provider().install_default();
        let mut client = reqwest::Client::builder().no_proxy().timeout(LIMIT);
        if let Some(path) = &self.ca {
            let roots = Certificate::from_pem_bundle(&read(path)?);
            let roots = roots.ok().filter(|roots| !roots.is_empty());
            let expected = || format!("{}: expected a certificate in PEM", path.display());
            client = client.tls_certs_only(roots.ok_or_else(expected)?);
        }
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            let mut pem = read(cert)?;
            pem.extend(read(key)?);
            let identity = Identity::from_pem(&pem);
            client = client.identity(identity.map_err(|error| {
                format!("{}, {}: {}", cert.display(), key.display(), reason(&error))
            })?);
        }
        Ok(client)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the URL of `/readyz`. An address on which a server listens for all hosts is asked on this
/// machine.
fn ready_url(text: &str) -> Result<Url, String> {
    let expected = || format!("{text:?}: expected http://HOST:PORT or https://HOST:PORT");
    let mut url = Url::parse(text).map_err(|_| expected())?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(expected());
    }
    let local = match url.host_str() {
        Some("0.0.0.0") => Some("127.0.0.1"),
        Some("[::]") => Some("[::1]"),
        _ => None,
    };
    if let Some(local) = local {
        url.set_host(Some(local)).map_err(|_| expected())?;
    }
    url.set_path("/readyz");
    Ok(url)
}

/// Returns the innermost reason for an error, which names what went wrong.
fn reason(error: &reqwest::Error) -> String {
    let mut reason: &dyn std::error::Error = error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    reason.to_string()
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
            assert_eq!(ready_url(url).unwrap().as_str(), expected);
        }
        for url in ["ftp://x", "x:80", "http://", "http://x:y"] {
            assert!(ready_url(url).unwrap_err().contains("expected http://HOST:PORT"), "{url}");
        }
    }
}
