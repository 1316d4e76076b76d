//! Denials, headers, addresses and WebSockets, as clients and the service see them behind a gateway.

use futures::future::join_all;
use futures::{SinkExt, StreamExt};
use reqwest::{Client, StatusCode};
use rl_tests::RedisServer;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::programs::{Gateway, OnOutage, RunningGateway, Service, Setup, decision_server};
use super::{ALL, LIMITS, client};

/// A limit for each client, and rules that need a key.
const KEYED: &str = "\
proxies: [127.0.0.1]
server: { headers: ietf }
rules:
  clients: { match: { path: /limited }, per: address, limits: 1/hour }
  keyed: { match: { path: /keyed }, per: 'header:x-api-key', limits: 5/hour }
";

#[tokio::test]
async fn a_denial_has_the_status_and_the_content_type_of_the_server() {
    join_all(ALL.map(async |kind| {
        // Envoy sends descriptors, which need no key.
        if kind == Gateway::Envoy {
            return;
        }
        let service = Service::start().await;
        let server = decision_server(KEYED, None).await;
        let outage = if kind.can(OnOutage::Allow) { OnOutage::Allow } else { OnOutage::Reject };
        let gateway = Setup::new(kind, outage, &service, &server).listening().await;
        let client = client(2);
        assert_eq!(client.get(gateway.url("/limited")).send().await.unwrap().status(), 200);
        let keys: [(&str, &[&str], u16); 3] =
            [("/limited", &[], 429), ("/keyed", &[], 403), ("/keyed", &["a", "b"], 400)];
        for (path, keys, expected) in keys {
            let asked = client.get(format!("{}/decide", server.url()));
            let asked = asked.header("x-forwarded-method", "GET").header("x-forwarded-uri", path);
            let asked = asked.header("x-forwarded-for", "127.0.0.2");
            let through = client.get(gateway.url(path));
            let keyed = |request| {
                keys.iter().fold(request, |request: reqwest::RequestBuilder, key| {
                    request.header("x-api-key", *key)
                })
            };
            // The address of the gateway, which is one of proxies.
            let direct = keyed(asked).build().unwrap();
            let direct = Client::new().execute(direct).await.unwrap();
            assert_eq!(direct.status(), expected, "{path} {keys:?}");
            let denied = keyed(through).send().await.unwrap();
            assert_eq!(denied.status(), expected, "{kind:?}: {path} {keys:?}");
            let [direct_type, denied_type] =
                [&direct, &denied].map(|response| response.headers()["content-type"].clone());
            assert_eq!(denied_type, direct_type, "{kind:?}: {path} {keys:?}");
            assert_eq!(
                denied.headers().get("ratelimit").is_some(),
                direct.headers().get("ratelimit").is_some(),
                "{kind:?}: {path} {keys:?}"
            );
            if kind != Gateway::Nginx {
                let (denied, direct) = (denied.text().await.unwrap(), direct.text().await.unwrap());
                assert_eq!(denied, direct, "{kind:?}: {path} {keys:?}");
            }
        }
        assert_eq!(service.requests(), 1, "{kind:?}");
    }))
    .await;
}

#[tokio::test]
async fn a_rejection_by_the_failure_policy_is_no_outage_of_the_decision_server() {
    let limits = format!("server: {{ on_store_failure: reject }}\n{LIMITS}");
    let redis = RedisServer::stopped();
    join_all(ALL.map(async |kind| {
        // forwardAuth cannot allow requests during an outage.
        if !kind.can(OnOutage::Allow) {
            return;
        }
        let service = Service::start().await;
        let server = decision_server(&limits, Some(&redis.url())).await;
        let gateway = Setup::new(kind, OnOutage::Allow, &service, &server).listening().await;
        let status = client(2).get(gateway.url("/")).send().await.unwrap().status();
        // The protocol of Envoy has only one status for a denial.
        let expected = match kind {
            Gateway::Envoy => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        assert_eq!(status, expected, "{kind:?}");
        assert_eq!(service.requests(), 0, "{kind:?}");
    }))
    .await;
}

#[tokio::test]
async fn headers_of_the_ietf_reach_clients_through_gateways_that_pass_headers_on() {
    let limits = format!("server: {{ headers: ietf }}\n{LIMITS}");
    join_all(ALL.map(async |kind| {
        let service = Service::start().await;
        let server = decision_server(&limits, None).await;
        let gateway = RunningGateway::start(kind, OnOutage::Allow, &service, &server).await;
        let response = client(2).get(gateway.url("/")).send().await.unwrap();
        let policy = response.headers().get("ratelimit-policy");
        let policy = policy.is_some_and(|value| value.to_str().unwrap().contains(";q=5;w=60"));
        assert_eq!(policy, kind.shows_headers(), "{kind:?}");
        assert_eq!(response.headers().contains_key("ratelimit"), kind.shows_headers(), "{kind:?}");
        assert!(!response.headers().contains_key("x-rate-limit-limit"), "{kind:?}");
        assert_eq!(response.text().await.unwrap(), "GET / ", "{kind:?}");
    }))
    .await;
}

#[tokio::test]
async fn a_gateway_serves_any_host_and_only_at_its_own_address() {
    join_all(ALL.map(async |kind| {
        let service = Service::start().await;
        let server = decision_server(LIMITS, None).await;
        let gateway = RunningGateway::start(kind, OnOutage::Allow, &service, &server).await;
        for host in ["shop.example", "localhost", "192.0.2.1:8000"] {
            let request = client(2).get(gateway.url("/")).header("host", host);
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), StatusCode::OK, "{kind:?}: {host}");
            assert_eq!(response.text().await.unwrap(), "GET / ", "{kind:?}: {host}");
        }
        let other = TcpStream::connect(("127.0.0.2", gateway.port())).await;
        assert!(other.is_err(), "{kind:?} listens on other addresses");
    }))
    .await;
}

#[tokio::test]
async fn web_sockets_pass_within_the_limits_and_their_denial_is_429() {
    const LIMITS: &str = "\
proxies: [127.0.0.1]
rules: { sockets: { match: { path: /socket }, per: address, limits: 1/hour } }
";
    join_all(ALL.map(async |kind| {
        let service = Service::start().await;
        let server = decision_server(LIMITS, None).await;
        let gateway = Setup::new(kind, OnOutage::Allow, &service, &server).listening().await;
        let url = gateway.url("/socket").replace("http:", "ws:");
        let (mut socket, _) = tokio_tungstenite::connect_async(&url)
            .await
            .unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        for text in ["first", "second"] {
            socket.send(Message::text(text)).await.unwrap();
            let answer = socket.next().await.unwrap().unwrap();
            assert_eq!(answer, Message::text(text), "{kind:?}");
        }
        match tokio_tungstenite::connect_async(&url).await {
            Err(Error::Http(response)) => {
                assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{kind:?}");
            }
            other => panic!("{kind:?}: {other:?}"),
        }
    }))
    .await;
}
