//! Rules of a gRPC service: denials, delays, costs, and permits of streams.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use rl_core::key::ClientAddress;
use rl_core::rules::{Match, Rule, RuleSource, Rules, RulesFile};
use rl_core::{Limit, MemoryStore, RateLimiter, Realm, Subject};
use rl_tests::web::{eventually, new_year};
use rl_tower::RateLimitLayer;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

/// Serves health checks under rules.
async fn serve(rules: Vec<Rule>) -> (RateLimiter, HealthClient<Channel>) {
    serve_under(rules.into_iter().fold(Rules::new(), Rules::rule)).await
}

async fn serve_under(rules: impl Into<RuleSource>) -> (RateLimiter, HealthClient<Channel>) {
    let store = MemoryStore::builder().clock(new_year()).build();
    let limiter = RateLimiter::builder().rules(rules).store(store).build().unwrap();
    let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address: SocketAddr = incoming.local_addr().unwrap();
    let (health, service) = tonic_health::server::health_reporter();
    health.set_service_status("", ServingStatus::Serving).await;
    let server = Server::builder().layer(RateLimitLayer::new(limiter.clone())).add_service(service);
    tokio::spawn(server.serve_with_incoming(incoming));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    (limiter, HealthClient::new(endpoint.connect().await.unwrap()))
}

fn rule(name: &str, limit: &str) -> Rule {
    Rule::named(name).limit(limit.parse::<Limit>().unwrap())
}

fn per_address(name: &str, limit: &str) -> Rule {
    rule(name, limit).per(ClientAddress::default())
}

fn request() -> HealthCheckRequest {
    HealthCheckRequest::default()
}

/// Returns the used units of the first limit under a rule.
async fn used(limiter: &RateLimiter, rule: &str, subject: &Subject) -> u64 {
    let usage = limiter.rule(rule).of(subject).usage().await.unwrap();
    usage.limits().next().unwrap().used()
}

fn delay(status: &Status) -> Option<Duration> {
    status.get_details_retry_info().and_then(|info| info.retry_delay)
}

#[tokio::test]
async fn a_denied_call_names_its_limit_and_is_charged_under_no_rule() {
    let rules = vec![per_address("calls", "2/minute"), rule("fleet", "9/hour")];
    let (limiter, mut client) = serve(rules).await;
    for remaining in ["1", "0"] {
        let response = client.check(request()).await.unwrap();
        assert_eq!(response.metadata().get("x-rate-limit-remaining").unwrap(), remaining);
    }
    let denied = client.check(request()).await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    let message = "Too many requests: 2 per minute. Try again in 60 seconds.";
    assert_eq!((denied.message(), delay(&denied)), (message, Some(Duration::from_secs(60))));
    assert_eq!(used(&limiter, "fleet", &Subject::global()).await, 2);
}

#[tokio::test]
async fn a_denial_by_an_undisclosed_rule_has_a_delay_but_no_quota() {
    let rules = vec![per_address("calls", "9/hour"), rule("fleet", "1/minute")];
    let (limiter, mut client) = serve(rules).await;
    assert!(client.check(request()).await.is_ok());
    let denied = client.check(request()).await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert_eq!(delay(&denied), Some(Duration::from_secs(60)));
    assert!(denied.get_details_quota_failure().is_none_or(|quota| quota.violations.is_empty()));
    assert!(!denied.message().contains('1'), "{}", denied.message());
    assert_eq!(used(&limiter, "calls", &Subject::ip([127, 0, 0, 1])).await, 1);
}

#[tokio::test]
async fn a_method_has_a_rule_with_a_cost_of_its_own() {
    let watch = Match::new().path("/grpc.health.v1.Health/Watch");
    let streams = per_address("watches", "100/hour").matching(watch).cost(30);
    let (limiter, mut client) = serve(vec![streams, per_address("calls", "9/hour")]).await;
    client.check(request()).await.unwrap();
    client.watch(request()).await.unwrap();
    let address = Subject::ip([127, 0, 0, 1]);
    assert_eq!(used(&limiter, "watches", &address).await, 30);
    assert_eq!(used(&limiter, "calls", &address).await, 2);
}

#[tokio::test]
async fn the_place_of_a_stream_is_free_when_the_client_ends_it() {
    let rules = vec![per_address("streams", "1:concurrency"), rule("fleet", "9/hour")];
    let (limiter, mut client) = serve(rules).await;
    let mut changes = client.watch(request()).await.unwrap().into_inner();
    assert!(changes.message().await.unwrap().is_some());
    assert_eq!(client.watch(request()).await.unwrap_err().code(), Code::ResourceExhausted);
    drop(changes);
    let address = Subject::ip([127, 0, 0, 1]);
    eventually(async || used(&limiter, "streams", &address).await == 0).await;
    assert!(client.watch(request()).await.is_ok());
    assert_eq!(used(&limiter, "fleet", &Subject::global()).await, 2);
}

#[tokio::test]
async fn calls_with_invented_keys_share_the_limit_of_their_address_under_a_file_of_keys() {
    let folder = tempfile::tempdir().unwrap();
    // The hash of `key-of-alice`.
    let hash = "d16a80956c32f3f5fb979bea408abac8c3eef6c54ecb234279e337146cf87b47";
    let keys = format!("- {{ sha256: {hash}, name: alice }}\n");
    std::fs::write(folder.path().join("keys.yaml"), keys).unwrap();
    let rules = "keys: { from: bearer, file: keys.yaml }\n\
                 rules: { clients: { per: [key, address], limits: 3/hour } }\n";
    let path = folder.path().join("limits.yaml");
    std::fs::write(&path, rules).unwrap();
    let file = RulesFile::builder(path).pause(Duration::from_millis(10)).watch().unwrap();
    let (limiter, mut client) = serve_under(&file).await;
    let with_key = |key: &str| {
        let mut request = tonic::Request::new(request());
        request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        request
    };
    let mut passed = 0;
    for number in 0..40 {
        passed += usize::from(client.check(with_key(&format!("invented-{number}"))).await.is_ok());
    }
    assert_eq!(passed, 3, "the limit of the address");
    assert!(client.check(with_key("key-of-alice")).await.is_ok());
    assert_eq!(used(&limiter, "clients", &Subject::new(Realm::Key, "alice")).await, 1);
}
