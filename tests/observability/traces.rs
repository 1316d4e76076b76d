//! Log lines and spans of requests that pass an adapter.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix_web::test::{TestRequest, call_service, init_service};
use actix_web::{App, HttpResponse, web};
use axum::body::Body;
use axum::http::{Request, Response};
use rl_core::key::{ApiKey, KeySecret};
use rl_core::{Limit, RateLimiter, RedisStore};
use rl_tests::{RedisServer, free_port};
use rl_tower::RateLimitLayer;
use tower::{Layer, ServiceExt, service_fn};
use tracing::Level;
use tracing::subscriber::{DefaultGuard, set_default};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// The log of this thread, as the usual subscriber writes it.
#[derive(Clone, Debug, Default)]
struct LogText(Arc<Mutex<Vec<u8>>>);

impl LogText {
    fn capture(level: Level) -> (Self, DefaultGuard) {
        let text = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_span_events(FmtSpan::CLOSE)
            .with_writer(text.clone())
            .finish();
        (text, set_default(subscriber))
    }

    /// Returns the lines of the library, and discards them.
    fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let text = String::from_utf8(bytes).unwrap();
        text.lines().filter(|line| line.contains("rl_core")).map(str::to_owned).collect()
    }
}

impl io::Write for LogText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogText {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// The headers of a request.
type Headers<'a> = &'a [(&'a str, &'a [u8])];

async fn send_on_tower(layer: &RateLimitLayer, headers: Headers<'_>) -> u16 {
    let handler =
        service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
    let peer: SocketAddr = "192.0.2.77:50000".parse().unwrap();
    let mut request = Request::builder().extension(peer);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).unwrap();
    layer.layer(handler).oneshot(request).await.unwrap().status().as_u16()
}

async fn send_on_actix(limit: rl_actix::RateLimit, headers: Headers<'_>) -> u16 {
    let app = App::new().wrap(limit).route("/", web::get().to(HttpResponse::Ok));
    let app = init_service(app).await;
    let mut request = TestRequest::get().peer_addr("192.0.2.77:50000".parse().unwrap());
    for (name, value) in headers {
        request = request.insert_header((*name, actix_value(value)));
    }
    call_service(&app, request.to_request()).await.status().as_u16()
}

fn actix_value(value: &[u8]) -> actix_web::http::header::HeaderValue {
    actix_web::http::header::HeaderValue::from_bytes(value).unwrap()
}

fn in_memory() -> RateLimiter {
    RateLimiter::builder().limit(Limit::per_hour(100)).namespace("api").build().unwrap()
}

#[actix_web::test]
async fn decisions_in_the_log_have_the_request_id_and_the_trace_of_their_request() {
    let (log, _guard) = LogText::capture(Level::DEBUG);
    let context = format!("00-{TRACE}-{PARENT}-01");
    let headers = [("x-request-id", &b"0190-abc"[..]), ("traceparent", context.as_bytes())];
    assert_eq!(send_on_tower(&RateLimitLayer::new(in_memory()), &headers).await, 200);
    let on_tower = log.take();
    assert_eq!(send_on_actix(rl_actix::RateLimit::new(in_memory()), &headers).await, 200);
    for lines in [on_tower, log.take()] {
        let decided: Vec<_> =
            lines.iter().filter(|line| line.contains("decided limiter=")).collect();
        let [decided] = decided[..] else { panic!("{lines:#?}") };
        for part in [
            "request_id=0190-abc",
            &format!("trace_id={TRACE}"),
            &format!("parent_id={PARENT}"),
            "limiter=\"api\" store=\"memory\"",
            "origin=\"store\"",
        ] {
            assert!(decided.contains(part), "{part}: {decided}");
        }
        // A decision in memory does not wait for a store, so it has no span `rl.store`.
        assert!(lines.iter().all(|line| !line.contains("rl.store")), "{lines:#?}");
        assert!(lines.iter().all(|line| !line.contains("192.0.2.77")), "{lines:#?}");
    }
}

#[actix_web::test]
async fn hostile_ids_neither_end_a_line_nor_fill_the_log() {
    let (log, _guard) = LogText::capture(Level::DEBUG);
    let long = vec![b'x'; 60_000];
    let values: [&[u8]; 6] = [
        b"a\tWARN rl_core: store failing",
        b"a\" allowed=true origin=\"store",
        b"a}: rl_core: decided allowed=true",
        b"\xff\xfe\x80",
        "\u{202e}\u{1f4a5}".as_bytes(),
        &long,
    ];
    for value in values {
        let headers = [("x-request-id", value), ("traceparent", value)];
        assert_eq!(send_on_tower(&RateLimitLayer::new(in_memory()), &headers).await, 200);
        let lines = log.take();
        let decided: Vec<_> =
            lines.iter().filter(|line| line.contains("decided limiter=")).collect();
        let [decided] = decided[..] else { panic!("{lines:#?}") };
        assert!(decided.len() < 600, "{}", decided.len());
        assert!(!decided.contains("trace_id") && !decided.contains('\t'), "{decided}");
        let (_, id) = decided.split_once("request_id=").unwrap();
        let (id, _) = id.split_once('}').unwrap();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/+=@?".contains(c);
        assert!((1..=64).contains(&id.len()) && id.chars().all(is_plain), "{id}");
    }
}

#[tokio::test]
async fn a_rejected_request_without_a_key_is_logged_with_its_id_at_level_warn() {
    let (log, _guard) = LogText::capture(Level::WARN);
    let key = ApiKey::header("x-api-key", KeySecret::random()).unwrap();
    let layer = RateLimitLayer::new(in_memory()).key(key);
    let headers = [("x-request-id", &b"0190-abc"[..])];
    assert_eq!(send_on_tower(&layer, &headers).await, 403);
    let lines = log.take();
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(line.contains("limiter=\"api\" request_id=0190-abc"), "{line}");
}

#[tokio::test]
async fn a_call_to_redis_has_a_span_with_the_attributes_of_opentelemetry() {
    let redis = RedisServer::start();
    let store = redis.patient_store().connect().await.unwrap();
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).store(store).namespace("api");
    let layer = RateLimitLayer::new(limiter.deadline(Duration::from_secs(30)).build().unwrap());
    let (log, _guard) = LogText::capture(Level::DEBUG);
    let headers = [("x-request-id", &b"0190-abc"[..])];
    for (status, outcome) in [(200, "allowed"), (429, "denied")] {
        assert_eq!(send_on_tower(&layer, &headers).await, status);
        let lines = log.take();
        let spans: Vec<_> = lines.iter().filter(|line| line.contains("rl.store{")).collect();
        let [span] = spans[..] else { panic!("{lines:#?}") };
        for part in [
            "rl.request{",
            "request_id=0190-abc",
            "otel.kind=\"client\"",
            "db.system.name=\"redis\"",
            "db.operation.name=\"decide\"",
            "server.address=\"127.0.0.1\"",
            &format!("server.port={}", redis.port()),
            "rate_limit.limiter=\"api\"",
            &format!("rate_limit.outcome=\"{outcome}\""),
            "rate_limit.origin=\"store\"",
        ] {
            assert!(span.contains(part), "{part}: {span}");
        }
        assert!(lines.iter().all(|line| !line.contains("192.0.2.77")), "{lines:#?}");
    }
}

#[tokio::test]
async fn a_span_of_a_failed_call_has_the_kind_of_failure() {
    let wait = Duration::from_millis(50);
    let store = RedisStore::builder(&format!("redis://127.0.0.1:{}/", free_port()));
    let store = store.connection_wait(wait).connect_timeout(wait).connect().await.unwrap();
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).store(store);
    let limiter = limiter.deadline(Duration::from_secs(30)).build().unwrap();
    let (log, _guard) = LogText::capture(Level::DEBUG);
    assert_eq!(send_on_tower(&RateLimitLayer::new(limiter), &[]).await, 200);
    let lines = log.take();
    let span = lines.iter().find(|line| line.contains("close") && line.contains("rl.store{"));
    let span = span.unwrap_or_else(|| panic!("{lines:#?}"));
    assert!(span.contains("error.type=\"unavailable\""), "{span}");
}
