//! Servers that stop while clients send requests.

use std::process::{Command, id};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use rl_serve::Shutdown;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::clients::{Connection, Sent};
use crate::{GIVE_UP, Running, short_timeouts};

/// Sends requests until no connection can be opened. Returns their number.
async fn send_requests(
    address: std::net::SocketAddr,
    is_http2: bool,
    answered: Arc<AtomicUsize>,
) -> usize {
    let mut count = 0;
    while let Ok(mut connection) = Connection::open(address, is_http2).await {
        loop {
            match connection.get("/").await {
                Sent::Answered(body, closes) => {
                    assert_eq!(body, "hello");
                    count += 1;
                    answered.fetch_add(1, Ordering::Relaxed);
                    if closes {
                        break;
                    }
                }
                Sent::ConnectionEnded => break,
                Sent::Lost(error) => panic!("a request was lost: {error}"),
            }
        }
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_lost_and_connections_are_refused_after_sigterm_under_load() {
    let handled = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&handled);
    let hello = move || {
        let counted = Arc::clone(&counted);
        async move {
            tokio::task::yield_now().await;
            counted.fetch_add(1, Ordering::Relaxed);
            "hello"
        }
    };
    let app = Router::new().route("/", get(hello));
    // This test alone reacts to signals. Both listeners stop at the same signal.
    let shutdown = Shutdown::on_signal().unwrap();
    let first = Running::start_with(shutdown.clone(), app.clone(), |server| server.http2()).await;
    let second = Running::start_with(shutdown, app, |server| server).await;
    let answered = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..32)
        .map(|number| {
            let is_http2 = number % 4 == 1;
            let address = if number % 4 == 0 { second.address } else { first.address };
            tokio::spawn(send_requests(address, is_http2, Arc::clone(&answered)))
        })
        .collect();
    let under_load = async {
        while answered.load(Ordering::Relaxed) < 1_000 {
            tokio::task::yield_now().await;
        }
    };
    timeout(GIVE_UP, under_load).await.unwrap();
    let sent = Command::new("kill").args(["-s", "TERM", &id().to_string()]).status();
    assert!(sent.unwrap().success());
    let mut count = 0;
    for client in clients {
        count += timeout(GIVE_UP, client).await.unwrap().unwrap();
    }
    for server in [&first, &second] {
        assert!(TcpStream::connect(server.address).await.is_err());
    }
    // Every request that a handler began was answered.
    assert_eq!(count, handled.load(Ordering::Relaxed));
    first.ended().await;
    second.ended().await;
}

#[tokio::test]
async fn a_request_in_progress_is_answered_and_an_idle_server_stops_before_the_notice_ends() {
    let (begun, may_end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begin, end) = (Arc::clone(&begun), Arc::clone(&may_end));
    let slow = async move || {
        begin.notify_one();
        end.notified().await;
        "slow"
    };
    let app = Router::new().route("/slow", get(slow));
    let server = Running::start(app, |server| server.timeouts(short_timeouts())).await;
    let mut connection = Connection::open(server.address, false).await.unwrap();
    let request = tokio::spawn(async move { connection.get("/slow").await });
    begun.notified().await;
    server.shutdown.start();
    // The listener is closed while the request is in progress.
    while TcpStream::connect(server.address).await.is_ok() {}
    assert!(!server.task.is_finished());
    may_end.notify_one();
    assert!(matches!(request.await.unwrap(), Sent::Answered(body, true) if body == "slow"));
    server.ended().await;

    let mut timeouts = short_timeouts();
    timeouts.notice = Duration::from_secs(3_600);
    let idle = Running::start(Router::new(), |server| server.timeouts(timeouts)).await;
    idle.stop().await;
}

#[tokio::test]
async fn a_request_that_does_not_end_is_cut_when_the_time_to_drain_is_over() {
    let begun = Arc::new(Notify::new());
    let begin = Arc::clone(&begun);
    let endless = async move || {
        begin.notify_one();
        std::future::pending::<&str>().await
    };
    let app = Router::new().route("/", get(endless));
    let mut timeouts = short_timeouts();
    timeouts.drain = Duration::from_millis(100);
    let server = Running::start(app, |server| server.timeouts(timeouts)).await;
    let mut connection = Connection::open(server.address, false).await.unwrap();
    let request = tokio::spawn(async move { connection.get("/").await });
    begun.notified().await;
    server.stop().await;
    assert!(matches!(request.await.unwrap(), Sent::Lost(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_too_old_are_closed_without_losing_requests() {
    let app = Router::new().route("/", get(async || "hello"));
    let server = Running::start(app, |server| {
        let age = Duration::from_millis(200);
        server.timeouts(short_timeouts()).http2().max_connection_age(age)
    })
    .await;
    for is_http2 in [false, true] {
        let mut connection = Connection::open(server.address, is_http2).await.unwrap();
        let ended = async {
            loop {
                match connection.get("/").await {
                    Sent::Answered(_, false) => {}
                    Sent::Answered(_, true) | Sent::ConnectionEnded => return,
                    Sent::Lost(error) => panic!("a request was lost: {error}"),
                }
            }
        };
        timeout(GIVE_UP, ended).await.unwrap();
    }
    server.stop().await;
}
