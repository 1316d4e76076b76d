use std::time::Duration;

use futures::{SinkExt, StreamExt};
use rl_tests::web::{self, Site, eventually, limiter, new_year};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use super::app;

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Connects to the service, or returns the status of its response.
async fn connect(site: &Site) -> Result<Socket, u16> {
    let url = site.url("/echo").replacen("http", "ws", 1);
    match connect_async(url).await {
        Ok((socket, _)) => Ok(socket),
        Err(Error::Http(response)) => Err(response.status().as_u16()),
        Err(error) => panic!("{error}"),
    }
}

/// Sends a message, and returns the answer.
async fn exchange(socket: &mut Socket) -> Message {
    socket.send(Message::text("hello")).await.unwrap();
    socket.next().await.unwrap().unwrap()
}

fn close_code(message: &Message) -> Option<CloseCode> {
    match message {
        Message::Close(Some(frame)) => Some(frame.code),
        _ => None,
    }
}

#[tokio::test]
async fn a_connection_counts_until_the_task_of_its_socket_ends() {
    let clock = new_year();
    let (connections, messages) = (&["2:concurrency"], &["100/second"]);
    let app = app(limiter(&clock, connections), limiter(&clock, messages));
    let site = web::axum::serve(app);

    let (mut first, mut second) = (connect(&site).await.unwrap(), connect(&site).await.unwrap());
    // The responses to both handshakes have ended long before.
    assert_eq!(exchange(&mut first).await, Message::text("hello"));
    assert_eq!(exchange(&mut second).await, Message::text("hello"));
    assert_eq!(connect(&site).await.unwrap_err(), 429);

    first.close(None).await.unwrap();
    eventually(async || connect(&site).await.is_ok()).await;
    assert_eq!(exchange(&mut second).await, Message::text("hello"));
}

#[tokio::test]
async fn a_client_that_sends_too_many_messages_is_disconnected() {
    let clock = new_year();
    let (connections, messages) = (&["9:concurrency"], &["3/second"]);
    let app = app(limiter(&clock, connections), limiter(&clock, messages));
    let site = web::axum::serve(app);

    let mut first = connect(&site).await.unwrap();
    for _ in 0..3 {
        assert_eq!(exchange(&mut first).await, Message::text("hello"));
    }
    assert_eq!(close_code(&exchange(&mut first).await), Some(CloseCode::Policy));
    assert!(first.next().await.is_none_or(|end| end.is_err()), "the connection has ended");

    // All connections of a client share its limit.
    let mut second = connect(&site).await.unwrap();
    assert_eq!(close_code(&exchange(&mut second).await), Some(CloseCode::Policy));

    clock.advance(Duration::from_secs(1));
    let mut third = connect(&site).await.unwrap();
    assert_eq!(exchange(&mut third).await, Message::text("hello"));
}
