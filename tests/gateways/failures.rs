//! Gateways whose service or decision server fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use reqwest::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::programs::{Gateway, OnOutage, Service, Setup, decision_server};
use super::{ALL, LIMITS, client};

/// A program that reads requests, and answers only `/healthz` and `/ready`.
struct Silent {
    port: u16,
    requests: Arc<AtomicUsize>,
}

/// The treatment of a connection after a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterRequest {
    Close,
    Hang,
}

impl Silent {
    async fn start(after: AfterRequest) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = Self { port: listener.local_addr().unwrap().port(), requests: Arc::default() };
        let requests = Arc::clone(&silent.requests);
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(serve(connection, after, Arc::clone(&requests)));
            }
        });
        silent
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

/// Counts the requests of a connection, by their heads. Bodies end with the word `end`.
async fn serve(mut connection: TcpStream, after: AfterRequest, requests: Arc<AtomicUsize>) {
    let (mut text, mut bytes, mut is_counted) = (Vec::new(), [0; 4096], false);
    while let Ok(length @ 1..) = connection.read(&mut bytes).await {
        text.extend_from_slice(&bytes[..length]);
        let Some(end) = text.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        if text.starts_with(b"GET /healthz") || text.starts_with(b"GET /ready") {
            let _ = connection.write_all(b"HTTP/1.0 200 OK\r\n\r\n").await;
            return;
        }
        if !is_counted {
            requests.fetch_add(1, Ordering::Relaxed);
            is_counted = true;
        }
        let body = &text[end + 4..];
        if text.starts_with(b"POST") && !body.windows(3).any(|window| window == b"end") {
            continue;
        }
        if after == AfterRequest::Close {
            return;
        }
        text.clear();
        is_counted = false;
    }
}

#[tokio::test]
async fn a_service_that_reads_a_post_and_closes_gets_it_once() {
    join_all(ALL.map(async |kind| {
        let outage = if kind.can(OnOutage::Allow) { OnOutage::Allow } else { OnOutage::Reject };
        let service = Service::start().await;
        let server = decision_server(LIMITS, None).await;
        let closing = Silent::start(AfterRequest::Close).await;
        let setup = Setup::new(kind, outage, &service, &server).service_port(closing.port);
        let gateway = setup.start().await;
        for count in 1..=3 {
            let request = client(2).post(gateway.url("/orders")).body("begin end");
            let status = request.send().await.unwrap().status();
            assert!(status.is_server_error(), "{kind:?}: {status}");
            assert_eq!(closing.requests(), count, "{kind:?}");
        }
    }))
    .await;
}

#[tokio::test]
async fn a_decision_server_that_hangs_gets_each_request_once() {
    join_all(ALL.map(async |kind| {
        // Traefik has no time limit. Envoy waits for the settings of HTTP/2 before it sends a request.
        if !kind.can(OnOutage::Allow) || kind == Gateway::Envoy {
            return;
        }
        let service = Service::start().await;
        let server = decision_server(LIMITS, None).await;
        let hanging = Silent::start(AfterRequest::Hang).await;
        let setup = Setup::new(kind, OnOutage::Allow, &service, &server).server_port(hanging.port);
        let gateway = setup.keep_time_limits().listening().await;
        for count in 1..=3 {
            let response = client(2).post(gateway.url("/")).body("text").send().await.unwrap();
            assert_eq!(response.status(), StatusCode::OK, "{kind:?}");
            assert_eq!(hanging.requests(), count, "{kind:?}");
            assert_eq!(service.requests(), count, "{kind:?}");
        }
    }))
    .await;
}

#[tokio::test]
async fn a_server_that_does_not_know_the_gateway_counts_as_undecided() {
    let limits = LIMITS.replace("127.0.0.1", "192.0.2.1");
    join_all(ALL.map(async |kind| {
        // Over gRPC, the server believes every peer.
        if kind == Gateway::Envoy {
            return;
        }
        for outage in [OnOutage::Allow, OnOutage::Reject] {
            if !kind.can(outage) {
                continue;
            }
            let service = Service::start().await;
            let server = decision_server(&limits, None).await;
            let gateway = Setup::new(kind, outage, &service, &server).listening().await;
            for _ in 0..10 {
                let status = client(2).get(gateway.url("/")).send().await.unwrap().status();
                match outage {
                    OnOutage::Allow => assert_eq!(status, StatusCode::OK, "{kind:?}"),
                    OnOutage::Reject => assert!(status.is_server_error(), "{kind:?}: {status}"),
                }
            }
            let passed = if outage == OnOutage::Allow { 10 } else { 0 };
            assert_eq!(service.requests(), passed, "{kind:?}");
        }
    }))
    .await;
}
