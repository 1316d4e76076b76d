//! Fault T8 of `README.md`: denials that gRPC clients cannot read. The tests use a real server and
//! a real client.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rl_core::adapter::HttpLimiter;
use rl_core::denial::Denial;
use rl_core::headers::Headers;
use rl_core::source::{PolicyFuture, PolicySource};
use rl_core::{FailureKind, MaybeReady, OnFailure, RateLimiter, StoreError, Subject};
use rl_tests::web::{limiter, new_year};
use rl_tower::RateLimitLayer;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

/// Serves health checks behind a limiter.
async fn serve(http: HttpLimiter) -> SocketAddr {
    let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = incoming.local_addr().unwrap();
    let (health, service) = tonic_health::server::health_reporter();
    health.set_service_status("", ServingStatus::Serving).await;
    let server = Server::builder().layer(RateLimitLayer::from(http)).add_service(service);
    tokio::spawn(server.serve_with_incoming(incoming));
    address
}

/// Returns a client that connects from this address.
async fn client(server: SocketAddr, from: [u8; 4]) -> HealthClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{server}")).unwrap();
    let endpoint = endpoint.local_address(Some(IpAddr::from(from)));
    HealthClient::new(endpoint.connect().await.unwrap())
}

async fn check(client: &mut HealthClient<Channel>) -> Result<tonic::metadata::MetadataMap, Status> {
    let response = client.check(HealthCheckRequest { service: String::new() }).await?;
    Ok(response.metadata().clone())
}

fn two_per_minute() -> RateLimiter {
    limiter(&new_year(), &["2/minute"])
}

/// The client is not at fault if the server does not report the peer.
#[tokio::test]
async fn a_call_without_a_peer_is_an_internal_error() {
    let (_, service) = tonic_health::server::health_reporter();
    let routes = tonic::service::Routes::new(service).into_axum_router();
    let routes = routes.layer(RateLimitLayer::new(two_per_minute()));
    let call = http::Request::post("/grpc.health.v1.Health/Check");
    let call = call.header("content-type", "application/grpc");
    let call = call.body(axum::body::Body::empty()).unwrap();
    let answer = tower::ServiceExt::oneshot(routes, call).await.unwrap();
    assert_eq!(answer.status(), 200);
    let status = answer.headers().get("grpc-status").unwrap();
    assert_eq!(status.to_str().unwrap().parse(), Ok(Code::Internal as i32));
}

/// gRPC clients treat HTTP 429 as an outage, `UNAVAILABLE`, and retry immediately. So a denial must
/// be a gRPC response with its own code.
#[tokio::test]
async fn t08_a_denied_call_is_resource_exhausted() {
    let server = serve(HttpLimiter::new(two_per_minute())).await;
    let mut client = client(server, [127, 0, 0, 1]).await;
    for remaining in ["1", "0"] {
        let metadata = check(&mut client).await.unwrap();
        assert_eq!(metadata.get("x-rate-limit-remaining").unwrap(), remaining);
    }
    let denied = check(&mut client).await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert_eq!(denied.message(), "Too many requests: 2 per minute. Try again in 60 seconds.");
    let metadata = |name: &str| denied.metadata().get(name).map(|value| value.to_str().unwrap());
    assert_eq!(metadata("grpc-retry-pushback-ms"), Some("60000"));
    assert_eq!(metadata("retry-after"), Some("60"));
}

/// Clients that follow Google's API guidance read the time of the retry and the exceeded limits.
#[tokio::test]
async fn a_denied_call_carries_retry_info_and_quota_failure() {
    let limits = ["1/minute:unit=tokens", "3/day:requests"];
    let server = serve(HttpLimiter::new(limiter(&new_year(), &limits))).await;
    let mut client = client(server, [127, 0, 0, 1]).await;
    assert!(check(&mut client).await.is_ok());
    let denied = check(&mut client).await.unwrap_err();
    let details = denied.check_error_details().unwrap();
    let retry_delay = details.retry_info().unwrap().retry_delay;
    assert_eq!(retry_delay, Some(std::time::Duration::from_secs(60)));
    let [violation] = &*details.quota_failure().unwrap().violations else { panic!("{details:?}") };
    let words = (violation.subject.as_str(), violation.description.as_str());
    assert_eq!(words, ("minute", "1 token per minute"));
}

/// Waiting does not help a blocked caller, so the response contains no time of a retry.
#[tokio::test]
async fn a_call_of_a_blocked_caller_carries_no_retry_info() {
    let server = serve(HttpLimiter::new(limiter(&new_year(), &["0/minute", "0/day"]))).await;
    let denied = check(&mut client(server, [127, 0, 0, 1]).await).await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    let details = denied.check_error_details().unwrap();
    assert!(details.retry_info().is_none());
    assert_eq!(details.quota_failure().unwrap().violations.len(), 2);
}

/// The limiter cannot decide. The client has not exceeded a quota, so the response reports none.
#[tokio::test]
async fn a_call_that_cannot_be_decided_carries_retry_info_alone() {
    let http = HttpLimiter::new(undecided());
    let server = serve(http.deny_with(|_, _| Denial::json(429, "{}"))).await;
    let denied = check(&mut client(server, [127, 0, 0, 1]).await).await.unwrap_err();
    assert_eq!(denied.code(), Code::Unavailable, "whatever a responder makes of it");
    let details = denied.check_error_details().unwrap();
    let retry_delay = details.retry_info().unwrap().retry_delay;
    assert_eq!(retry_delay, Some(std::time::Duration::from_secs(1)));
    assert!(details.quota_failure().is_none());
}

/// Returns a limiter that rejects all requests, because it cannot look up their policies.
fn undecided() -> RateLimiter {
    struct Down;

    impl PolicySource for Down {
        fn policy(&self, _: &Subject) -> PolicyFuture {
            MaybeReady::ready(Err(StoreError::new(FailureKind::Unavailable)))
        }
    }

    let builder = RateLimiter::builder().policies(Down).on_store_failure(OnFailure::Reject);
    builder.build().unwrap()
}

/// tonic and axum store the peer's address in different extensions. An extractor that reads only
/// the extension of axum rejects all clients, or counts them together.
#[tokio::test]
async fn t08_callers_are_counted_by_the_address_that_tonic_knows() {
    let server = serve(HttpLimiter::new(two_per_minute()).headers(Headers::none())).await;
    let mut one = client(server, [127, 0, 0, 1]).await;
    let mut same = client(server, [127, 0, 0, 1]).await;
    let mut other = client(server, [127, 0, 0, 2]).await;
    assert!(check(&mut one).await.is_ok() && check(&mut same).await.is_ok());
    assert_eq!(check(&mut one).await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(check(&mut same).await.unwrap_err().code(), Code::ResourceExhausted);
    assert!(check(&mut other).await.is_ok());
}

/// The responses of the service, including their trailers, are the same as without a limiter.
#[tokio::test]
async fn t08_the_status_of_the_service_arrives() {
    let server = serve(HttpLimiter::new(limiter(&new_year(), &["9/minute"]))).await;
    let mut client = client(server, [127, 0, 0, 1]).await;
    let unknown = HealthCheckRequest { service: "unknown".into() };
    assert_eq!(client.check(unknown).await.unwrap_err().code(), Code::NotFound);
    let mut changes = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(changes.message().await.unwrap().unwrap().status, ServingStatus::Serving as i32);
}
