//! Real gateways in front of a real service, which ask the decision server. Their configurations are
//! those of `docs/gateways/`.

mod clients;
mod encryption;
mod exchanges;
mod failures;
mod programs;
mod stores;

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::future::{join, join_all};
use programs::{Gateway, OnOutage, RunningGateway, Service, decision_server};
use reqwest::header::HeaderValue;
use reqwest::{Client, StatusCode};
use rl_tests::RedisServer;
use rl_tests::web::eventually;

const ALL: [Gateway; 5] =
    [Gateway::Nginx, Gateway::Caddy, Gateway::Traefik, Gateway::HaProxy, Gateway::Envoy];

/// Creates a client whose requests come from this address.
fn client(last: u8) -> Client {
    let address = Ipv4Addr::new(127, 0, 0, last);
    Client::builder().local_address(Some(address.into())).build().unwrap()
}

/// Five requests in a minute for each client.
const LIMITS: &str = "\
proxies: [127.0.0.1]
rules: { clients: { per: address, limits: [5/minute, 1000/day] } }
domains: { edge: { clients: { descriptor: [remote_address], limits: [5/minute, 1000/day] } } }
";

#[tokio::test]
async fn requests_within_the_limits_reach_the_service_and_others_get_429() {
    join_all(ALL.map(async |kind| {
        let service = Service::start().await;
        let server = decision_server(LIMITS, None).await;
        let gateway = RunningGateway::start(kind, OnOutage::Allow, &service, &server).await;
        let client = client(2);
        for remaining in (0..5).rev() {
            let request = client.post(gateway.url("/a%2Fb?x=1")).body("text");
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), StatusCode::OK, "{kind:?}");
            let shown = response.headers().get("x-rate-limit-remaining").cloned();
            if kind.shows_headers() {
                assert_eq!(shown.unwrap(), remaining.to_string().as_str(), "{kind:?}");
            }
            let body = response.text().await.unwrap();
            assert_eq!(body, "POST /a%2Fb?x=1 text", "{kind:?}");
        }
        let response = client.get(gateway.url("/")).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{kind:?}");
        let retry_after = response.headers()["retry-after"].to_str().unwrap().parse::<u64>();
        assert!((1..=60).contains(&retry_after.unwrap()), "{kind:?}");
        assert_eq!(response.headers()["x-rate-limit-remaining"], "0", "{kind:?}");
        let body = response.text().await.unwrap().to_lowercase();
        assert!(body.contains("too many requests"), "{kind:?}: {body}");
        assert_eq!(service.requests(), 5, "{kind:?}");
    }))
    .await;
}

#[tokio::test]
async fn forged_headers_give_a_client_no_other_counter() {
    join_all(ALL.map(async |kind| {
        let service = Service::start().await;
        let server = decision_server(LIMITS, None).await;
        let gateway = RunningGateway::start(kind, OnOutage::Allow, &service, &server).await;
        let client = client(3);
        for _ in 0..5 {
            client.get(gateway.url("/")).send().await.unwrap();
        }
        for (name, value) in [
            ("x-forwarded-for", "192.0.2.1"),
            ("x-real-ip", "192.0.2.1"),
            ("forwarded", "for=192.0.2.1"),
            ("x-envoy-external-address", "192.0.2.1"),
            ("x-forwarded-uri", "/other"),
            ("x-forwarded-method", "DELETE"),
            ("x-forwarded-host", "other.example"),
            ("x-original-uri", "/other"),
            ("x-original-method", "DELETE"),
            ("connection", "x-forwarded-for, x-forwarded-uri"),
        ] {
            for query in ["", "?deny=200", "?headers=original"] {
                let request = client.get(gateway.url(&format!("/{query}"))).header(name, value);
                let status = request.send().await.unwrap().status();
                // Envoy refuses a client that names these headers in `Connection`.
                let is_refused = name == "connection" && status == StatusCode::BAD_REQUEST;
                let is_denied = status == StatusCode::TOO_MANY_REQUESTS;
                assert!(is_denied || is_refused, "{kind:?}: {name} {query}: {status}");
            }
        }
        // A request with more headers than the decision server reads must not count as undecided.
        for (count, length) in
            [(600, 1), (78, 1), (90, 1), (96, 1), (1, 11_500), (1, 14_900), (1, 15_200)]
        {
            let value = "1".repeat(length);
            let many = (0..count).fold(client.get(gateway.url("/")), |request, number| {
                request.header(format!("x-{number}"), &value)
            });
            let status = many.send().await.unwrap().status();
            assert!(status.is_client_error(), "{kind:?}, {count} of {length} bytes: {status}");
        }
        // Bytes that are not UTF-8 must not make the call of the gateway fail.
        for value in [&b"\xff"[..], b"caf\xe9"] {
            let value = HeaderValue::from_bytes(value).unwrap();
            let response = client.get(gateway.url("/")).header("x-consumer", value).send().await;
            let status = response.unwrap().status();
            assert!(status.is_client_error(), "{kind:?}: {status}");
        }
        assert_eq!(service.requests(), 5, "{kind:?}");
    }))
    .await;
}

#[tokio::test]
async fn without_the_decision_server_requests_pass_or_are_rejected_as_configured() {
    join_all(ALL.map(async |kind| {
        for outage in [OnOutage::Allow, OnOutage::Reject] {
            if !kind.can(outage) {
                continue;
            }
            let service = Service::start().await;
            let mut server = decision_server(LIMITS, None).await;
            let gateway = RunningGateway::start(kind, outage, &service, &server).await;
            let client = client(4);
            let response = client.get(gateway.url("/")).send().await.unwrap();
            assert_eq!(response.status(), StatusCode::OK, "{kind:?}");
            server.kill();
            gateway.notices_outage(&client).await;
            let before = service.requests();
            for _ in 0..10 {
                let status = client.get(gateway.url("/")).send().await.unwrap().status();
                match outage {
                    OnOutage::Allow => assert_eq!(status, StatusCode::OK, "{kind:?}"),
                    OnOutage::Reject => assert!(status.is_server_error(), "{kind:?}: {status}"),
                }
            }
            let passed = if outage == OnOutage::Allow { 10 } else { 0 };
            assert_eq!(service.requests() - before, passed, "{kind:?}");
        }
    }))
    .await;
}

#[tokio::test]
async fn errors_of_the_service_reach_the_client_unchanged() {
    join_all(ALL.map(async |kind| {
        let service = Service::start().await;
        let server = decision_server(LIMITS, None).await;
        let gateway = RunningGateway::start(kind, OnOutage::Allow, &service, &server).await;
        for status in [403_u16, 429, 500, 503] {
            let response = client(5).get(gateway.url(&format!("/status/{status}"))).send().await;
            let response = response.unwrap();
            assert_eq!(response.status().as_u16(), status, "{kind:?}");
            assert_eq!(response.text().await.unwrap(), "of the service", "{kind:?}");
        }
        assert_eq!(service.requests(), 4, "{kind:?}");
    }))
    .await;
}

#[tokio::test]
async fn two_gateways_and_two_servers_on_one_redis_allow_exactly_the_limit() {
    const LIMIT: usize = 2_000;
    let limits = format!(
        "\
proxies: [127.0.0.1]
server: {{ deadline: 10s, on_store_failure: reject }}
rules: {{ clients: {{ per: address, limits: {LIMIT}/hour }} }}
domains: {{ edge: {{ clients: {{ descriptor: [remote_address], limits: {LIMIT}/hour }} }} }}
"
    );
    for kind in ALL {
        let redis = RedisServer::start();
        let service = Service::start().await;
        let mut gateways = Vec::new();
        for _ in 0..2 {
            let server = decision_server(&limits, Some(&redis.url())).await;
            let outage =
                if kind.can(OnOutage::Reject) { OnOutage::Reject } else { OnOutage::Allow };
            gateways.push((RunningGateway::start(kind, outage, &service, &server).await, server));
        }
        let client = client(6);
        let (sent, allowed, denied) =
            (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let workers = (0..16).map(async |worker: usize| {
            while sent.fetch_add(1, Ordering::Relaxed) < 5_000 {
                let url = gateways[worker % 2].0.url("/");
                let status = client.get(url).send().await.unwrap().status();
                match status {
                    StatusCode::OK => &allowed,
                    StatusCode::TOO_MANY_REQUESTS => &denied,
                    other => panic!("{kind:?}: {other}"),
                }
                .fetch_add(1, Ordering::Relaxed);
            }
        });
        join_all(workers).await;
        assert_eq!(allowed.into_inner(), LIMIT, "{kind:?}");
        assert_eq!(denied.into_inner(), 5_000 - LIMIT, "{kind:?}");
        assert_eq!(service.requests(), LIMIT, "{kind:?}");
    }
}

/// Clients see decisions while the rules change, and none is lost when the server stops.
#[tokio::test]
async fn clients_see_no_error_while_rules_change_and_while_the_server_stops() {
    let limits = |max: u32| {
        format!(
            "\
proxies: [127.0.0.1]
rules: {{ clients: {{ per: address, limits: {max}/day }} }}
domains: {{ edge: {{ clients: {{ descriptor: [remote_address], limits: {max}/day }} }} }}
"
        )
    };
    let of_outage = ALL.into_iter().filter(|kind| kind.can(OnOutage::Allow));
    join_all(of_outage.map(async |kind| {
        let service = Service::start().await;
        let mut server = decision_server(&limits(1_000_000), None).await;
        let gateway = RunningGateway::start(kind, OnOutage::Allow, &service, &server).await;
        let (allowed, denied) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let ended = AtomicBool::new(false);
        let workers = (0..4).map(async |worker| {
            let client = client(20 + worker);
            while !ended.load(Ordering::Relaxed) {
                let response = client.get(gateway.url("/")).send().await.unwrap();
                match response.status() {
                    StatusCode::OK => &allowed,
                    StatusCode::TOO_MANY_REQUESTS => &denied,
                    other => panic!("{kind:?}: {other}"),
                }
                .fetch_add(1, Ordering::Relaxed);
            }
        });
        let more = async |count: &AtomicUsize| {
            let before = count.load(Ordering::Relaxed);
            eventually(async || count.load(Ordering::Relaxed) > before + 20).await;
        };
        let operator = async {
            more(&allowed).await;
            server.change(&limits(1));
            more(&denied).await;
            server.change(&limits(1_000_000));
            more(&allowed).await;
            server.stop().await;
            more(&allowed).await;
            ended.store(true, Ordering::Relaxed);
        };
        join(join_all(workers), operator).await;
        assert_eq!(service.requests(), allowed.into_inner(), "{kind:?}");
    }))
    .await;
}
