//! TLS: trusted servers, accepted clients, and secrets that are never shown.

use std::fs;

use rl_core::conformance::{Suite, suite};
use rl_core::store::{ConnectError, Layout, Tls};
use rl_core::{
    FailureKind, Origin, RateLimiter, RedisStore, RedisStoreBuilder, StoreError, Subject,
};
use rl_tests::web::eventually;
use rl_tests::{RedisCluster, RedisServer, free_port};

use super::{PATIENCE, assert_exactly_five_of_twenty_pass, patient};
use crate::authority::{Authority, Identity};
use crate::redis::failure::log::Log;
use crate::store_conformance::{ServerTime, manual_clock};

/// A server with a TLS port. Bystanders use its second port, without TLS.
struct TlsServer {
    server: RedisServer,
    port: u16,
}

impl TlsServer {
    /// Starts a server with this certificate. If `asks_clients` is true, the server requires client
    /// certificates from the authority.
    fn start(shown: &Identity, authority: &Authority, asks_clients: bool) -> Self {
        let port = free_port();
        let (port_text, asks) = (port.to_string(), if asks_clients { "yes" } else { "no" });
        let server = RedisServer::stopped_with(&[
            "--tls-port",
            &port_text,
            "--tls-auth-clients",
            asks,
            "--tls-cert-file",
            "server.pem",
            "--tls-key-file",
            "server-key.pem",
            "--tls-ca-cert-file",
            "ca.pem",
        ]);
        let mut server = Self { server, port };
        server.show(shown, authority);
        server
    }

    /// Restarts the server with another certificate.
    fn show(&mut self, shown: &Identity, authority: &Authority) {
        self.server.stop();
        let folder = self.server.folder();
        fs::write(folder.join("server.pem"), &shown.certificate).unwrap();
        fs::write(folder.join("server-key.pem"), &shown.key).unwrap();
        fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
        self.server.restart();
    }

    fn store(&self, tls: Tls) -> RedisStoreBuilder {
        RedisStore::builder(&format!("rediss://127.0.0.1:{}/", self.port)).tls(tls)
    }
}

fn trusting(authority: &Authority) -> Tls {
    Tls::new().ca(authority.pem())
}

async fn refused(store: RedisStoreBuilder) -> StoreError {
    match store.connect_timeout(PATIENCE).connect().await.unwrap_err() {
        ConnectError::Refused(error) => error,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_server_with_a_trusted_certificate_keeps_the_contract() {
    let authority = Authority::new();
    let server = TlsServer::start(&authority.identity("127.0.0.1"), &authority, false);
    let clock = manual_clock();
    let packed = patient(server.store(trusting(&authority)).manual_clock(clock.clone())).await;
    suite(&Suite::new(packed, clock).without_stored_count()).await;

    // This store trusts the same authority, whose certificate it reads from a file.
    let file = server.server.folder().join("ca.pem");
    let readable = server.store(Tls::new().ca_file(file)).layout(Layout::Readable);
    let time = ServerTime(server.server.connection().await);
    let readable = Suite::new(patient(readable).await, time);
    suite(&readable.only_fixed_windows().without_stored_count()).await;
    assert_eq!(server.server.keys_without_expiry().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_never_exceed_the_limit_over_tls() {
    let authority = Authority::new();
    let server = TlsServer::start(&authority.identity("127.0.0.1"), &authority, false);
    assert_exactly_five_of_twenty_pass(patient(server.store(trusting(&authority))).await).await;
}

/// The store gets the URL of only one server. It connects to the other servers of the cluster over
/// TLS too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_never_exceed_the_limit_on_a_cluster_over_tls() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let identity = authority.identity("127.0.0.1");
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let cluster = RedisCluster::start_with_tls(&[
        "--tls-auth-clients",
        "no",
        "--tls-cert-file",
        &file("server.pem", &identity.certificate),
        "--tls-key-file",
        &file("server-key.pem", &identity.key),
        "--tls-ca-cert-file",
        &file("ca.pem", &authority.pem()),
    ])
    .await;
    let store = || RedisStore::cluster(&cluster.urls()[..1]);
    assert_exactly_five_of_twenty_pass(patient(store().tls(trusting(&authority))).await).await;
    let error = refused(store().tls(trusting(&stranger))).await;
    assert_eq!(error.kind(), FailureKind::Untrusted, "{error}");

    // The single URL of the cluster names the same file.
    let by_url = |ca: &str| RedisStore::builder(&format!("{}?ca={ca}", cluster.url("")));
    let ca = file("ca.pem", &authority.pem());
    let store = patient(by_url(&ca).prefix("by_url")).await;
    assert_exactly_five_of_twenty_pass(store).await;
    let error = refused(by_url(&file("other-ca.pem", &stranger.pem()))).await;
    assert_eq!(error.kind(), FailureKind::Untrusted, "{error}");
}

#[tokio::test]
async fn a_url_names_the_files_of_certificates() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = TlsServer::start(&authority.identity("127.0.0.1"), &authority, true);
    let ours = authority.identity("service");
    let folder = server.server.folder();
    for (name, text) in [
        ("other ca.pem", stranger.pem()),
        ("client&1.pem", ours.certificate),
        ("client key.pem", ours.key),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
    let url = |query: &str| {
        let query = query.replace("DIR", folder.to_str().unwrap());
        format!("rediss://127.0.0.1:{}/?{query}", server.port)
    };
    let builder = |query: &str| RedisStore::builder(&url(query));
    let client = "cert=DIR/client%261.pem&key=DIR%2Fclient%20key.pem";

    let store = patient(builder(&format!("ca=DIR/ca.pem&{client}"))).await;
    assert_exactly_five_of_twenty_pass(store).await;
    let error = refused(builder(&format!("{client}&ca=DIR/other%20ca.pem"))).await;
    assert_eq!(error.kind(), FailureKind::Untrusted, "{error}");
    let error = refused(builder("ca=DIR/ca.pem")).await;
    assert!(error.to_string().contains("asks for a client certificate"), "{error}");
    // Certificates of the builder take precedence over the URL.
    let builder_first = builder(&format!("ca=DIR/ca.pem&{client}")).tls(trusting(&authority));
    let error = refused(builder_first).await;
    assert!(error.to_string().contains("asks for a client certificate"), "{error}");

    // A file is read when the store connects, and not when its URL is checked.
    let missing = "ca=DIR/none.pem";
    RedisStore::check_url(&url(missing)).unwrap();
    let error = builder(missing).connect().await.unwrap_err();
    assert!(error.to_string().contains("none.pem: entity not found"), "{error}");
}

#[tokio::test]
async fn a_server_with_an_untrusted_certificate_is_not_used() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = TlsServer::start(&authority.identity("127.0.0.1"), &authority, false);
    let elsewhere = TlsServer::start(&authority.identity("redis.example"), &authority, false);
    for (store, why) in [
        (server.store(trusting(&stranger)), "issuer is not known"),
        (elsewhere.store(trusting(&authority)), "another host name"),
    ] {
        let error = refused(store).await;
        assert_eq!(error.kind(), FailureKind::Untrusted, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
    // By default, the store trusts the authorities of the system. If there are any, none of them
    // has issued the server's certificate.
    match server.store(Tls::new()).connect_timeout(PATIENCE).connect().await.unwrap_err() {
        ConnectError::Refused(error) => assert_eq!(error.kind(), FailureKind::Untrusted),
        ConnectError::Certificate { why } => assert!(why.contains("the system has no"), "{why}"),
        other => panic!("{other}"),
    }
    // The certificate must contain the host name of the URL. Here it contains only the address.
    let named = format!("rediss://localhost:{}/", server.port);
    let error = refused(RedisStore::builder(&named).tls(trusting(&authority))).await;
    assert_eq!(error.kind(), FailureKind::Untrusted, "{error}");
}

/// An attacker between a service and its Redis server must not be able to switch off the limits.
#[tokio::test]
async fn requests_are_rejected_when_an_impostor_replaces_the_server() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let mut server = TlsServer::start(&authority.identity("127.0.0.1"), &authority, false);
    let store = server.store(trusting(&authority)).connect().await.unwrap();
    let limiter = RateLimiter::builder().limit("5/hour".parse().unwrap()).store(store);
    let limiter = limiter.build().unwrap();
    let origin = || async { limiter.check(&Subject::user("alice"), 1).await.origin() };
    eventually(|| async { origin().await == Origin::Store }).await;

    let mut server = tokio::task::spawn_blocking(move || {
        server.show(&stranger.identity("127.0.0.1"), &stranger);
        server
    })
    .await
    .unwrap();
    let untrusted = Origin::FailedClosed(FailureKind::Untrusted);
    eventually(|| async { origin().await == untrusted }).await;
    for _ in 0..5 {
        assert_eq!(origin().await, untrusted);
    }

    let _server = tokio::task::spawn_blocking(move || {
        server.show(&authority.identity("127.0.0.1"), &authority);
        server
    })
    .await
    .unwrap();
    eventually(|| async { origin().await == Origin::Store }).await;
}

#[tokio::test]
async fn a_server_that_requires_a_client_certificate_accepts_it() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = TlsServer::start(&authority.identity("127.0.0.1"), &authority, true);
    let tls = || trusting(&authority);

    let ours = authority.identity("service");
    let (certificate, key) = (&*ours.certificate, &*ours.key);
    let store = server.store(tls().client_certificate(certificate, key));
    assert_exactly_five_of_twenty_pass(patient(store).await).await;

    let folder = server.server.folder();
    let files = ["client.pem", "client-key.pem"].map(|name| folder.join(name));
    fs::write(&files[0], certificate).unwrap();
    fs::write(&files[1], key).unwrap();
    let [certificate_file, key_file] = files;
    let store = server.store(tls().client_certificate_files(certificate_file, key_file));
    patient(store).await;

    let error = refused(server.store(tls())).await;
    assert_eq!(error.kind(), FailureKind::Refused, "{error}");
    assert!(error.to_string().contains("asks for a client certificate"), "{error}");

    // The server does not trust this certificate, and rejects the connection. The client may see
    // only that the connection was closed, without the reason.
    let theirs = stranger.identity("service");
    let store = server.store(tls().client_certificate(theirs.certificate, theirs.key));
    match store.connect_timeout(PATIENCE).connect().await {
        Err(ConnectError::Refused(error)) => assert_eq!(error.kind(), FailureKind::Refused),
        Err(other) => panic!("{other}"),
        Ok(store) => {
            let limiter = RateLimiter::builder().limit("5/hour".parse().unwrap()).store(store);
            let decision = limiter.build().unwrap().check(&Subject::user("alice"), 1).await;
            assert_ne!(decision.origin(), Origin::Store);
        }
    }
}

/// Each option that may contain a secret contains one. The settings are valid or invalid. No error,
/// log line or `Debug` output may contain the secret.
#[tokio::test]
async fn no_error_or_log_line_shows_a_secret() {
    const SECRET: &str = crate::redis::failure::PASSWORD;

    let (log, _guard) = Log::capture();
    let authority = Authority::new();
    let server = TlsServer::start(&authority.identity("127.0.0.1"), &authority, true);
    server.server.query::<()>(&format!("ACL SETUSER rl on >{SECRET} ~* +@all")).await;
    let ours = authority.identity("service");
    let secret_line = ours.key.lines().nth(1).unwrap().to_owned();
    let other_key = authority.identity("other").key;
    let broken_key = ours.key.replace("-----END", "----- END");
    let tls = |key: &str| trusting(&authority).client_certificate(&*ours.certificate, key);
    let with = |key: &str| server.store(tls(key));
    let url = |text: &str| RedisStore::builder(&text.replace("PORT", &server.port.to_string()));

    let good = with(&ours.key).user("rl").password(SECRET);
    let mut shown = vec![format!("{good:?} {:?}", tls(&ours.key))];
    let store = patient(good).await;
    shown.push(format!("{store:?}"));
    for builder in [
        with(&other_key).user("rl").password(SECRET),
        with(&broken_key).user("rl").password(SECRET),
        with(SECRET),
        server.store(trusting(&authority).client_certificate(SECRET, SECRET)),
        server.store(Tls::new().ca(SECRET)),
        server.store(Tls::new().ca_file("/nowhere/ca.pem")).password(SECRET),
        with(&ours.key).user(SECRET).password("wrong"),
        with(&ours.key).user("rl").password(&format!("{SECRET}-wrong")),
        with(&ours.key).user("rl").password(SECRET).database(99),
        server.store(trusting(&authority)).user("rl").password(SECRET),
        url(&format!("rediss://rl:{SECRET}@127.0.0.1:PORT/#insecure")),
        url(&format!("redis://rl:{SECRET}@127.0.0.1:PORT/")).tls(tls(&ours.key)),
        url(&format!("rediss://rl:{SECRET}@127.0.0.1:PORT/x")),
    ] {
        shown.push(format!("{builder:?}"));
        let error = builder.connect_timeout(PATIENCE).connect().await.unwrap_err();
        let mut next: Option<&dyn std::error::Error> = Some(&error);
        while let Some(error) = next {
            shown.push(format!("{error} {error:?}"));
            next = error.source();
        }
    }
    shown.extend(log.all().into_iter().map(|(_, line)| line));
    for text in shown {
        assert!(!text.contains(SECRET) && !text.contains(&secret_line), "{text}");
    }
}
