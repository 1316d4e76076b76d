//! TLS, mutual TLS, and certificates that change.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use rl_serve::{HttpServer, Tls, TlsFiles};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::clients::{Connection, Sent};
use crate::{GIVE_UP, Running, short_timeouts};

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Creates a certificate and its key, as PEM.
    fn identity(&self) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

/// Writes the certificate and the key of a server.
fn write(folder: &Path, (cert, key): &(String, String)) {
    fs::write(folder.join("tls.crt"), cert).unwrap();
    fs::write(folder.join("tls.key"), key).unwrap();
}

fn files(folder: &Path, client_ca: Option<&Authority>) -> TlsFiles {
    let client_ca = client_ca.map(|authority| {
        let path = folder.join("clients.crt");
        fs::write(&path, authority.0.pem()).unwrap();
        path
    });
    TlsFiles { cert: folder.join("tls.crt"), key: folder.join("tls.key"), client_ca }
}

async fn connect(
    server: &Running,
    trusted: &Authority,
    identity: Option<&(String, String)>,
    protocol: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.0.pem().as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match identity {
        None => config.with_no_client_auth(),
        Some((cert, key)) => config
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap(),
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let stream = TcpStream::connect(server.address).await?;
    TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream).await
}

async fn start(tls: Tls) -> Running {
    let app = Router::new().route("/", get(async || "hello"));
    Running::start(app, |server: HttpServer| server.http2().timeouts(short_timeouts()).tls(tls))
        .await
}

/// Returns whether a request over this stream is answered.
async fn is_answered(stream: TlsStream<TcpStream>) -> bool {
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    match Connection::over(stream, is_http2).await {
        Ok(mut connection) => matches!(connection.get("/").await, Sent::Answered(..)),
        Err(_) => false,
    }
}

#[tokio::test]
async fn both_versions_of_http_are_served_over_tls_as_the_client_chooses() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new("servers"));
    write(folder.path(), &authority.identity());
    let server = start(Tls::from_files(files(folder.path(), None)).unwrap()).await;
    for protocol in ["h2", "http/1.1"] {
        let stream = connect(&server, &authority, None, protocol).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(protocol.as_bytes()));
        assert!(is_answered(stream).await, "{protocol}");
    }
    // A client that begins no handshake is closed, and holds no other client.
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let mut plain = TcpStream::connect(server.address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let stream = connect(&server, &authority, None, "h2").await.unwrap();
    assert!(is_answered(stream).await);
    let mut response = Vec::new();
    timeout(GIVE_UP, silent.read_to_end(&mut response)).await.unwrap().unwrap();
    let _ = timeout(GIVE_UP, plain.read_to_end(&mut response)).await.unwrap();
    assert!(!response.starts_with(b"HTTP"), "{response:?}");
    server.stop().await;
}

#[tokio::test]
async fn mutual_tls_accepts_clients_of_the_authority_and_refuses_others() {
    let folder = tempfile::tempdir().unwrap();
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    write(folder.path(), &servers.identity());
    let server = start(Tls::from_files(files(folder.path(), Some(&clients))).unwrap()).await;
    let known = clients.identity();
    let stream = connect(&server, &servers, Some(&known), "h2").await.unwrap();
    assert!(is_answered(stream).await);
    let unknown = Authority::new("clients").identity();
    for identity in [None, Some(&unknown)] {
        // With TLS 1.3 the client learns the refusal when it reads.
        let is_accepted = match connect(&server, &servers, identity, "h2").await {
            Ok(stream) => is_answered(stream).await,
            Err(_) => false,
        };
        assert!(!is_accepted, "{identity:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn new_connections_get_a_new_certificate_and_a_wrong_one_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    write(folder.path(), &old.identity());
    let tls = Tls::from_files(files(folder.path(), None)).unwrap();
    let server = start(tls.clone()).await;
    assert!(!tls.reload().unwrap());
    let mut open =
        Connection::over(connect(&server, &old, None, "h2").await.unwrap(), true).await.unwrap();

    // A certificate without its key, as in the middle of a change.
    let (cert, key) = new.identity();
    fs::write(folder.path().join("tls.crt"), &cert).unwrap();
    let error = tls.reload().unwrap_err().to_string();
    assert!(error.contains("tls.crt: "), "{error}");
    assert!(connect(&server, &old, None, "h2").await.is_ok());

    write(folder.path(), &(cert, key));
    assert!(tls.reload().unwrap());
    assert!(connect(&server, &old, None, "h2").await.is_err());
    assert!(is_answered(connect(&server, &new, None, "h2").await.unwrap()).await);
    assert!(matches!(open.get("/").await, Sent::Answered(..)));
    server.stop().await;
}

#[test]
fn errors_of_files_name_the_file_and_what_was_expected() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, path) = (Authority::new("servers"), folder.path());
    let message = |files: TlsFiles| Tls::from_files(files).unwrap_err().to_string();
    assert!(message(files(path, None)).contains("tls.crt: No such file"));
    let identity = authority.identity();
    write(path, &(identity.0.clone(), "secret".to_owned()));
    let error = message(files(path, None));
    assert!(error.ends_with("tls.key: expected a private key in PEM"), "{error}");
    write(path, &(String::new(), identity.1));
    let error = message(files(path, None));
    assert!(error.ends_with("tls.crt: expected certificates in PEM"), "{error}");
}
