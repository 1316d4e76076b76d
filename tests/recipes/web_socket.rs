use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use axum::routing::any;
use axum::{Extension, Router};
use rl_tower::{CountedSubject, Permit, RateLimitLayer, RateLimiter, Subject};

/// `connections` has a limit such as `5:concurrency`, and `messages` one such as `20/second`.
fn app(connections: RateLimiter, messages: RateLimiter) -> Router {
    Router::new()
        .route("/echo", any(connect))
        .layer(RateLimitLayer::new(connections).expose_subject())
        .with_state(messages)
}

async fn connect(
    State(messages): State<RateLimiter>,
    Extension(CountedSubject(client)): Extension<CountedSubject>,
    permit: Option<Extension<Permit>>, // `None` if the store could not decide
    upgrade: WebSocketUpgrade,
) -> Response {
    upgrade.on_upgrade(async move |socket| {
        echo(socket, &messages, &client).await;
        drop(permit); // Until here, the connection counts.
    })
}

async fn echo(mut socket: WebSocket, messages: &RateLimiter, client: &Subject) {
    while let Some(Ok(message)) = socket.recv().await {
        if !messages.check(client, 1).await.is_allowed() {
            let reason = "too many messages".into();
            let close = CloseFrame { code: close_code::POLICY, reason };
            let _ = socket.send(Message::Close(Some(close))).await;
            return;
        }
        if let Message::Text(text) = message {
            let _ = socket.send(Message::Text(text)).await;
        }
    }
}

#[cfg(test)]
mod tests;
