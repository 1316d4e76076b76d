//! Webhooks of limiters and of the server rl-admin: the deliveries, and the effects of a receiver
//! that never answers.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use rl_admin::webhook::{Webhooks, WebhooksBuilder};
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{Limit, MemoryStore, RateLimiter, Subject};
use rl_tests::web::Site;
use rl_tests::{RedisServer, free_port};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tracing::Level;

use super::server::Server;
use super::{PATIENCE, RATE_LIMITS, record, until};
use crate::redis::failure::log::Log;

const SECRET: &str = "a secret of 32 random characters";

/// A delivery as a receiver has read it.
#[derive(Clone, Debug)]
struct Delivery {
    headers: HeaderMap,
    body: String,
}

impl Delivery {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }
}

/// A receiver that answers with the given statuses, one after the other, and then with 200.
struct Receiver {
    site: Site,
    deliveries: Arc<Mutex<Vec<Delivery>>>,
}

type Shared = (Arc<Mutex<Vec<Delivery>>>, Arc<Mutex<VecDeque<u16>>>);

impl Receiver {
    fn new(statuses: &[u16]) -> Self {
        let deliveries = Arc::<Mutex<Vec<Delivery>>>::default();
        let statuses = Arc::new(Mutex::new(VecDeque::from(statuses.to_vec())));
        let receive = async |State((deliveries, statuses)): State<Shared>,
                             headers: HeaderMap,
                             body: Bytes| {
            let body = String::from_utf8(body.to_vec()).unwrap();
            deliveries.lock().unwrap().push(Delivery { headers, body });
            let status = statuses.lock().unwrap().pop_front().unwrap_or(200);
            StatusCode::from_u16(status).unwrap()
        };
        let app =
            Router::new().route("/hook", post(receive)).with_state((deliveries.clone(), statuses));
        Self { site: rl_tests::web::axum::serve(app), deliveries }
    }

    fn url(&self) -> String {
        self.site.url("/hook?key=path-secret")
    }

    fn all(&self) -> Vec<Delivery> {
        self.deliveries.lock().unwrap().clone()
    }

    /// Waits until there are this many deliveries, and returns them.
    async fn wait(&self, number: usize) -> Vec<Delivery> {
        until(async || self.all().len() >= number).await;
        self.all()
    }

    /// Waits for an event, and returns it.
    async fn event(&self, name: &str) -> Value {
        let find = || self.all().iter().map(Delivery::json).find(|event| event["event"] == name);
        until(async || find().is_some()).await;
        find().unwrap()
    }
}

fn webhooks(url: &str) -> WebhooksBuilder {
    Webhooks::builder(SECRET).url(url).backoff(Duration::from_millis(10))
}

/// Computes a signature with the `openssl` command that the documentation recommends to receivers.
fn sign_with_openssl(timestamp: &str, body: &str) -> String {
    let mut child = Command::new("openssl")
        .args(["dgst", "-sha256", "-hmac", SECRET])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("openssl can be started: tests/run installs it");
    child.stdin.take().unwrap().write_all(format!("{timestamp}.{body}").as_bytes()).unwrap();
    let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    format!("v1={}", output.trim().rsplit(' ').next().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_store_is_delivered_with_a_signature_that_openssl_confirms() {
    let mut redis = RedisServer::start();
    let receiver = Receiver::new(&[]);
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_795_440_840)));
    let webhooks = webhooks(&receiver.url()).clock(clock).start().unwrap();
    let store = redis.patient_store().connect().await.unwrap();
    let limiter = RateLimiter::builder()
        .namespace("shop")
        .limit(Limit::per_day(100))
        .store(store)
        .observer(webhooks.clone());
    let limiter = limiter.build().unwrap();
    let subject = Subject::user("alice");
    limiter.check(&subject, 1).await;
    assert_eq!(receiver.all().len(), 0, "a decision is no event");
    redis.stop();
    until(async || {
        limiter.check(&subject, 1).await;
        receiver.all().iter().any(|delivery| delivery.json()["event"] == "store_failing")
    })
    .await;
    let failing = receiver.event("store_failing").await;
    assert_eq!(
        (&failing["limiter"], &failing["at"]),
        (&json!("shop"), &json!("2026-11-23T13:34:00Z"))
    );
    assert_eq!(failing["detail"]["on_failure"], "allow", "{failing}");
    assert!(failing["store"].as_str().unwrap().starts_with("redis "), "{failing}");
    redis.restart();
    until(async || {
        limiter.check(&subject, 1).await;
        receiver.all().iter().any(|delivery| delivery.json()["event"] == "store_recovered")
    })
    .await;
    for delivery in receiver.all() {
        let (timestamp, id) =
            (delivery.header("rl-webhook-timestamp"), delivery.json()["id"].clone());
        assert_eq!(
            (timestamp, delivery.header("rl-webhook-id")),
            ("1795440840", id.as_str().unwrap())
        );
        let signature = sign_with_openssl(timestamp, &delivery.body);
        assert_eq!(delivery.header("rl-webhook-signature"), signature);
        assert!(!delivery.body.contains("alice"), "{}", delivery.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bursts_of_denials_begin_and_end_without_an_observer() {
    let receiver = Receiver::new(&[]);
    let webhooks =
        webhooks(&receiver.url()).denial_burst(20, Duration::from_secs(2)).start().unwrap();
    let limiter = RateLimiter::builder().limit(Limit::per_day(1)).build().unwrap();
    webhooks.watch(&limiter);
    until(async || {
        limiter.check(&Subject::global(), 1).await;
        !receiver.all().is_empty()
    })
    .await;
    let began = receiver.event("denial_burst_began").await;
    assert!(began["detail"]["denials"].as_u64().unwrap() >= 20, "{began}");
    receiver.event("denial_burst_ended").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crossings_of_a_limit_are_delivered_if_they_are_switched_on() {
    let receiver = Receiver::new(&[]);
    for is_sent in [false, true] {
        let webhooks = webhooks(&receiver.url()).near_limit(is_sent).start().unwrap();
        let limiter = RateLimiter::builder().limit(Limit::per_day(10)).observer(webhooks);
        let limiter = limiter.build().unwrap();
        for _ in 0..12 {
            limiter.check(&Subject::user("alice"), 1).await;
        }
    }
    let events: Vec<_> = receiver.wait(3).await.iter().map(Delivery::json).collect();
    let percents: Vec<_> = events.iter().map(|event| event["detail"]["percent"].clone()).collect();
    assert_eq!(percents, [80, 90, 100]);
    let hash = Subject::user("alice").redacted().to_string();
    assert_eq!(events[0]["detail"]["subject"], json!({ "realm": "user", "hash": hash }));
}

/// Fault: each window of a second had events of its own, for each subject.
#[tokio::test(flavor = "multi_thread")]
async fn crossings_of_a_limit_of_a_short_period_are_delivered_once_a_minute() {
    let receiver = Receiver::new(&[]);
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_795_440_840)));
    let webhooks = webhooks(&receiver.url()).near_limit(true).clock(clock.clone()).start().unwrap();
    let limiter = RateLimiter::builder()
        .limit(Limit::per_second(10))
        .limit(Limit::per_day(1_000))
        .store(MemoryStore::builder().clock(clock.clone()).build())
        .observer(webhooks.clone())
        .build()
        .unwrap();
    for _second in 0..100 {
        for user in ["alice", "bob"] {
            limiter.check(&Subject::user(user), 8).await;
        }
        clock.advance(Duration::from_secs(1));
    }
    // The last requests use the 800th unit of the day.
    let events: Vec<_> = receiver.wait(4).await.iter().map(Delivery::json).collect();
    let lines = events.iter().map(|event| {
        let detail = &event["detail"];
        format!("{} {} {}", detail["limit"], detail["percent"], detail["suppressed"])
    });
    // In the first minute, both subjects cross the threshold in each of 60 windows.
    let [second, day] = [r#""second" 80"#, r#""day" 80"#];
    assert_eq!(
        lines.collect::<Vec<_>>(),
        [format!("{second} 0"), format!("{second} 119"), format!("{day} 0"), format!("{day} 0")]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_deliveries_are_repeated_with_one_id_and_refused_ones_are_not() {
    let receiver = Receiver::new(&[503, 429, 200, 400, 302, 200]);
    let webhooks = webhooks(&receiver.url()).near_limit(true).start().unwrap();
    let limiter = RateLimiter::builder().limit(Limit::per_day(10)).observer(webhooks.clone());
    let limiter = limiter.build().unwrap();
    for _ in 0..10 {
        limiter.check(&Subject::global(), 1).await;
    }
    // The event at 80 % is delivered at the third attempt. The receiver refuses the event at 90 %
    // with 400, and the event at 100 % with a redirect. Refused events are not sent again.
    let deliveries = receiver.wait(5).await;
    let ids: Vec<_> = deliveries.iter().map(|delivery| delivery.header("rl-webhook-id")).collect();
    assert!(
        ids[0] == ids[1] && ids[1] == ids[2] && ids[2] != ids[3] && ids[3] != ids[4],
        "{ids:?}"
    );
    until(async || webhooks.stats().failed == 2).await;
    assert_eq!((webhooks.stats().delivered, receiver.all().len()), (1, 5));
}

/// The receiver accepts connections and never answers. Events are dropped when its queue is full.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_receiver_neither_slows_decisions_nor_fills_memory() {
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", dead.local_addr().unwrap());
    let receiver = Receiver::new(&[]);
    let webhooks = webhooks(&url).url(&receiver.url()).near_limit(true).queue(3);
    let webhooks = webhooks.attempts(1, Duration::from_secs(600)).start().unwrap();
    let limiter = RateLimiter::builder().limit(Limit::per_day(1)).observer(webhooks.clone());
    let limiter = limiter.build().unwrap();
    let decide = async {
        for number in 0..20 {
            limiter.check(&Subject::user(&format!("user-{number}")), 1).await;
            until(async || receiver.all().len() > number).await;
        }
    };
    // `PATIENCE` is far below 600 s, the time limit of a delivery to the dead receiver.
    tokio::time::timeout(PATIENCE, decide).await.unwrap();
    assert_eq!(receiver.all().len(), 20, "the other receiver gets each event");
    // Of 20 events for the dead receiver, one is being sent, and three wait in its queue.
    assert_eq!(webhooks.stats().dropped, 16);
}

/// A receiver that answers slower than events arrive loses events, although it accepts each
/// delivery. The log names the receiver that lost events, and how many.
#[tokio::test]
async fn lost_events_are_logged_with_the_receiver_that_lost_them() {
    let (log, _guard) = Log::capture();
    let (gate, begun) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let receive = {
        let (gate, begun) = (gate.clone(), begun.clone());
        move || {
            let (gate, begun) = (gate.clone(), begun.clone());
            async move {
                begun.add_permits(1);
                gate.acquire().await.unwrap().forget();
            }
        }
    };
    let slow = rl_tests::web::axum::serve(Router::new().route("/", post(receive)));
    let refusing = Receiver::new(&[400]);
    let webhooks = webhooks(&slow.url("/")).url(&refusing.url()).near_limit(true).queue(2);
    let webhooks = webhooks.start().unwrap();
    let limiter = RateLimiter::builder().limit(Limit::per_day(1)).observer(webhooks.clone());
    let limiter = limiter.build().unwrap();
    for number in 0..5 {
        limiter.check(&Subject::user(&format!("user-{number}")), 1).await;
        refusing.wait(number + 1).await;
        if number == 0 {
            begun.acquire().await.unwrap().forget();
        }
    }
    // The slow receiver has one event. Two wait in its queue, and two were dropped.
    gate.add_permits(3);
    until(async || log.lines().len() == 4).await;
    let [slow, refusing] =
        [&slow, &refusing.site].map(|site| site.url("").trim_start_matches("http://").to_owned());
    log.assert_lines(&[
        (Level::WARN, &format!("webhook failing receiver={refusing} cause=\"400 Bad Request\"")),
        (Level::INFO, &format!("webhook recovered receiver={refusing} lost=1")),
        (Level::WARN, &format!("webhook failing receiver={slow} cause=\"the queue is full\"")),
        (Level::INFO, &format!("webhook recovered receiver={slow} lost=2")),
    ]);
    // A delivery is counted some time after its receiver has read it.
    until(async || webhooks.stats().delivered == 7).await;
    let stats = webhooks.stats();
    assert_eq!((stats.failed, stats.dropped), (1, 2));
}

#[tokio::test]
async fn a_watched_limiter_that_reports_to_its_webhooks_can_be_dropped() {
    let webhooks = webhooks("http://127.0.0.1:1/").start().unwrap();
    let limiter = RateLimiter::builder().limit(Limit::per_day(1)).observer(webhooks.clone());
    let limiter = limiter.build().unwrap();
    webhooks.watch(&limiter);
    let weak = limiter.downgrade();
    drop((webhooks, limiter));
    until(async || weak.upgrade().is_none()).await;
}

#[tokio::test]
async fn plain_http_to_public_addresses_and_metadata_hosts_is_not_sent() {
    for url in ["http://203.0.113.7/", "http://169.254.169.254/latest", "https://169.254.169.254/"]
    {
        let webhooks = webhooks(url).attempts(1, 4 * PATIENCE).near_limit(true).start().unwrap();
        let limiter = RateLimiter::builder().limit(Limit::per_day(1)).observer(webhooks.clone());
        limiter.build().unwrap().check(&Subject::global(), 1).await;
        until(async || webhooks.stats().failed == 1).await;
    }
}

/// Fault: a receiver that sent informational responses without end occupied a thread until the time
/// limit of the attempt, and longer.
#[tokio::test]
async fn informational_responses_without_end_fail_the_delivery() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let hints = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1_000);
        while stream.write_all(hints.as_bytes()).await.is_ok() {}
    });
    let webhooks = webhooks(&url).attempts(1, 4 * PATIENCE).near_limit(true).start().unwrap();
    let limiter = RateLimiter::builder().limit(Limit::per_day(1)).observer(webhooks.clone());
    limiter.build().unwrap().check(&Subject::global(), 1).await;
    until(async || webhooks.stats().failed == 1).await;
}

/// An openssl server that prints each request, and answers the first connection with 200.
struct TlsReceiver {
    child: Child,
    port: u16,
    output: Arc<Mutex<String>>,
}

impl TlsReceiver {
    /// Starts a server whose certificate for `localhost` is stored in `folder`.
    fn start(folder: &Path) -> Self {
        let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
        std::fs::write(&certificate, certified.cert.pem()).unwrap();
        std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
        let port = free_port();
        let mut child = Command::new("openssl")
            .args(["s_server", "-quiet", "-accept", &port.to_string()])
            .args(["-cert".as_ref(), certificate.as_os_str(), "-key".as_ref(), key.as_os_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl can be started: tests/run installs it");
        let mut printed = child.stdout.take().unwrap();
        let output = Arc::<Mutex<String>>::default();
        let all = output.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(length @ 1..) = printed.read(&mut bytes) {
                all.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        });
        Self { child, port, output }
    }

    fn output(&self) -> String {
        self.output.lock().unwrap().clone()
    }

    /// Answers the request that is open.
    fn answer(&mut self) {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(answer).and_then(|()| stdin.flush()).unwrap();
    }
}

impl Drop for TlsReceiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server delivers over TLS, to a receiver whose certificate the system trusts. The log of the
/// server contains neither the secret nor the path of a receiver.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_delivers_changes_of_limits_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let mut receiver = TlsReceiver::start(folder.path());
    let dead = "http://127.0.0.1:1/path-secret";
    let urls = format!("https://localhost:{}/hook/path-secret, {dead}", receiver.port);
    let authority = folder.path().join("certificate.pem");
    let settings = [
        ("RL_ADMIN_WEBHOOK_URLS", &*urls),
        ("RL_ADMIN_WEBHOOK_SECRET", SECRET),
        ("SSL_CERT_FILE", authority.to_str().unwrap()),
    ];
    let server = Server::start("sqlite::memory:", &settings).await;
    let created = server.call("POST", RATE_LIMITS, Some(record([1; 6]))).await;
    assert_eq!(created.status, 201, "{}", created.body);
    until(async || receiver.output().contains("policies_changed")).await;
    let request = receiver.output();
    assert!(request.contains("POST /hook/path-secret HTTP/1.1"), "{request}");
    assert!(request.contains("rl-webhook-signature: v1="), "{request}");
    receiver.answer();
    until(async || server.log().contains("webhook failing")).await;
    let log = server.log();
    assert!(!log.contains("path-secret") && !log.contains(SECRET), "{log}");
}
