//! Calls over connections, whose peers the server sees itself.

use std::net::SocketAddr;

use axum::Router;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::call::{app, app_of, limiter};
use crate::http::HttpSettings;

const LOGIN: &str =
    "rules: { login: { match: { path: /login }, per: 'header:x-api-key', limits: 1/minute } }";

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Sends requests on one connection, each after the response to the last, and returns the responses.
async fn exchange(address: SocketAddr, requests: &[&str]) -> Vec<String> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut responses = Vec::new();
    for request in requests {
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        while !is_complete(&response) {
            let read = stream.read_buf(&mut response).await.unwrap();
            assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&response));
        }
        responses.push(String::from_utf8(response).unwrap());
    }
    responses
}

fn is_complete(response: &[u8]) -> bool {
    let text = String::from_utf8_lossy(response);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.is_none_or(|length| body.len() >= length.parse::<usize>().unwrap())
}

#[tokio::test]
async fn a_gateway_on_this_machine_asks_repeatedly_over_one_connection() {
    let trusted = HttpSettings { proxies: "127.0.0.1".parse().unwrap(), ..HttpSettings::default() };
    let address = serve(app_of(&limiter(LOGIN).build().unwrap(), trusted)).await;
    let call = "POST /decide HTTP/1.1\r\nHost: rl\r\nX-Forwarded-Method: GET\r\n\
                X-Forwarded-Uri: /login\r\nX-Forwarded-For: 10.0.0.1\r\nX-Api-Key: k\r\nContent-Length: 5\r\n\r\nhello";
    let responses = exchange(address, &[call, call]).await;
    assert!(responses[0].starts_with("HTTP/1.1 200 OK\r\n"), "{}", responses[0]);
    assert!(responses[1].starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{}", responses[1]);
    assert!(responses[1].contains("\r\nretry-after: "), "{}", responses[1]);
}

#[tokio::test]
async fn a_peer_that_is_not_trusted_learns_why_and_a_local_caller_is_answered() {
    let address = serve(app(LOGIN)).await;
    let decide = "GET /decide HTTP/1.1\r\nHost: rl\r\nX-Forwarded-Method: GET\r\n\
                  X-Forwarded-Uri: /login\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n";
    let body = r#"{"subjects": [{"rule": "login", "subject": "user:a"}]}"#;
    let check = format!(
        "POST /v1/check HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let responses = exchange(address, &[decide, &check]).await;
    assert!(responses[0].starts_with("HTTP/1.1 500 Internal Server Error\r\n"), "{}", responses[0]);
    assert!(responses[0].contains("proxies"), "{}", responses[0]);
    assert!(responses[1].starts_with("HTTP/1.1 200 OK\r\n"), "{}", responses[1]);
}
