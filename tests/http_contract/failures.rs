//! A store that cannot decide.

use std::time::Duration;

use rl_core::adapter::HttpLimiter;
use rl_core::key::{ClientAddress, Identified, KeyExtractor};
use rl_core::{
    Limit, MemoryStore, OnFailure, Policy, RateLimiter, Realm, RedisStore, Share, Subject,
};
use rl_tests::RedisServer;
use rl_tests::web::{Fetch, Target};
use tokio::net::TcpSocket;

/// A timeout that is long enough for a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a limiter that allows one request per day, with this store.
fn on(store: RedisStore, on_failure: OnFailure) -> RateLimiter {
    let builder = RateLimiter::builder().limit(Limit::per_day(1)).store(store);
    builder.on_store_failure(on_failure).deadline(PATIENCE).build().unwrap()
}

/// Returns a limiter that allows one request per day, on the server at `url`. The store has the
/// default limit of the time to connect.
async fn limiter(url: &str, on_failure: OnFailure) -> RateLimiter {
    on(RedisStore::connect(url).await.unwrap(), on_failure)
}

/// Returns a socket and its URL. Connections to it are refused as long as the socket exists.
fn nobody() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("redis://{}/", socket.local_addr().unwrap());
    (socket, url)
}

pub(super) async fn requests_pass_without_headers_when_the_store_is_down<T: Target>() {
    let (_nobody, url) = nobody();
    let site = T::serve(vec![HttpLimiter::new(limiter(&url, OnFailure::Allow).await)]);
    for _ in 0..3 {
        let answer = site.get("/").fetch().await;
        assert_eq!((answer.status, answer.limit_lines()), (200, vec![]));
        assert_eq!(answer.body, "failed_open");
    }
}

pub(super) async fn requests_are_rejected_when_the_store_is_down_if_configured<T: Target>() {
    let (_nobody, url) = nobody();
    let site = T::serve(vec![HttpLimiter::new(limiter(&url, OnFailure::Reject).await)]);
    let answer = site.get("/").fetch().await;
    assert_eq!((answer.status, answer.limit_lines()), (503, vec!["retry-after: 1".to_owned()]));
    assert_eq!(
        answer.body,
        r#"{"code":503,"message":"The rate limiter cannot decide at the moment. Try again in 1 second."}"#
    );
    assert_eq!(
        (answer.header("content-type"), answer.header("cache-control"), site.handled()),
        (Some("application/json"), Some("no-store"), 0)
    );
}

/// Fault: during an outage, headers and bodies showed this instance's share as the limit.
pub(super) async fn a_fallback_enforces_a_share_and_shows_the_configured_limit<T: Target>() {
    let (_nobody, url) = nobody();
    let store = RedisStore::connect(&url).await.unwrap();
    let builder = RateLimiter::builder().limit(Limit::per_day(9)).store(store).deadline(PATIENCE);
    let builder = builder.fallback(MemoryStore::new(), Share::with_instances(4));
    let site = T::serve(vec![HttpLimiter::new(builder.build().unwrap())]);
    let first = site.get("/").fetch().await;
    assert_eq!((first.standing().as_str(), &*first.body), ("200 9-1-86400", "fallback day 1/2"));
    assert!(site.get("/").fetch().await.standing().starts_with("200 9-0-"));
    let denied = site.get("/").fetch().await;
    assert!(denied.standing().starts_with("429 9-0-"), "{}", denied.standing());
    assert!(denied.body.contains("Too many requests: 9 per day."), "{}", denied.body);
    assert!(denied.header("retry-after").is_some());
}

/// Fault: if the share of an instance was less than one unit, it rejected every request with 503.
pub(super) async fn a_share_grants_at_least_one_request<T: Target>() {
    let (_nobody, url) = nobody();
    let store = RedisStore::connect(&url).await.unwrap();
    let builder = RateLimiter::builder().limit(Limit::per_day(3)).store(store).deadline(PATIENCE);
    let builder = builder.fallback(MemoryStore::new(), Share::with_instances(4));
    let site = T::serve(vec![HttpLimiter::new(builder.build().unwrap())]);
    assert_eq!(site.get("/").fetch().await.standing(), "200 3-0-86400");
    assert!(site.get("/").fetch().await.standing().starts_with("429 3-0-"));
    assert_eq!(site.handled(), 1);
}

pub(super) async fn grpc_calls_get_a_grpc_status_for_an_outage<T: Target>() {
    let (_nobody, url) = nobody();
    let site = T::serve(vec![HttpLimiter::new(limiter(&url, OnFailure::Reject).await)]);
    let answer = site.post("/").header("content-type", "application/grpc").fetch().await;
    assert_eq!(answer.standing(), "200, retry 1");
    let fields = ["grpc-status", "grpc-retry-pushback-ms"].map(|name| answer.header(name));
    assert_eq!((fields, site.handled()), ([Some("14"), Some("1000")], 0));
}

/// A client may be able to damage the counter of its own subject. It must not escape the limit in
/// this way.
pub(super) async fn a_damaged_counter_does_not_lift_the_limit<T: Target>() {
    let redis = RedisServer::start();
    let store = RedisStore::builder(&redis.url()).connection_wait(PATIENCE).connect().await;
    let site = T::serve(vec![HttpLimiter::new(on(store.unwrap(), OnFailure::Allow))]);
    assert_eq!(site.get("/").fetch().await.standing(), "200 1-0-86400");

    let keys: Vec<String> = redis.query("KEYS *").await;
    let [key] = &*keys else { panic!("{keys:?}") };
    let _: u64 = redis.query(&format!("DEL {key}")).await;
    let _: u64 = redis.query(&format!("LPUSH {key} poison")).await;
    let answer = site.get("/").fetch().await;
    assert_eq!((answer.standing().as_str(), site.handled()), ("503, retry 1", 1));
}

/// An outage of Redis must not lift a block.
pub(super) async fn a_block_holds_when_the_store_is_down<T: Target>() {
    let policies = |subject: &Subject| {
        let day = Policy::new([Limit::per_day(1)]).unwrap();
        Some(if subject.realm() == &Realm::Consumer { day.blocked_until(None) } else { day })
    };
    let (_socket, url) = nobody();
    let store = RedisStore::connect(&url).await.unwrap();
    let limiter = RateLimiter::builder().policies(policies).store(store).build().unwrap();
    let site =
        T::serve(vec![HttpLimiter::new(limiter).key(Identified.or(ClientAddress::default()))]);
    for _ in 0..5 {
        assert_eq!(site.get("/").fetch().await.standing(), "200", "nothing is counted");
        let blocked = site.get("/").header("x-consumer", "abc").fetch().await;
        assert_eq!(blocked.standing(), "429 0-0");
    }
}

pub(super) async fn a_service_that_starts_before_its_store_enforces_limits_once_the_store_runs<
    T: Target,
>() {
    let mut redis = RedisServer::stopped();
    let site = T::serve(vec![HttpLimiter::new(limiter(&redis.url(), OnFailure::Allow).await)]);
    assert_eq!(site.get("/").fetch().await.standing(), "200");

    redis.restart();
    // The pool reconnects only after a delay. So the test sends requests until the limiter has
    // counted one.
    let enforced = async {
        loop {
            let answer = site.get("/").fetch().await;
            if answer.standing() != "200" {
                return answer;
            }
        }
    };
    let first = tokio::time::timeout(PATIENCE, enforced).await.unwrap();
    assert_eq!(first.standing(), "200 1-0-86400");
    assert_eq!(site.get("/").fetch().await.status, 429);
}
