//! The layer around a client: pacing, pauses, errors, and the contract of tower services.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use rl_core::time::TokioClock;
use rl_core::{Cost, MemoryStore, OnFailure, Policy, RateLimiter, RedisStore, Subject};
use rl_tests::RedisServer;
use rl_tower::ResponseBody;
use rl_tower::client::{BoxError, Throttle, ThrottleLayer, Throttled};
use tokio::sync::Semaphore;
use tokio::time::{Instant, advance};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::{Layer, Service, ServiceExt};

type Bytes = Full<axum::body::Bytes>;
type Answer = Response<ResponseBody<Bytes>>;

const SECOND: Duration = Duration::from_secs(1);

/// A partner that answers the call with the number `n`, counted from 1, by the n-th response, and
/// later calls by 200. It records the times of the calls, after the time of the first response.
#[derive(Clone)]
struct Partner {
    begin: Instant,
    answers: Arc<Vec<Response<()>>>,
    calls: Arc<Mutex<Vec<Duration>>>,
    /// Whether `poll_ready` has returned that this instance is ready.
    is_ready: bool,
}

impl Partner {
    fn new(answers: Vec<Response<()>>) -> Self {
        let (answers, calls) = (Arc::new(answers), Arc::default());
        Self { begin: Instant::now(), answers, calls, is_ready: false }
    }

    fn calls(&self) -> Vec<Duration> {
        self.calls.lock().unwrap().clone()
    }
}

impl Service<Request<Bytes>> for Partner {
    type Response = Response<Bytes>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Bytes>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Bytes>) -> Self::Future {
        assert!(self.is_ready, "an instance was called that was not ready");
        self.is_ready = false;
        let mut calls = self.calls.lock().unwrap();
        let answer = self.answers.get(calls.len()).cloned().unwrap_or_default();
        calls.push(self.begin.elapsed());
        ready(Ok(answer.map(|()| Bytes::from("answer"))))
    }
}

fn limiter(limit: &str) -> RateLimiter {
    let store = MemoryStore::builder().clock(TokioClock::new()).build();
    RateLimiter::builder().limit(limit.parse().unwrap()).store(store).build().unwrap()
}

fn answer(status: u16, headers: &[(&str, &str)]) -> Response<()> {
    let response = headers.iter().fold(Response::builder(), |it, (n, v)| it.header(*n, *v));
    response.status(status).body(()).unwrap()
}

fn request(uri: &str) -> Request<Bytes> {
    Request::get(uri).body(Bytes::default()).unwrap()
}

async fn get<S>(client: &Throttle<S>) -> Result<Answer, BoxError>
where
    Throttle<S>: Service<Request<Bytes>, Response = Answer, Error = BoxError> + Clone,
{
    client.clone().oneshot(request("http://partner.example/")).await
}

fn throttled<T>(called: Result<T, BoxError>) -> Throttled {
    *called.err().expect("an error").downcast_ref().expect("not an error of the client")
}

#[tokio::test(start_paused = true)]
async fn fifty_callers_at_once_are_sent_evenly_to_each_host() {
    let partner = Partner::new(Vec::new());
    let layer = ThrottleLayer::new(limiter("10/second:gcra:burst=1"));
    let client = layer.layer(partner.clone());
    let hosts = ["http://one.example/", "https://ONE.example:8443/a", "http://two.example/"];
    let calls = (0..50).flat_map(|_| hosts).map(|host| client.clone().oneshot(request(host)));
    assert!(join_all(calls).await.iter().all(Result::is_ok));
    let mut expected: Vec<_> = (0..100).map(|n| n * SECOND / 10).collect();
    expected.extend((0..50).map(|n| n * SECOND / 10));
    expected.sort_unstable();
    let mut calls = partner.calls();
    calls.sort_unstable();
    assert_eq!(calls, expected);
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_as_long_as_the_partner_asks_also_for_calls_that_wait() {
    let partner = Partner::new(vec![answer(200, &[]), answer(429, &[("retry-after", "7")])]);
    let client = ThrottleLayer::new(limiter("10/second:gcra:burst=1")).layer(partner.clone());
    let statuses = join_all((0..4).map(|_| get(&client))).await;
    let statuses: Vec<_> = statuses.iter().map(|it| it.as_ref().unwrap().status()).collect();
    assert_eq!(statuses, [200, 429, 200, 200].map(|code| StatusCode::from_u16(code).unwrap()));
    let (tenth, resumed) = (SECOND / 10, 7 * SECOND + SECOND / 10);
    assert_eq!(partner.calls(), [Duration::ZERO, tenth, resumed, resumed + tenth]);
}

#[tokio::test(start_paused = true)]
async fn a_hostile_partner_pauses_for_at_most_an_hour_and_not_by_malformed_values() {
    let answers = [
        answer(429, &[("retry-after", "soon")]),
        answer(200, &[("ratelimit", "\"a\";r=0;t=\u{fffd}")]),
        answer(503, &[("retry-after", "99999999999999999999")]),
        answer(200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "253402300799")]),
    ];
    let partner = Partner::new(answers.to_vec());
    let layer = ThrottleLayer::new(limiter("9/second"));
    let patient = layer.clone().wait(3_600 * SECOND, 9).layer(partner.clone());
    for _ in 0..3 {
        get(&patient).await.unwrap();
    }
    let (wait, at_most) = (3_600 * SECOND, 10 * SECOND);
    let denied = throttled(get(&layer.layer(partner.clone())).await);
    assert_eq!(denied, Throttled::TooLong { wait, at_most });
    assert_eq!(
        denied.to_string(),
        "call not sent: the limit of its destination allows it in 3600s at the earliest, and it \
         may wait for 10s"
    );
    get(&patient).await.unwrap();
    get(&patient).await.unwrap();
    let zero = Duration::ZERO;
    assert_eq!(partner.calls(), [zero, zero, zero, wait, 2 * wait]);
}

#[tokio::test(start_paused = true)]
async fn no_response_pauses_if_the_longest_pause_is_zero() {
    let partner = Partner::new(vec![answer(429, &[("retry-after", "7")])]);
    let layer = ThrottleLayer::new(limiter("9/second")).max_pause(Duration::ZERO);
    let client = layer.layer(partner.clone());
    get(&client).await.unwrap();
    get(&client).await.unwrap();
    assert_eq!(partner.calls(), [Duration::ZERO; 2]);
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_dropped_while_they_wait_use_nothing_up() {
    let partner = Partner::new(Vec::new());
    let limiter = limiter("1/second:gcra:burst=1");
    let layer = ThrottleLayer::new(limiter.clone()).key(|_| Subject::consumer("partner"));
    let client = layer.layer(partner.clone());
    let mut calls: Vec<_> = (0..9).map(|_| Box::pin(get(&client))).collect();
    let mut context = Context::from_waker(Waker::noop());
    for call in &mut calls {
        let _ = call.as_mut().poll(&mut context);
    }
    let last = calls.pop().unwrap();
    drop(calls); // one has been sent, and seven wait before the last
    last.await.unwrap();
    assert_eq!(partner.calls(), [Duration::ZERO, SECOND]);
    advance(SECOND).await;
    let usage = limiter.usage(&Subject::consumer("partner")).await.unwrap();
    assert_eq!(usage.limits().next().unwrap().used(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_sent_holds_no_readiness_of_the_client() {
    let permits = Arc::new(Semaphore::new(1));
    let limited = tower::limit::GlobalConcurrencyLimitLayer::with_semaphore(permits.clone());
    let partner = Partner::new(Vec::new());
    let layer = ThrottleLayer::new(limiter("1/hour"));
    let mut client = layer.layer(limited.layer(partner.clone()));
    client.ready().await.unwrap().call(request("/")).await.unwrap();
    let denied = client.ready().await.unwrap().call(request("/"));
    assert_eq!(permits.available_permits(), 0);
    throttled(denied.await);
    assert_eq!((permits.available_permits(), partner.calls().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_place_is_held_until_the_body_of_the_response_has_ended() {
    let client = ThrottleLayer::new(limiter("1:concurrency")).layer(Partner::new(Vec::new()));
    let response = get(&client).await.unwrap();
    let mut next = pin!(get(&client));
    let polled = next.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "answer");
    next.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_call_says_why_it_was_not_sent() {
    let partner = Partner::new(Vec::new());
    let of = |layer: ThrottleLayer| layer.layer(partner.clone());
    let full = of(ThrottleLayer::new(limiter("1/minute")).wait(2 * SECOND, 9));
    get(&full).await.unwrap();
    let (wait, at_most) = (60 * SECOND, 2 * SECOND);
    assert_eq!(throttled(get(&full).await), Throttled::TooLong { wait, at_most });

    let costly = ThrottleLayer::new(limiter("5/second")).cost(|_| Cost::new(6));
    assert_eq!(throttled(get(&of(costly)).await), Throttled::Never);
    let blocked = Policy::new(["5/second".parse().unwrap()]).unwrap().blocked_until(None);
    let blocked = RateLimiter::builder().policy(blocked).build().unwrap();
    assert_eq!(throttled(get(&of(ThrottleLayer::new(blocked))).await), Throttled::Never);
    assert_eq!(partner.calls().len(), 1);
}

#[tokio::test]
async fn no_call_is_sent_while_the_store_cannot_decide_if_set() {
    let store = RedisStore::connect(&RedisServer::stopped().url()).await.unwrap();
    let limiter = RateLimiter::builder().limit("5/second".parse().unwrap()).store(store);
    let limiter = limiter.on_store_failure(OnFailure::Reject).build().unwrap();
    let partner = Partner::new(Vec::new());
    let client = ThrottleLayer::new(limiter).layer(partner.clone());
    assert_eq!(throttled(get(&client).await), Throttled::Undecided);
    assert!(partner.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_partner_that_rejects_most_calls_gets_fewer_for_two_minutes() {
    fastrand::seed(7);
    let partner = Partner::new(vec![answer(503, &[]); 200]);
    let layer = ThrottleLayer::new(limiter("1000/second")).clock(TokioClock::new()).adaptive();
    let client = layer.layer(partner.clone());
    let mut rejected = 0;
    for _ in 0..1_000 {
        match get(&client).await {
            Ok(response) => assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE),
            called => {
                assert_eq!(throttled(called), Throttled::Adaptive);
                rejected += 1;
            }
        }
    }
    assert!(rejected > 950 && partner.calls().len() == 1_000 - rejected, "{rejected}");
    advance(120 * SECOND).await;
    get(&client).await.unwrap();
}

#[tokio::test]
async fn calls_of_a_grpc_client_wait_and_get_a_status_if_they_are_not_sent() {
    let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address: SocketAddr = incoming.local_addr().unwrap();
    let (_, service) = tonic_health::server::health_reporter();
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let layer = ThrottleLayer::new(limiter("2/hour")).wait(SECOND, 9);
    let mut client = HealthClient::new(layer.layer(channel));
    let mut check = async || client.check(HealthCheckRequest::default()).await;
    check().await.unwrap();
    check().await.unwrap();
    let denied: Status = check().await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    let source = std::error::Error::source(&denied).expect("a source").downcast_ref();
    assert!(matches!(source, Some(Throttled::TooLong { .. })), "{denied:?}");
}
