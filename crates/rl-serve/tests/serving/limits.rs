//! Slow clients, and too many connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use rl_serve::PeerShares;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use crate::clients::{Connection, Sent};
use crate::{GIVE_UP, Running, short_timeouts};

/// The first bytes of a client over HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[tokio::test]
async fn slow_heads_and_idle_connections_are_closed_and_hold_no_other_client() {
    let app = Router::new().route("/", get(async || "hello"));
    for accepts_http2 in [false, true] {
        let server = Running::start(app.clone(), |server| {
            let server = if accepts_http2 { server.http2() } else { server };
            server.timeouts(short_timeouts())
        })
        .await;
        let mut slow = Vec::new();
        for count in 0..100 {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            let sent: &[u8] =
                [&b"GET / HTTP/1.1\r\nhost: x\r\nx-slow: "[..], b"", b"PRI * HT", PREFACE]
                    [count % 4];
            stream.write_all(sent).await.unwrap();
            slow.push(stream);
        }
        for is_http2 in [false, accepts_http2] {
            let mut connection = Connection::open(server.address, is_http2).await.unwrap();
            assert!(matches!(connection.get("/").await, Sent::Answered(..)));
        }
        for mut stream in slow {
            let mut rest = Vec::new();
            let ended = timeout(GIVE_UP, stream.read_to_end(&mut rest)).await;
            assert!(ended.is_ok(), "the connection is still open");
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn a_client_that_sends_its_body_slowly_gets_408_and_holds_no_other_client() {
    let app = Router::new()
        .route("/", post(async |body: Bytes| body.len().to_string()))
        .route("/", get(async || "hello"));
    let mut timeouts = short_timeouts();
    timeouts.request = Duration::from_millis(500);
    let server = Running::start(app, |server| server.timeouts(timeouts)).await;
    let (mut from, mut to) = TcpStream::connect(server.address).await.unwrap().into_split();
    to.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n").await.unwrap();
    let trickle = tokio::spawn(async move {
        let mut ticks = interval(Duration::from_millis(20));
        while to.write_all(b"x").await.is_ok() {
            ticks.tick().await;
        }
    });
    let mut connection = Connection::open(server.address, false).await.unwrap();
    assert!(matches!(connection.get("/").await, Sent::Answered(..)));
    let mut response = vec![0; 12];
    timeout(GIVE_UP, from.read_exact(&mut response)).await.unwrap().unwrap();
    assert_eq!(response, b"HTTP/1.1 408");
    trickle.abort();
    server.stop().await;
}

#[tokio::test]
async fn a_head_that_is_too_long_is_refused() {
    let app = Router::new().route("/", get(async || "hello"));
    let server = Running::start(app, |server| server).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!("GET / HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "x".repeat(70_000));
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut response = vec![0; 12];
    timeout(GIVE_UP, stream.read_exact(&mut response)).await.unwrap().unwrap();
    assert_eq!(response, b"HTTP/1.1 431");
    server.stop().await;
}

#[tokio::test]
async fn connections_above_the_maximum_wait_until_another_one_ends() {
    let peer = async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.to_string();
    let app = Router::new().route("/", get(peer));
    let server = Running::start(app, |server| server.max_connections(2)).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut connection = Connection::open(server.address, false).await.unwrap();
        assert!(matches!(connection.get("/").await, Sent::Answered(..)));
        open.push(connection);
    }
    let mut waiting = Connection::open(server.address, false).await.unwrap();
    let waiting = tokio::spawn(async move { waiting.get("/").await });
    for _ in 0..100 {
        assert!(matches!(open[0].get("/").await, Sent::Answered(..)));
    }
    assert!(!waiting.is_finished());
    open.pop();
    let answer = timeout(GIVE_UP, waiting).await.unwrap().unwrap();
    assert!(matches!(answer, Sent::Answered(..)));
    server.stop().await;
}

#[tokio::test]
async fn a_peer_that_opens_all_connections_that_it_can_leaves_some_to_others() {
    let app = Router::new().route("/", get(async || "hello"));
    let shares = PeerShares::new("connections", 9);
    let of_server = shares.clone();
    let server =
        Running::start(app, |server| server.max_connections(9).share_connections(of_server)).await;
    let hostile = async || {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        socket.connect(server.address).await.unwrap()
    };
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(hostile().await);
    }
    for _ in 0..50 {
        let mut refused = hostile().await;
        let ended = timeout(GIVE_UP, refused.read(&mut [0])).await.unwrap();
        assert!(matches!(ended, Ok(0) | Err(_)), "it was answered");
    }
    assert_eq!((shares.held(), shares.refused()), (4, 50));
    let mut gateway = Connection::open(server.address, false).await.unwrap();
    assert!(matches!(gateway.get("/").await, Sent::Answered(..)));
    // The end of a connection frees its share.
    drop(open);
    let freed = async {
        while shares.held() > 1 {
            assert!(matches!(gateway.get("/").await, Sent::Answered(..)));
        }
    };
    timeout(GIVE_UP, freed).await.unwrap();
    server.stop().await;
}

/// Fault: each connection could hold the heads and bodies of 256 requests, without a bound in all.
#[tokio::test]
async fn requests_of_a_peer_take_no_more_memory_than_its_share() {
    let app = Router::new()
        .route("/", post(async |body: Bytes| body.len().to_string()))
        .route("/", get(async || "hello"));
    let bytes = PeerShares::new("request_bytes", 1_000_000);
    let of_server = bytes.clone();
    let server = Running::start(app, |server| server.http2().share_memory(of_server)).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let stream = socket.connect(server.address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    // Bodies that never end, and are sent as fast as the server reads them.
    let mut hostile = JoinSet::new();
    for _ in 0..100 {
        let mut client = client.clone().ready().await.unwrap();
        let request = http::Request::post("http://localhost/").body(()).unwrap();
        let (response, mut body) = client.send_request(request, false).unwrap();
        hostile.spawn(async move {
            while body.send_data(vec![b'x'; 1_000].into(), false).is_ok() {
                body.reserve_capacity(1_000);
                if !matches!(std::future::poll_fn(|c| body.poll_capacity(c)).await, Some(Ok(_))) {
                    break;
                }
            }
            response.await.map(|response| response.status().as_u16())
        });
    }
    let refused = timeout(GIVE_UP, hostile.join_next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(refused, Ok(400..) | Err(_)), "{refused:?}");
    assert!(bytes.refused() > 0 && bytes.held() <= 390_000, "{bytes:?}");
    for is_http2 in [false, true] {
        let mut gateway = Connection::open(server.address, is_http2).await.unwrap();
        assert!(matches!(gateway.get("/").await, Sent::Answered(body, _) if body == "hello"));
    }
    drop((hostile, client));
    let freed = async {
        while bytes.held() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(GIVE_UP, freed).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn no_more_connections_than_the_maximum_are_served_at_once() {
    let (current, highest) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (inside, most) = (Arc::clone(&current), Arc::clone(&highest));
    let handler = async move || {
        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        inside.fetch_sub(1, Ordering::SeqCst);
        "hello"
    };
    let app = Router::new().route("/", get(handler));
    let server = Running::start(app, |server| server.max_connections(3)).await;
    let address = server.address;
    let clients: Vec<_> = (0..30)
        .map(|_| {
            tokio::spawn(async move {
                let mut connection = Connection::open(address, false).await.unwrap();
                assert!(matches!(connection.get("/").await, Sent::Answered(..)));
            })
        })
        .collect();
    for client in clients {
        timeout(GIVE_UP, client).await.unwrap().unwrap();
    }
    assert_eq!(highest.load(Ordering::SeqCst), 3);
    server.stop().await;
}

#[tokio::test]
async fn connections_that_wait_in_the_backlog_are_answered_when_the_server_stops() {
    let app = Router::new().route("/", get(async || "hello"));
    let server =
        Running::start(app, |server| server.max_connections(1).timeouts(short_timeouts())).await;
    let mut first = Connection::open(server.address, false).await.unwrap();
    assert!(matches!(first.get("/").await, Sent::Answered(..)));
    let mut waiting = TcpStream::connect(server.address).await.unwrap();
    waiting.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    server.stop().await;
    let mut response = String::new();
    timeout(GIVE_UP, waiting.read_to_string(&mut response)).await.unwrap().unwrap();
    assert!(response.contains("connection: close") && response.ends_with("hello"), "{response}");
}
