//! Checks clause 8 of the contract of [`Store`](crate::store::Store): refunds.

use std::time::Duration;

use super::clause::{Clause, require_eq};
use super::subject::policy;
use super::suite::Suite;
use crate::model::Limit;

pub(super) async fn check(suite: &Suite) {
    a_refund_stays_in_its_window(suite).await;
    a_refund_of_another_subject_changes_nothing(suite).await;
    a_refund_of_the_whole_cost_returns_the_request(suite).await;
    a_refund_after_a_reset_gives_nothing(suite).await;
}

async fn a_refund_stays_in_its_window(suite: &Suite) {
    use Clause::Refund;

    let subject = suite.subject();
    let policy = policy(&[Limit::per_second(5), Limit::per_hour(9)]);
    let decision = subject.check(&policy, 3).await;
    let hour = async || subject.used(&policy).await.get(1).copied();
    subject.refund(&decision, 2).await;
    require_eq(Refund, hour().await, Some(1), "3 charged and 2 refunded");
    subject.refund(&decision, 9).await;
    require_eq(Refund, hour().await, Some(0), "more refunded than was charged");

    suite.time.pass(Duration::from_secs(1)).await;
    subject.check(&policy, 4).await;
    subject.refund(&decision, 2).await;
    require_eq(Refund, hour().await, Some(2), "4 more charged, and 2 refunded in the same hour");
    let denied = subject.check(&policy, 2).await;
    let is_over = denied.limits().next().map(|second| second.is_over());
    require_eq(
        Refund,
        is_over,
        Some(true),
        "the second of the charge has ended: nothing goes back",
    );
}

async fn a_refund_of_another_subject_changes_nothing(suite: &Suite) {
    let (subject, stranger) = (suite.subject(), suite.subject());
    let policy = policy(&[Limit::per_hour(9)]);
    let decision = subject.check(&policy, 3).await;
    stranger.refund(&decision, 1).await;
    let counts = (subject.used(&policy).await, stranger.used(&policy).await);
    require_eq(Clause::Refund, counts, (vec![3], vec![0]), "a refund to a subject without charges");
}

async fn a_refund_of_the_whole_cost_returns_the_request(suite: &Suite) {
    let subject = suite.subject();
    let policy = policy(&[Limit::per_hour(5).count_requests(), Limit::per_day(90)]);
    let decision = subject.check(&policy, 30).await;
    subject.refund(&decision, 30).await;
    let counts = subject.used(&policy).await;
    require_eq(Clause::Refund, counts, vec![0, 0], "a request of cost 30 is refunded");
}

async fn a_refund_after_a_reset_gives_nothing(suite: &Suite) {
    let (subject, policy) = (suite.subject(), policy(&[Limit::per_day(100)]));
    let decision = subject.check(&policy, 80).await;
    suite.time.pass(Duration::from_millis(5)).await;
    subject.reset(&policy, None).await;
    subject.check(&policy, 100).await;
    subject.refund(&decision, 80).await;
    let counts = subject.used(&policy).await;
    require_eq(Clause::Refund, counts, vec![100], "a refund of units from before a reset");
}
