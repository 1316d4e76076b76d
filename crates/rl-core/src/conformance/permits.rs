//! Checks clause 11 of the contract of [`Store`](crate::store::Store): permits of concurrency
//! limits.

use std::time::Duration;

use super::clause::{Clause, require, require_eq};
use super::subject::{over, policy, used};
use super::suite::Suite;
use crate::decision::RetryAfter;
use crate::model::{Algorithm, Limit, Period};
use crate::policy::Policy;
use crate::store::RefundOf;
use crate::time::{Clock, ManualClock};

pub(super) async fn check(suite: &Suite) {
    a_renewal_without_a_permit_changes_nothing(suite).await;
    if !suite.holds(Algorithm::Concurrency) {
        return;
    }
    permits_are_given_back_apart_from_rates(suite).await;
    a_permit_ends_with_its_lease(suite).await;
    a_renewal_replaces_the_time_of_the_charge(suite).await;
    a_permit_that_is_lost_under_one_limit_is_not_renewed(suite).await;
    if let Some(clock) = suite.time.manual() {
        a_renewed_lease_ends_to_the_microsecond(suite, clock).await;
    }
}

async fn a_renewal_without_a_permit_changes_nothing(suite: &Suite) {
    let (subject, policy) = (suite.subject(), policy(&[Limit::per_hour(5)]));
    let decision = subject.check(&policy, 1).await;
    let renewed = subject.renew(&policy, decision.at(), 1).await;
    require_eq(Clause::Permit, renewed, Some(decision.at()), "a renewal without a permit");
    require_eq(Clause::Permit, subject.used(&policy).await, vec![1], "the count after it");
}

/// Returns a concurrency limit of `max` permits with this lease.
fn permits(max: u64, lease: Period) -> Limit {
    Limit::concurrency(max).and_then(|limit| limit.with_lease(lease)).expect("a limit")
}

async fn permits_are_given_back_apart_from_rates(suite: &Suite) {
    use Clause::Permit;

    let subject = suite.subject();
    let policy = policy(&[Limit::per_hour(9), permits(2, Period::HOUR)]);
    let first = subject.check(&policy, 1).await;
    let second = subject.check(&policy, 1).await;
    let got = (first.is_allowed(), second.is_allowed());
    require_eq(Permit, got, (true, true), "two requests under 2:concurrency");
    let denied = subject.check(&policy, 1).await;
    let got = (over(&denied), used(&denied));
    require_eq(Permit, got, (vec!["concurrency"], vec![2, 2]), "the third request");

    subject.refund_of(&first, 1, RefundOf::Permits).await;
    require_eq(Permit, subject.used(&policy).await, vec![2, 1], "only the permit is released");
    let third = subject.check(&policy, 1).await;
    let got = (third.is_allowed(), used(&third));
    require_eq(Permit, got, (true, vec![3, 2]), "a request in its place");
    subject.refund_of(&third, 1, RefundOf::Rates).await;
    require_eq(Permit, subject.used(&policy).await, vec![2, 2], "only the rates are refunded");
    subject.refund_of(&third, 1, RefundOf::All).await;
    require_eq(Permit, subject.used(&policy).await, vec![1, 1], "both are refunded");
}

async fn a_permit_ends_with_its_lease(suite: &Suite) {
    use Clause::Permit;

    let (subject, policy) = (suite.subject(), policy(&[permits(1, Period::SECOND)]));
    let held = subject.check(&policy, 1).await;
    require(Permit, held.is_allowed(), "the first request under 1:concurrency");
    suite.time.pass(Duration::from_secs(1)).await;
    require_eq(Permit, subject.used(&policy).await, vec![0], "permits after the lease");
    let renewed = subject.renew(&policy, held.at(), 1).await;
    require_eq(Permit, renewed, None, "a renewal after the lease has ended");
    let next = subject.check(&policy, 1).await;
    require(Permit, next.is_allowed(), "the next request after the lease");
    subject.refund(&held, 1).await;
    let what = "a permit whose lease has ended gives nothing back";
    require_eq(Permit, subject.used(&policy).await, vec![1], what);
}

async fn a_renewal_replaces_the_time_of_the_charge(suite: &Suite) {
    use Clause::Permit;

    let (subject, policy) = (suite.subject(), policy(&[permits(3, Period::HOUR)]));
    let held = subject.check(&policy, 2).await;
    suite.time.pass(Duration::from_millis(5)).await;
    let renewed = subject.renew(&policy, held.at(), 2).await;
    require(Permit, renewed > Some(held.at()), "a renewal begins the lease anew");
    let Some(renewed) = renewed else { return };
    require_eq(Permit, subject.used(&policy).await, vec![2], "permits after a renewal");
    let again = subject.renew(&policy, held.at(), 2).await;
    require_eq(Permit, again, None, "a renewal by the time before the last one");
    subject.refund(&held, 2).await;
    require_eq(Permit, subject.used(&policy).await, vec![2], "a refund by that time");
    let again = subject.renew(&policy, renewed, 2).await;
    require(Permit, again >= Some(renewed), "a second renewal");
    subject.reset(&policy, None).await;
    let lost = subject.renew(&policy, again.unwrap_or(renewed), 2).await;
    require_eq(Permit, lost, None, "a renewal after a reset");
    require_eq(Permit, subject.used(&policy).await, vec![0], "permits after a reset");
}

async fn a_permit_that_is_lost_under_one_limit_is_not_renewed(suite: &Suite) {
    let subject = suite.subject();
    let (short, long) = (permits(5, Period::SECOND), permits(5, Period::HOUR));
    let policy = Policy::builder().named("short", short).named("long", long).build();
    let policy = policy.expect("a policy");
    let held = subject.check(&policy, 1).await;
    suite.time.pass(Duration::from_secs(1)).await;
    let renewed = subject.renew(&policy, held.at(), 1).await;
    require_eq(Clause::Permit, renewed, None, "a renewal after one of two leases has ended");
    require_eq(Clause::Permit, subject.used(&policy).await, vec![0, 1], "it changes nothing");
    subject.refund_of(&held, 1, RefundOf::Permits).await;
    let what = "units that are still held can be released";
    require_eq(Clause::Permit, subject.used(&policy).await, vec![0, 0], what);
}

async fn a_renewed_lease_ends_to_the_microsecond(suite: &Suite, clock: &ManualClock) {
    use Clause::Permit;

    let (subject, policy) = (suite.subject(), policy(&[permits(1, Period::SECOND)]));
    let held = subject.check(&policy, 1).await;
    clock.advance(Duration::from_micros(999_999));
    let renewed = subject.renew(&policy, held.at(), 1).await;
    require_eq(Permit, renewed, Some(clock.now()), "a renewal a microsecond before the end");
    let wait = subject.check(&policy, 1).await.retry_after();
    require_eq(Permit, wait, RetryAfter::In(Duration::from_secs(1)), "the wait for it");
    clock.advance(Duration::from_micros(999_999));
    let is_allowed = subject.check(&policy, 1).await.is_allowed();
    require(Permit, !is_allowed, "the renewed lease lasts for a whole second");
    clock.advance(Duration::from_micros(1));
    let is_allowed = subject.check(&policy, 1).await.is_allowed();
    require(Permit, is_allowed, "the renewed lease ends after a second");
}
