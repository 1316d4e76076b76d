//! Requests and responses in the form of OpenAI: whole, or as a stream of server-sent events.

use std::convert::Infallible;
use std::future::ready;
use std::pin::pin;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::Next;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, Stream, StreamExt};
use rl_tower::Cost;
use serde_json::{Value, json};

use crate::model::Piece;

/// The path of completions.
pub(crate) const COMPLETIONS: &str = "/v1/chat/completions";
/// The largest body that is read.
const MAX_BODY: usize = 1 << 20;
/// The tokens of an answer if the request does not bound them.
const MAX_TOKENS: u64 = 100;

/// The values of a request that decide its cost and the form of its response.
#[derive(Clone, Copy)]
pub(crate) struct Completion {
    pub(crate) prompt_tokens: u64,
    pub(crate) max_tokens: u64,
    pub(crate) is_stream: bool,
    pub(crate) includes_usage: bool,
}

impl Completion {
    fn parse(body: &[u8]) -> Option<Self> {
        let body: Value = serde_json::from_slice(body).ok()?;
        // A real gateway counts with the tokenizer of the model. Here a word is a token.
        let words =
            |message: &Value| message["content"].as_str().map(|it| it.split_whitespace().count());
        let words: Option<Vec<usize>> = body["messages"].as_array()?.iter().map(words).collect();
        let max_tokens = match &body["max_tokens"] {
            Value::Null => MAX_TOKENS,
            tokens => tokens.as_u64()?,
        };
        Some(Self {
            prompt_tokens: words?.iter().sum::<usize>() as u64,
            max_tokens,
            is_stream: body["stream"].as_bool().unwrap_or(false),
            includes_usage: body["stream_options"]["include_usage"].as_bool().unwrap_or(false),
        })
    }

    /// Returns the largest number of tokens that the request may use.
    pub(crate) fn estimate(&self) -> Cost {
        Cost::new(self.prompt_tokens.saturating_add(self.max_tokens))
    }
}

/// Reads the body of a completion, so that the limiter can estimate its cost.
pub(crate) async fn read(request: Request, next: Next) -> Result<Response, Response> {
    if request.uri().path() != COMPLETIONS {
        return Ok(next.run(request).await);
    }
    let refuse =
        |status, message| json(status, error("invalid_request_error", "invalid_body", message));
    let (mut head, body) = request.into_parts();
    let body = to_bytes(body, MAX_BODY).await;
    let body = body.map_err(|_| refuse(StatusCode::PAYLOAD_TOO_LARGE, "The body is too large."))?;
    let completion = Completion::parse(&body).ok_or_else(|| {
        refuse(StatusCode::BAD_REQUEST, "Expected a JSON object with messages that have content.")
    })?;
    head.extensions.insert(completion);
    Ok(next.run(Request::from_parts(head, Body::from(body))).await)
}

/// Returns the answer as server-sent events, one for each token.
pub(crate) fn stream(
    answer: impl Stream<Item = Piece> + Send + 'static,
    includes_usage: bool,
) -> Response {
    let chunk = move |piece| {
        let chunk = match piece {
            Piece::Token(token) => {
                json!([{ "index": 0, "delta": { "content": token }, "finish_reason": null }])
            }
            Piece::End { .. } => json!([{ "index": 0, "delta": {}, "finish_reason": "stop" }]),
        };
        let mut chunk = json!({ "object": "chat.completion.chunk", "choices": chunk });
        if let Piece::End { prompt_tokens, completion_tokens } = piece
            && includes_usage
        {
            chunk["usage"] = usage(prompt_tokens, completion_tokens);
        }
        chunk.to_string()
    };
    let events = answer.map(chunk).chain(stream::once(ready("[DONE]".to_owned())));
    Sse::new(events.map(|data| Ok::<_, Infallible>(Event::default().data(data)))).into_response()
}

/// Waits for the end of the answer, and returns it as one document.
pub(crate) async fn whole(answer: impl Stream<Item = Piece>) -> Response {
    let (mut content, mut used) = (String::new(), Value::Null);
    let mut answer = pin!(answer);
    while let Some(piece) = answer.next().await {
        match piece {
            Piece::Token(token) => content.push_str(token),
            Piece::End { prompt_tokens, completion_tokens } => {
                used = usage(prompt_tokens, completion_tokens);
            }
        }
    }
    let message = json!({ "role": "assistant", "content": content });
    let choices = json!([{ "index": 0, "message": message, "finish_reason": "stop" }]);
    let completion = json!({ "object": "chat.completion", "choices": choices, "usage": used });
    json(StatusCode::OK, completion)
}

fn usage(prompt_tokens: u64, completion_tokens: u64) -> Value {
    json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    })
}

/// Returns an error in the form that clients of OpenAI read.
pub(crate) fn error(kind: &str, code: &str, message: &str) -> Value {
    json!({ "error": { "message": message.trim(), "type": kind, "param": null, "code": code } })
}

/// Returns a response in JSON.
pub(crate) fn json(status: StatusCode, value: Value) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], format!("{value}\n")).into_response()
}
