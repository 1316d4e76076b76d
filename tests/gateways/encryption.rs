//! Gateways that call the decision server with TLS, and show it a certificate of their own.

use futures::future::join_all;
use reqwest::StatusCode;

use super::programs::{Gateway, OnOutage, Service, Setup, decision_server_with, printed};
use super::{ALL, LIMITS, client};
use crate::authority::Authority;

/// Returns a line of the configuration, and the lines of the book that replace or follow it.
fn with_tls(kind: Gateway) -> (&'static str, String) {
    let (line, file, is_replaced) = match kind {
        Gateway::Nginx => ("proxy_pass http://rate_limiter/decide;", "nginx-tls.conf", true),
        Gateway::Caddy => ("transport http {\n", "caddy-tls.conf", true),
        Gateway::Traefik => {
            ("        address: http://127.0.0.1:8080/decide\n", "traefik-tls.yaml", true)
        }
        Gateway::HaProxy => ("listen rate_limiter\n", "haproxy-tls.cfg", false),
        Gateway::Envoy => ("    - name: rate_limiter\n", "envoy-tls.yaml", false),
    };
    let before = if is_replaced { "" } else { line };
    (line, format!("{before}{}", printed(file)))
}

#[tokio::test]
async fn a_gateway_with_a_certificate_is_answered_over_tls_and_another_is_undecided() {
    let limits = format!(
        "server: {{ tls: {{ cert: server.crt, key: server.key, client_ca: ca.crt }} }}\n{LIMITS}"
    );
    join_all(ALL.map(async |kind| {
        let (ours, other) = (Authority::new(), Authority::new());
        // Traefik cannot be configured to expect another name than the host that it calls.
        let name = if kind == Gateway::Traefik { "127.0.0.1" } else { "decide.example" };
        let identity = ours.identity(name);
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
            let pair = format!("{}{}", gateway.certificate, gateway.key);
            let setup = setup.file("ca.crt", &ca).file("gateway.pem", pair);
            let setup = setup.file("gateway.crt", gateway.certificate);
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
