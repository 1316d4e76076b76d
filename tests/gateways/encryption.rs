//! Gateways that call the decision server with TLS, and show it a certificate of their own.

use futures::future::join_all;
use reqwest::StatusCode;

use super::programs::{Gateway, OnOutage, Service, Setup, decision_server_with, printed};
use super::{LIMITS, client};
use crate::authority::Authority;

/// Returns a text of the configuration, and the one that has the TLS lines of the book in its place.
fn with_tls(kind: Gateway) -> (&'static str, String) {
    if kind == Gateway::Nginx {
        return ("proxy_pass http://rate_limiter/decide;", printed("nginx-tls.conf"));
    }
    let cluster = "    - name: rate_limiter\n";
    (cluster, format!("{cluster}{}", printed("envoy-tls.yaml")))
}

#[tokio::test]
async fn a_gateway_with_a_certificate_is_answered_over_tls_and_another_is_undecided() {
    let limits = format!(
        "server: {{ tls: {{ cert: server.crt, key: server.key, client_ca: ca.crt }} }}\n{LIMITS}"
    );
    join_all([Gateway::Nginx, Gateway::Envoy].map(async |kind| {
        let (ours, other) = (Authority::new(), Authority::new());
        let identity = ours.identity("decide.example");
        let (ca, service) = (ours.pem(), Service::start().await);
        let files = [
            ("ca.crt", ca.as_str()),
            ("server.crt", &identity.certificate),
            ("server.key", &identity.key),
        ];
        let server = decision_server_with(&limits, None, &files).await;
        for (authority, expected) in [(&ours, 5), (&other, 0)] {
            let gateway = authority.identity("gateway.example");
            let (text, new) = with_tls(kind);
            let setup = Setup::new(kind, OnOutage::Reject, &service, &server).replace(text, new);
            let setup = setup.file("ca.crt", &ca).file("gateway.crt", gateway.certificate);
            let gateway = setup.file("gateway.key", gateway.key).listening().await;
            let mut allowed = 0;
            for _ in 0..7 {
                let status = client(2).get(gateway.url("/")).send().await.unwrap().status();
                match status {
                    StatusCode::OK => allowed += 1,
                    StatusCode::TOO_MANY_REQUESTS if expected == 5 => {}
                    status => {
                        assert!(status.is_server_error() && expected == 0, "{kind:?}: {status}")
                    }
                }
            }
            assert_eq!(allowed, expected, "{kind:?}");
        }
    }))
    .await;
}
