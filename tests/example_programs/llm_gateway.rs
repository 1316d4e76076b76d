//! The gateway to a language model, with counters in memory and on Redis.

use reqwest::{RequestBuilder, Response};
use rl_tests::RedisServer;
use rl_tests::web::{client, eventually};
use serde_json::{Value, json};

use crate::known_faults::running_programs::Program;

const PROGRAM: &str = env!("CARGO_BIN_EXE_example-llm-gateway");

struct Gateway {
    program: Program,
    _redis: Option<RedisServer>,
}

/// The units that an account has used under each rule.
#[derive(Debug, PartialEq, Eq)]
struct Used {
    requests: u64,
    streams: u64,
    tokens: u64,
    organisation: u64,
}

impl Gateway {
    /// Starts two gateways: one with counters in memory, and one on Redis.
    async fn on_each_store() -> [Self; 2] {
        let redis = RedisServer::start();
        let url = redis.url();
        let in_memory = Program::start(PROGRAM, &[]).await;
        let on_redis = Program::start(PROGRAM, &[("RL_REDIS_URL", &url)]).await;
        [Self { program: in_memory, _redis: None }, Self { program: on_redis, _redis: Some(redis) }]
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.program.address)
    }

    /// Returns a request for an answer of at most `max_tokens` to a prompt of two tokens.
    fn ask(&self, key: &str, max_tokens: u64, is_stream: bool) -> RequestBuilder {
        let body = json!({
            "stream": is_stream,
            "stream_options": { "include_usage": true },
            "max_tokens": max_tokens,
            "messages": [{ "role": "user", "content": "please count" }],
        });
        let request = client().post(self.url("/v1/chat/completions"));
        request.bearer_auth(key).body(body.to_string())
    }

    /// Opens a stream, and waits for its first token.
    async fn open_stream(&self, key: &str, max_tokens: u64) -> Response {
        let mut response = self.ask(key, max_tokens, true).send().await.unwrap();
        assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
        assert!(response.chunk().await.unwrap().is_some());
        response
    }

    async fn used(&self, key: &str) -> Used {
        let request = client().get(self.url("/v1/usage")).bearer_auth(key);
        let units: Value = json_of(request.send().await.unwrap()).await;
        let of = |rule: &str| units[rule].as_u64().unwrap();
        Used {
            requests: of("requests"),
            streams: of("streams"),
            tokens: of("tokens"),
            organisation: of("organisation"),
        }
    }

    /// Waits until an account has used these numbers of requests and tokens, and has no open
    /// stream.
    async fn settled(&self, key: &str, requests: u64, tokens: u64) {
        let expected = Used { requests, streams: 0, tokens, organisation: tokens };
        eventually(async || self.used(key).await == expected).await;
    }
}

async fn json_of(response: Response) -> Value {
    serde_json::from_str(&response.text().await.unwrap()).unwrap()
}

#[tokio::test]
async fn an_estimate_is_settled_at_the_usage_of_the_answer() {
    for gateway in Gateway::on_each_store().await {
        let whole = json_of(gateway.ask("sk-alice", 3, false).send().await.unwrap()).await;
        assert_eq!(whole["choices"][0]["message"]["content"], "one two three ");
        assert_eq!(whole["usage"]["total_tokens"], 5);
        gateway.settled("sk-alice", 1, 5).await;

        // The model ends after 40 tokens, although 300 are allowed.
        let stream = gateway.ask("sk-alice", 300, true).send().await.unwrap();
        assert_eq!(stream.headers()["content-type"], "text/event-stream");
        let events = stream.text().await.unwrap();
        let events: Vec<&str> = events.lines().filter_map(|it| it.strip_prefix("data: ")).collect();
        let [tokens @ .., end, "[DONE]"] = &*events else { panic!("{events:?}") };
        let token: Value = serde_json::from_str(tokens[0]).unwrap();
        assert_eq!((tokens.len(), &token["choices"][0]["delta"]["content"]), (40, &json!("one ")));
        let end: Value = serde_json::from_str(end).unwrap();
        assert_eq!(end["usage"]["total_tokens"], 42);
        gateway.settled("sk-alice", 2, 47).await;
    }
}

#[tokio::test]
async fn a_client_that_disconnects_pays_for_the_tokens_that_it_received() {
    for gateway in Gateway::on_each_store().await {
        let stream = gateway.open_stream("sk-alice", 300).await;
        let during = gateway.used("sk-alice").await;
        let estimate = Used { requests: 1, streams: 1, tokens: 302, organisation: 302 };
        assert_eq!(during, estimate);
        drop(stream);
        eventually(async || gateway.used("sk-alice").await.streams == 0).await;
        eventually(async || gateway.used("sk-alice").await.tokens < 302).await;
        let Used { requests, tokens, .. } = gateway.used("sk-alice").await;
        // At least the prompt and the first token were used, but not all 40 tokens of the whole
        // answer.
        assert!((3..42).contains(&tokens), "{tokens}");
        gateway.settled("sk-alice", requests, tokens).await;
    }
}

#[tokio::test]
async fn a_denied_request_is_charged_under_no_rule() {
    for gateway in Gateway::on_each_store().await {
        let first = gateway.open_stream("sk-alice", 400).await;
        let second = gateway.open_stream("sk-alice", 400).await;
        let before = Used { requests: 2, streams: 2, tokens: 804, organisation: 804 };
        let denied = gateway.ask("sk-alice", 1, true).send().await.unwrap();
        assert_eq!(denied.status(), 429);
        let error = json_of(denied).await["error"].take();
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("requests"), &json!("rate_limit_exceeded"))
        );
        assert!(error["message"].as_str().unwrap().contains("at the same time"), "{error}");

        // Bob has used nothing. But his organisation has only 696 tokens left.
        let denied = gateway.ask("sk-bob", 700, false).send().await.unwrap();
        assert_eq!(denied.status(), 429);
        assert!(denied.headers().contains_key("retry-after"));
        let error = json_of(denied).await["error"].take();
        let message = "Too many requests: 1500 tokens per minute. Try again in ";
        assert!(error["message"].as_str().unwrap().starts_with(message), "{error}");
        assert_eq!(error["type"], "tokens");
        assert_eq!(gateway.used("sk-alice").await, before);
        let of_bob = Used { requests: 0, streams: 0, tokens: 0, organisation: 804 };
        assert_eq!(gateway.used("sk-bob").await, of_bob);

        // Carol belongs to another organisation. Her request costs more than a limit can ever
        // grant, so waiting would not help.
        let denied = gateway.ask("sk-carol", 5_000, false).send().await.unwrap();
        assert_eq!((denied.status().as_u16(), denied.headers().get("retry-after")), (429, None));
        drop((first, second));
    }
}
