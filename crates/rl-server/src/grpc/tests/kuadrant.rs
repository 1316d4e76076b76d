//! Calls of Kuadrant's service, decided in memory.

use std::future::pending;
use std::time::Duration;

use tokio::time::timeout;

use super::{DomainRule, decisions, descriptor, rule};
use crate::domains::Charge;
use crate::grpc::KuadrantService;
use crate::grpc::messages::{
    Code, CommitRequest, RateLimitDescriptor, RateLimitRequest, ReserveRequest, ReserveResponse,
};

const HOLD: Duration = Duration::from_secs(30);

fn service(rules: impl IntoIterator<Item = (&'static str, DomainRule)>) -> KuadrantService {
    KuadrantService::new(decisions(rules))
}

/// Creates a service with a limit of tokens for each user.
fn tokens(limits: &[&str]) -> KuadrantService {
    service([("tokens", rule(&["user"], limits))])
}

fn alice() -> Vec<RateLimitDescriptor> {
    vec![descriptor(&[("user", "alice")])]
}

fn request(descriptors: Vec<RateLimitDescriptor>, hits: u32) -> RateLimitRequest {
    RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: hits }
}

/// Moves the paused clock on, and runs the tasks that are due by then.
async fn pass(time: Duration) {
    let _ = timeout(time, pending::<()>()).await;
}

async fn reserve(service: &KuadrantService, amount: u64, ttl: Duration) -> ReserveResponse {
    let ttl = Some(prost_types::Duration::try_from(ttl).unwrap());
    let (domain, descriptors) = ("edge".into(), alice());
    service.reserve(ReserveRequest { domain, descriptors, amount, ttl }, None).await.unwrap()
}

/// Returns whether the reservation was still held.
async fn commit(service: &KuadrantService, id: &str, actual_amount: u64) -> bool {
    let (domain, reservation_id) = ("edge".into(), id.to_owned());
    let request = CommitRequest { domain, descriptors: alice(), reservation_id, actual_amount };
    service.commit(request).await.unwrap().reservation_released
}

/// Returns the remaining units of the descriptors.
async fn remaining(service: &KuadrantService, descriptors: Vec<RateLimitDescriptor>) -> Vec<u32> {
    let response = service.check_rate_limit(request(descriptors, 0)).await.unwrap();
    response.statuses.iter().map(|status| status.limit_remaining).collect()
}

#[tokio::test]
async fn a_check_charges_nothing_and_a_report_charges_beyond_the_limits() {
    for charge in [Charge::Before, Charge::After] {
        let tokens = DomainRule { charge, ..rule(&["user"], &["100/hour"]) };
        let service = service([("tokens", tokens)]);
        for hits in [0, 1, 100] {
            let response = service.check_rate_limit(request(alice(), hits)).await.unwrap();
            assert_eq!(response.overall_code(), Code::Ok, "{charge:?}, {hits}");
            assert_eq!(response.statuses[0].limit_remaining, 100, "{charge:?}, {hits}");
        }
        let response = service.check_rate_limit(request(alice(), 101)).await.unwrap();
        assert_eq!(response.overall_code(), Code::OverLimit);

        let response = service.report(request(alice(), 5_000)).await.unwrap();
        assert_eq!(response.overall_code(), Code::Ok);
        assert_eq!(response.statuses[0].code(), Code::Ok);
        let mut asks = alice();
        asks[0].hits_addend = Some(0);
        for descriptors in [alice(), asks] {
            let response = service.check_rate_limit(request(descriptors, 0)).await.unwrap();
            assert_eq!(response.overall_code(), Code::OverLimit, "{charge:?}");
            assert_eq!(response.statuses[0].code(), Code::OverLimit, "{charge:?}");
        }
    }
}

#[tokio::test]
async fn a_reservation_counts_until_its_commit_sets_the_cost() {
    for (actual, left) in [(25, 75), (60, 40), (0, 100), (500, 0)] {
        let service = tokens(&["100/hour"]);
        let reserved = reserve(&service, 40, HOLD).await;
        assert_eq!((reserved.code(), remaining(&service, alice()).await), (Code::Ok, vec![60]));
        assert!(commit(&service, &reserved.reservation_id, actual).await);
        assert_eq!(remaining(&service, alice()).await, [left], "{actual}");
        // The id has no further effect, but the units of a second commit were used too.
        assert!(!commit(&service, &reserved.reservation_id, 0).await);
        assert_eq!(remaining(&service, alice()).await, [left], "{actual}");
    }
}

#[tokio::test]
async fn a_reservation_beyond_a_limit_is_denied_and_holds_nothing() {
    let service = service([
        ("tokens", rule(&["user"], &["100/hour"])),
        ("model", rule(&["model"], &["60/hour", "1000/day"])),
    ]);
    let both = || vec![descriptor(&[("user", "alice")]), descriptor(&[("model", "m")])];
    let reserve = |amount| {
        let (domain, ttl) = ("edge".into(), None);
        service.reserve(ReserveRequest { domain, descriptors: both(), amount, ttl }, None)
    };
    let first = reserve(30).await.unwrap();
    let second = reserve(30).await.unwrap();
    assert_eq!(remaining(&service, both()).await, [40, 0]);
    let denied = reserve(30).await.unwrap();
    assert_eq!((denied.code(), &*denied.reservation_id), (Code::OverLimit, ""));
    assert_eq!(remaining(&service, both()).await, [40, 0]);
    for (id, released) in [(first.reservation_id, true), (second.reservation_id, true)] {
        let (domain, descriptors) = ("edge".into(), both());
        let commit = CommitRequest { domain, descriptors, reservation_id: id, actual_amount: 5 };
        assert_eq!(service.commit(commit).await.unwrap().reservation_released, released);
    }
    assert_eq!(remaining(&service, both()).await, [90, 50]);
}

#[tokio::test(start_paused = true)]
async fn an_expired_reservation_is_refunded_and_its_commit_charges_the_whole_cost() {
    let service = tokens(&["100/hour"]);
    let reserved = reserve(&service, 40, HOLD).await;
    pass(HOLD - Duration::from_secs(1)).await;
    assert_eq!(remaining(&service, alice()).await, [60]);
    pass(Duration::from_secs(2)).await;
    assert_eq!(remaining(&service, alice()).await, [100]);
    assert!(!commit(&service, &reserved.reservation_id, 30).await);
    assert_eq!(remaining(&service, alice()).await, [70]);
    for unknown in ["", "0123", "not an id"] {
        assert!(!commit(&service, unknown, 10).await);
    }
    assert_eq!(remaining(&service, alice()).await, [40]);
}

#[tokio::test(start_paused = true)]
async fn no_reservation_is_longer_than_the_longest_hold() {
    let service = tokens(&["100/hour"]).longest_hold(HOLD);
    for ttl in [HOLD * 100, Duration::ZERO] {
        reserve(&service, 40, ttl).await;
        pass(HOLD - Duration::from_secs(1)).await;
        assert_eq!(remaining(&service, alice()).await, [60], "{ttl:?}");
        pass(Duration::from_secs(2)).await;
        assert_eq!(remaining(&service, alice()).await, [100], "{ttl:?}");
    }
}

#[tokio::test]
async fn a_large_estimate_holds_at_most_half_of_the_smallest_limit() {
    let service = tokens(&["101/hour", "1000/day"]);
    let reserved = reserve(&service, 5_000, HOLD).await;
    assert_eq!((reserved.code(), remaining(&service, alice()).await), (Code::Ok, vec![50]));
    assert!(commit(&service, &reserved.reservation_id, 5_000).await);
    assert_eq!(remaining(&service, alice()).await, [0], "the cost is not bounded");
    let banned = tokens(&["0/hour"]);
    assert_eq!(reserve(&banned, 5_000, HOLD).await.code(), Code::OverLimit);
}

#[tokio::test]
async fn a_reservation_of_nothing_is_denied_if_no_unit_is_left() {
    let service = tokens(&["100/hour"]);
    let reserved = reserve(&service, 0, HOLD).await;
    assert_eq!((reserved.code(), remaining(&service, alice()).await), (Code::Ok, vec![100]));
    assert!(commit(&service, &reserved.reservation_id, 100).await);
    assert_eq!(remaining(&service, alice()).await, [0]);
    assert_eq!(reserve(&service, 0, HOLD).await.code(), Code::OverLimit);
}

/// Fault: one peer could hold all reservations, and no line said so.
#[tokio::test]
async fn a_peer_that_reserves_all_it_can_charges_no_more_and_leaves_some_to_others() {
    let decisions = decisions([("tokens", rule(&["user"], &["100/hour"]))]).max_reservations(3);
    let service = KuadrantService::new(decisions);
    let (domain, ttl) = ("edge".into(), None);
    let ten = ReserveRequest { domain, descriptors: alice(), amount: 10, ttl };
    let reserve = |last| service.reserve(ten.clone(), Some([192, 0, 2, last].into()));
    let first = reserve(1).await.unwrap();
    reserve(1).await.unwrap();
    let error = reserve(1).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::ResourceExhausted);
    assert_eq!(remaining(&service, alice()).await, [80]);
    assert_eq!(reserve(2).await.unwrap().code(), Code::Ok);
    assert!(commit(&service, &first.reservation_id, 10).await, "no other peer ends a reservation");
    assert_eq!(remaining(&service, alice()).await, [70]);
    assert_eq!(reserve(3).await.unwrap().code(), Code::Ok);
}

#[tokio::test]
async fn descriptors_without_a_rule_are_allowed_and_hold_nothing() {
    let service = tokens(&["100/hour"]);
    let unknown = vec![descriptor(&[("other", "x")])];
    let (domain, ttl) = ("edge".into(), None);
    let reserve = ReserveRequest { domain, descriptors: unknown.clone(), amount: 10, ttl };
    let reserved = service.reserve(reserve, None).await.unwrap();
    assert_eq!((reserved.code(), &*reserved.reservation_id), (Code::Ok, ""));
    assert_eq!(service.report(request(unknown, 3)).await.unwrap().overall_code(), Code::Ok);
}
