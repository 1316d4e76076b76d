//! The server on real connections: its start, and a shutdown that loses no request.

#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap has failed")]

use std::error::Error;
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use rl_core::RateLimiter;
use rl_serve::Shutdown;
use rl_server::grpc::messages::{Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use rl_server::{Server, Source};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The time after which a test fails.
const GIVE_UP: Duration = Duration::from_secs(60);

const LIMITS: &str = "\
proxies: [127.0.0.1]
rules: { clients: { per: address, limits: 1000000/minute } }
domains: { edge: { clients: { descriptor: [user], limits: 1000000/minute } } }
";

/// A running server.
struct Running {
    http: SocketAddr,
    grpc: SocketAddr,
    limiter: RateLimiter,
    shutdown: Shutdown,
    task: JoinHandle<std::io::Result<()>>,
    _folder: TempDir,
}

impl Running {
    async fn start(text: &str) -> Self {
        let (server, folder) = start(text).await;
        let server = server.unwrap();
        let shutdown = Shutdown::new();
        let stop = shutdown.clone();
        Self {
            http: server.http_addr(),
            grpc: server.grpc_addr(),
            limiter: server.limiter().clone(),
            shutdown,
            task: tokio::spawn(async move { server.run(&stop).await }),
            _folder: folder,
        }
    }

    async fn ended(self) {
        timeout(GIVE_UP, self.task).await.unwrap().unwrap().unwrap();
    }
}

/// Starts a server with a rule file, on ports that the system chooses.
async fn start(text: &str) -> (Result<Server, String>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.yaml");
    fs::write(&file, text).unwrap();
    let variable = |name: &str| name.starts_with("RL_LISTEN").then(|| "127.0.0.1:0".to_owned());
    let server = Server::start(&Source::RuleFile(file), variable).await;
    (server.map_err(|error| error.to_string()), folder)
}

/// The result of a request.
#[derive(Debug)]
enum Sent {
    /// The status and the body of the response.
    Answered(u16, Vec<u8>),
    /// The connection had ended before the request was sent, or the server has refused it because
    /// it stops.
    NotSent,
}

/// A connection of a gateway.
enum Connection {
    Http(http1::SendRequest<Body>),
    Grpc(http2::SendRequest<Body>),
}

impl Connection {
    async fn open(address: SocketAddr, is_grpc: bool) -> std::io::Result<Self> {
        let stream = TokioIo::new(TcpStream::connect(address).await?);
        Ok(if is_grpc {
            let (client, connection) =
                http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            tokio::spawn(connection);
            Self::Grpc(client)
        } else {
            let (client, connection) = http1::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            Self::Http(client)
        })
    }

    async fn send(&mut self, request: Request<Body>) -> Sent {
        let sent = match self {
            Self::Http(client) => match client.ready().await {
                Ok(()) => client.try_send_request(request).await,
                Err(_) => return Sent::NotSent,
            },
            Self::Grpc(client) => match client.ready().await {
                Ok(()) => client.try_send_request(request).await,
                Err(_) => return Sent::NotSent,
            },
        };
        let response = match sent {
            Ok(response) => response,
            Err(mut error) if error.message().is_some() => {
                drop(error.take_message());
                return Sent::NotSent;
            }
            Err(error) if is_refused(error.error()) => return Sent::NotSent,
            Err(error) => panic!("a request was lost: {:?}", error.error()),
        };
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a whole response");
        Sent::Answered(status, body.to_bytes().to_vec())
    }

    /// Asks for a decision, and returns whether the request was allowed.
    async fn decide(&mut self) -> Option<bool> {
        let request = match self {
            Self::Http(_) => get("/decide").header("x-forwarded-for", "192.0.2.1"),
            Self::Grpc(_) => {
                return match self.send(should_rate_limit()).await {
                    Sent::NotSent => None,
                    Sent::Answered(_, body) => {
                        let message = RateLimitResponse::decode(&body[5..]).unwrap();
                        Some(message.overall_code == 1)
                    }
                };
            }
        };
        let request = request.header("x-forwarded-method", "GET").header("x-forwarded-uri", "/");
        let request = request.body(Body::empty()).unwrap();
        match self.send(request).await {
            Sent::NotSent => None,
            Sent::Answered(status, _) => Some(status == 200),
        }
    }
}

/// Returns whether a server that stops has refused the request: it names the last request that it
/// processes, so the client may send later ones again (RFC 9113, section 6.8).
fn is_refused(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    source.is_some_and(|error| {
        error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR)
    })
}

fn get(path: &str) -> http::request::Builder {
    Request::builder().uri(path).header("host", "localhost")
}

/// Returns the call of Envoy.
fn should_rate_limit() -> Request<Body> {
    let entries = vec![Entry::new("user", "abc")];
    let message = RateLimitRequest {
        domain: "edge".to_owned(),
        descriptors: vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }],
        hits_addend: 0,
    };
    let message = message.encode_to_vec();
    // A byte for the compression, and the length.
    let mut frame = vec![0];
    frame.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    frame.extend(message);
    let uri = "http://localhost/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let request = Request::post(uri).header("content-type", "application/grpc");
    request.header("te", "trailers").body(Body::from(frame)).unwrap()
}

/// Sends requests until no connection can be opened. Returns their number.
async fn send_requests(address: SocketAddr, is_grpc: bool, answered: Arc<AtomicUsize>) -> u64 {
    let mut count = 0;
    while let Ok(mut connection) = Connection::open(address, is_grpc).await {
        while let Some(is_allowed) = connection.decide().await {
            assert!(is_allowed);
            count += 1;
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_decision_over_http_or_grpc_is_lost_when_the_server_stops_under_load() {
    let server = Running::start(LIMITS).await;
    let answered = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..32)
        .map(|number| {
            let is_grpc = number % 2 == 1;
            let address = if is_grpc { server.grpc } else { server.http };
            let answered = Arc::clone(&answered[number % 2]);
            tokio::spawn(send_requests(address, is_grpc, answered))
        })
        .collect();
    let under_load = async {
        while answered.iter().any(|answered| answered.load(Ordering::Relaxed) < 500) {
            tokio::task::yield_now().await;
        }
    };
    timeout(GIVE_UP, under_load).await.unwrap();
    server.shutdown.start();
    let mut count = 0;
    for client in clients {
        count += timeout(GIVE_UP, client).await.unwrap().unwrap();
    }
    // Every decision that was charged reached its gateway.
    assert_eq!(server.limiter.stats().allowed(), count);
    assert!(TcpStream::connect(server.http).await.is_err());
    assert!(TcpStream::connect(server.grpc).await.is_err());
    server.ended().await;
}

#[tokio::test]
async fn the_server_reports_that_it_is_not_ready_before_its_listeners_close() {
    let server = Running::start(&format!("{LIMITS}server: {{ shutdown_delay: 1h }}")).await;
    let health = || {
        // The name of the service is empty: the message has no bytes.
        let uri = "http://localhost/grpc.health.v1.Health/Check";
        let request = Request::post(uri).header("content-type", "application/grpc");
        request.header("te", "trailers").body(Body::from(vec![0; 5])).unwrap()
    };
    // The status is the only field: tag 1, and 1 for SERVING or 2 for NOT_SERVING.
    let (serving, not_serving) = ([8, 1], [8, 2]);
    let ready = || get("/readyz").body(Body::empty()).unwrap();
    let mut http = Connection::open(server.http, false).await.unwrap();
    let mut grpc = Connection::open(server.grpc, true).await.unwrap();
    assert!(matches!(http.send(ready()).await, Sent::Answered(200, _)));
    assert!(matches!(grpc.send(health()).await, Sent::Answered(200, body) if body[5..] == serving));
    server.shutdown.start();
    let unready = async {
        while !matches!(http.send(ready()).await, Sent::Answered(503, _)) {}
        while !matches!(
            grpc.send(health()).await,
            Sent::Answered(200, body) if body[5..] == not_serving
        ) {}
    };
    timeout(GIVE_UP, unready).await.unwrap();
    // New connections are accepted and answered during the delay.
    let mut late = Connection::open(server.http, false).await.unwrap();
    assert_eq!(late.decide().await, Some(true));
    let mut late = Connection::open(server.grpc, true).await.unwrap();
    assert_eq!(late.decide().await, Some(true));
    server.task.abort();
}

#[tokio::test]
async fn permits_that_callers_hold_are_settled_when_the_server_stops() {
    let server = Running::start("rules: { all: { per: identified, limits: 10/minute } }").await;
    let mut http = Connection::open(server.http, false).await.unwrap();
    let call = r#"{"subjects": [{"rule": "all", "subject": "consumer:abc", "cost": 4}]}"#;
    let request = Request::post("/v1/acquire").header("host", "localhost");
    let request = request.header("content-type", "application/json").body(Body::from(call));
    let answer = http.send(request.unwrap()).await;
    assert!(matches!(&answer, Sent::Answered(200, _)), "{answer:?}");
    assert_eq!(server.limiter.stats().permits_held, 1);
    let limiter = server.limiter.clone();
    server.shutdown.start();
    server.ended().await;
    assert_eq!(limiter.stats().permits_held, 0);
}

/// Fault: the management accepted connections and answered nothing until the database did.
#[tokio::test]
async fn the_management_answers_503_while_the_database_does_not_answer_at_the_start() {
    let tokens = r#"[{"name": "a", "token": "a-long-and-random-token", "roles": []}]"#;
    let (server, _folder) = start(&format!(
        "rules: {{ all: {{ per: identified, limits: records }} }}\n\
         server: {{ records: {{ database: \"postgres://rl@127.0.0.1:1/limits\" }}, \
         admin: {{ listen: 127.0.0.1:0, tokens: '{tokens}' }} }}"
    ))
    .await;
    let server = server.unwrap();
    let mut admin = Connection::open(server.admin_addr().unwrap(), false).await.unwrap();
    let request = get("/management/rate-limiting").body(Body::empty()).unwrap();
    let answer = timeout(GIVE_UP, admin.send(request)).await.unwrap();
    assert!(matches!(answer, Sent::Answered(503, _)), "{answer:?}");
    let shutdown = Shutdown::new();
    shutdown.start();
    timeout(GIVE_UP, server.run(&shutdown)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    for (text, expected) in [
        ("rules: { all: { limits: 1/fortnight } }", "limits.yaml:1:"),
        (
            "rules: { all: { limits: 1/second } }\nserver: { tls: { cert: none.crt, key: none.key } }",
            "none.crt: No such file",
        ),
        ("rules: { all: { limits: 1/second } }\nserver: { liste: x }", "unknown field"),
        (
            "rules: { all: { limits: 1/second } }\nstore: nonsense",
            "store: Redis URL \"…\": redis url did not parse; expected redis://",
        ),
        (
            "rules: { all: { limits: 1/second } }\ndomains: { edge: { all: { limits: 1/fortnight } } }",
            "1/fortnight",
        ),
        (
            "rules: { all: { per: identified, limits: records } }",
            "`limits: records` needs `records` in the section `server`",
        ),
        (
            "domains: { edge: { all: { descriptor: [user], limits: records } } }",
            "rule \"all\": limits: records: expected `records` in the section `server`",
        ),
        (
            "rules: { all: { per: identified, limits: records } }\nserver: { records: { database: x } }",
            "server: records: database: unknown kind of database",
        ),
        ("server: { admin: { listen: x, tokens: file:none } }", "none: No such file"),
    ] {
        let (server, _folder) = start(text).await;
        let error = server.err().unwrap_or_else(|| panic!("{text}: the server has started"));
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[tokio::test]
async fn checking_a_file_returns_its_warnings_or_the_reason_why_it_is_not_valid() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    let source = Source::RuleFile(path.clone());
    fs::write(&path, LIMITS).unwrap();
    assert_eq!(source.check().unwrap(), Vec::<String>::new());
    fs::write(&path, "rules: { all: { per: \"header:x\", limits: 1/second } }").unwrap();
    assert_eq!(source.check().unwrap().len(), 1);
    for (text, expected) in [
        ("rules: { all: { limits: x } }", "limits.yaml:1:"),
        (
            "rules: { a: { limits: 1/hour } }\nserver: { listen: nope }",
            "listen \"nope\": expected HOST:PORT",
        ),
        (
            "rules: { a: { limits: 1/hour } }\nstore: http://:secret@host",
            "with several hosts; or memory",
        ),
        (
            "server: { liste: x }\nrules: { a: { limits: 1/hour } }",
            "line 1, column 11: unknown field `liste`",
        ),
        ("rules: { a: { limits: 1/hour, over: degrade } }", "rule \"a\": over: expected reject"),
        (
            "rules: { a: { limits: 1/hour, over: { wait: 2s, queue: 9 } } }",
            "rule \"a\": over: expected reject",
        ),
        (
            "rules: { a: { limits: 9/hour, cost: { response_header: x-cost, estimate: 2 } } }",
            "rule \"a\": cost: expected a number",
        ),
    ] {
        fs::write(&path, text).unwrap();
        let error = source.check().unwrap_err();
        assert!(error.contains(expected) && !error.contains("secret"), "{text}: {error}");
    }
    let tls = "server: { tls: { cert: none.crt, key: none.key } }";
    fs::write(&path, format!("rules: {{ a: {{ limits: 1/hour, per: address }} }}\n{tls}")).unwrap();
    assert!(source.check().unwrap()[0].contains("none.crt: No such file"));
    // No database is asked for.
    let database = "postgres://rl@127.0.0.1:1/limits";
    let tokens = "[{\"name\": \"a\", \"token\": \"a-long-and-random-token\", \"roles\": []}]";
    let check = |per: &str, limits: &str| {
        let text = format!(
            "rules: {{ all: {{ per: identified, limits: records }} }}\n\
             domains: {{ edge: {{ all: {{ {per}, limits: {limits} }} }} }}\n\
             server: {{ records: {{ database: \"{database}\" }}, admin: {{ tokens: '{tokens}' }} }}"
        );
        fs::write(&path, text).unwrap();
        source.check()
    };
    for per in
        ["descriptor: [plan=free, user]", "descriptor: user=a*", "per: \"descriptors[0].user\""]
    {
        assert_eq!(check(per, "records").unwrap(), Vec::<String>::new(), "{per}");
    }
    for per in [
        "descriptor: [plan, user]",
        "descriptor: plan=free",
        "descriptor: user=a**",
        "when: \"true\"",
    ] {
        let error = check(per, "records").unwrap_err();
        assert!(error.contains("which is the id of the consumer"), "{per}: {error}");
    }
    assert!(check("descriptor: user", "[records, 1/second]").unwrap_err().contains("\"records\""));
}
