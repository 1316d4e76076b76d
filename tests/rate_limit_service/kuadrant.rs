use rl_server::grpc::messages::{
    Code, CommitRequest, CommitResponse, RateLimitRequest, RateLimitResponse, ReserveRequest,
    ReserveResponse,
};

use super::{SHOULD_RATE_LIMIT, Served, descriptor, request, user_rules};

const CHECK: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit";
const REPORT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Report";
const RESERVE: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve";
const COMMIT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Commit";

fn user(hits_addend: u32) -> RateLimitRequest {
    RateLimitRequest { hits_addend, ..request([descriptor("user", "alice")]) }
}

pub(super) async fn reserve(served: &Served, amount: u64) -> ReserveResponse {
    let RateLimitRequest { domain, descriptors, .. } = user(0);
    let ttl = Some(prost_types::Duration { seconds: 50, nanos: 0 });
    served.call(RESERVE, ReserveRequest { domain, descriptors, amount, ttl }).await.unwrap()
}

/// Returns whether the reservation was still held.
pub(super) async fn commit(served: &Served, id: &str, actual_amount: u64) -> bool {
    let RateLimitRequest { domain, descriptors, .. } = user(0);
    let reservation_id = id.to_owned();
    let commit = CommitRequest { domain, descriptors, reservation_id, actual_amount };
    let response: CommitResponse = served.call(COMMIT, commit).await.unwrap();
    response.reservation_released
}

pub(super) async fn remaining(served: &Served) -> u32 {
    let response: RateLimitResponse = served.call(CHECK, user(0)).await.unwrap();
    response.statuses[0].limit_remaining
}

#[tokio::test]
async fn checks_reports_and_envoys_calls_share_the_counters() {
    let served = Served::in_memory(user_rules(&["100/hour"])).await;
    assert_eq!(served.ask(user(10)).await.overall_code(), Code::Ok);
    assert_eq!(remaining(&served).await, 90);
    let report: RateLimitResponse = served.call(REPORT, user(5_000)).await.unwrap();
    assert_eq!((report.overall_code(), report.statuses.len()), (Code::Ok, 1));
    let check: RateLimitResponse = served.call(CHECK, user(0)).await.unwrap();
    assert_eq!(check.overall_code(), Code::OverLimit);
    let retry = check.response_headers_to_add.iter().find(|one| one.key == "retry-after");
    assert_eq!(retry.unwrap().value, "3600");
    let denied: RateLimitResponse = served.call(SHOULD_RATE_LIMIT, user(0)).await.unwrap();
    assert_eq!(denied.overall_code(), Code::OverLimit);
}

#[tokio::test]
async fn reservations_bound_the_requests_that_run_at_once() {
    let served = Served::in_memory(user_rules(&["100/hour"])).await;
    let granted = futures::future::join_all((0..20).map(|_| reserve(&served, 10))).await;
    let (granted, denied): (Vec<_>, Vec<_>) =
        granted.into_iter().partition(|reserved| reserved.code() == Code::Ok);
    assert_eq!((granted.len(), denied.len()), (10, 10));
    assert!(denied.iter().all(|reserved| reserved.reservation_id.is_empty()));
    // Envoy's own calls count what is held.
    assert_eq!(served.ask(user(1)).await.overall_code(), Code::OverLimit);
    let released = granted.iter().map(|reserved| commit(&served, &reserved.reservation_id, 3));
    assert!(futures::future::join_all(released).await.into_iter().all(|released| released));
    assert_eq!(remaining(&served).await, 70);
    assert!(!commit(&served, &granted[0].reservation_id, 3).await, "it was committed before");
    assert_eq!(remaining(&served).await, 67);
}
