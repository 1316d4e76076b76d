//! Checks clauses 1, 2, 3, 7 and 12 of the contract of [`Store`](crate::store::Store): decisions
//! and charges.

use std::time::Duration;

use super::clause::{Clause, require, require_eq};
use super::subject::{over, policy, used};
use super::suite::Suite;
use crate::decision::{Decision, RetryAfter};
use crate::model::Mode;
use crate::model::{Cost, Limit};
use crate::store::{DecideRequest, Part};

pub(super) async fn check(suite: &Suite) {
    exactly_max_units_pass(suite).await;
    a_limit_that_counts_requests_takes_one_unit_of_each(suite).await;
    a_peek_writes_nothing(suite).await;
    all_limits_are_charged_or_none(suite).await;
    a_denial_opens_and_extends_no_window(suite).await;
    a_limit_in_shadow_denies_nothing(suite).await;
    a_cost_above_the_limit_never_passes(suite).await;
    check_up_to_takes_the_units_that_every_limit_grants(suite).await;
    a_charge_goes_beyond_the_limit(suite).await;
    concurrent_requests_are_counted_one_by_one(suite).await;
}

async fn exactly_max_units_pass(suite: &Suite) {
    use Clause::Exact;

    let (subject, policy) = (suite.subject(), policy(&[Limit::per_hour(5)]));
    for count in 1..=5 {
        let decision = subject.check(&policy, 1).await;
        let got = (decision.is_allowed(), used(&decision), decision.granted());
        require_eq(Exact, got, (true, vec![count], 1), "request of 1 under 5/hour");
        require_eq(Exact, decision.retry_after(), RetryAfter::Now, "wait of an allowed request");
    }
    let denied = subject.check(&policy, 1).await;
    let got = (denied.is_allowed(), used(&denied), denied.granted());
    require_eq(Exact, got, (false, vec![5], 0), "the sixth request under 5/hour");
    let hour = Duration::from_secs(3_600);
    let is_in_the_window = matches!(denied.retry_after(), RetryAfter::In(wait) if wait <= hour);
    require(Exact, is_in_the_window, "a denial reports a wait within its window");

    let subject = suite.subject();
    for (used, passes) in [(0, true), (3, false)] {
        let is_allowed = subject.check(&policy, 3).await.is_allowed();
        require_eq(Exact, is_allowed, passes, format_args!("cost 3 with {used} of 5 used"));
    }
    let is_allowed = subject.check(&policy, 2).await.is_allowed();
    require(
        Clause::DenialChangesNothing,
        is_allowed,
        "units that a denied request did not use are allowed",
    );
}

async fn a_limit_that_counts_requests_takes_one_unit_of_each(suite: &Suite) {
    let subject = suite.subject();
    let policy = policy(&[Limit::per_hour(3).count_requests()]);
    for count in 1..=4 {
        let decision = subject.check(&policy, 5).await;
        let expected = (count <= 3, vec![count.min(3)]);
        let what = "request of cost 5 under 3/hour:requests, where each request is one unit";
        require_eq(Clause::Exact, (decision.is_allowed(), used(&decision)), expected, what);
    }
}

async fn a_peek_writes_nothing(suite: &Suite) {
    use Clause::Peek;

    let (subject, policy) = (suite.subject(), policy(&[Limit::per_hour(2)]));
    for _ in 0..3 {
        for (cost, passes) in [(2, true), (3, false)] {
            let is_allowed = subject.decide(&policy, Mode::Peek, cost).await.is_allowed();
            require_eq(Peek, is_allowed, passes, format_args!("peek of {cost} under 2/hour"));
        }
        let is_allowed = subject.check(&policy, 0).await.is_allowed();
        require(Peek, is_allowed, "a cost of 0 passes under 2/hour");
    }
    let peek = subject.decide(&policy, Mode::Peek, 1).await;
    require_eq(Peek, (peek.granted(), used(&peek)), (0, vec![0]), "a peek grants and uses nothing");
    let is_open = peek.limits().any(|limit| limit.is_active());
    require(Peek, !is_open, "a peek opens no window");
    subject.check(&policy, 2).await;
    for (cost, passes) in [(1, false), (0, true)] {
        let is_allowed = subject.decide(&policy, Mode::Peek, cost).await.is_allowed();
        require_eq(Peek, is_allowed, passes, format_args!("peek of {cost} with 2 of 2 used"));
    }
}

async fn all_limits_are_charged_or_none(suite: &Suite) {
    let subject = suite.subject();
    let policy = policy(&[Limit::per_minute(2), Limit::per_hour(100), Limit::per_day(3)]);
    subject.check(&policy, 2).await;
    for _ in 0..5 {
        let denied = subject.check(&policy, 1).await;
        require_eq(Clause::OneStep, over(&denied), vec!["minute"], "the limits that deny");
    }
    let counts = subject.used(&policy).await;
    require_eq(Clause::OneStep, counts, vec![2, 2, 2], "counts after five denials by one limit");
    let denied = subject.check(&policy, 2).await;
    require_eq(Clause::OneStep, over(&denied), vec!["minute", "day"], "the limits that deny");
}

async fn a_denial_opens_and_extends_no_window(suite: &Suite) {
    let subject = suite.subject();
    let policy = policy(&[Limit::per_second(1), Limit::per_hour(1)]);
    subject.check(&policy, 1).await;
    suite.time.pass(Duration::from_secs(1)).await;
    let denied = subject.check(&policy, 1).await;
    let second = denied.limits().next().map(|second| (second.used(), second.is_active()));
    let got = (denied.is_allowed(), second);
    let what = "a second that has ended, in a denial by the hour";
    require_eq(Clause::DenialChangesNothing, got, (false, Some((0, false))), what);
}

async fn a_limit_in_shadow_denies_nothing(suite: &Suite) {
    use Clause::Shadow;

    let subject = suite.subject();
    let (minute, hour) = (Limit::per_minute(5), Limit::per_hour(2));
    let (tried, enforced) = (policy(&[minute, hour.shadow()]), policy(&[minute, hour]));
    let over = |decision: &Decision| decision.over_in_shadow().count();
    for _ in 0..2 {
        let granted = subject.check(&tried, 1).await;
        require_eq(Shadow, over(&granted), 0, "limits in shadow that would deny");
    }
    let passed = subject.check(&tried, 2).await;
    let got = (passed.is_allowed(), over(&passed), passed.retry_after());
    require_eq(Shadow, got, (true, 1, RetryAfter::Now), "a request beyond a limit in shadow");
    require_eq(Shadow, used(&passed), vec![4, 2], "a limit in shadow counts what it would allow");
    subject.refund(&passed, 1).await;
    let counts = subject.used(&tried).await;
    require_eq(Shadow, counts, vec![3, 2], "units that were not charged are not refunded");

    let denied = subject.check(&tried, 3).await;
    let got = (denied.is_allowed(), over(&denied));
    require_eq(Shadow, got, (false, 1), "a request beyond both limits");
    let counts = subject.used(&tried).await;
    require_eq(Shadow, counts, vec![3, 2], "a denial charges no limit");
    let is_allowed = subject.check(&enforced, 1).await.is_allowed();
    require(Shadow, !is_allowed, "the count goes on when the limit is enforced");
    let charged = subject.decide(&tried, Mode::Charge, 4).await;
    require_eq(
        Shadow,
        used(&charged),
        vec![7, 6],
        "units that were used already count in every limit",
    );
}

async fn a_cost_above_the_limit_never_passes(suite: &Suite) {
    let never = (false, RetryAfter::Never);
    let subject = suite.subject();
    let limits = policy(&[Limit::per_minute(2), Limit::per_hour(100)]);
    for cost in [3, u64::MAX] {
        let denied = subject.check(&limits, cost).await;
        let got = (denied.is_allowed(), denied.retry_after());
        require_eq(Clause::Exact, got, never, format_args!("cost {cost} under 2/minute"));
    }
    require_eq(Clause::DenialChangesNothing, subject.used(&limits).await, vec![0, 0], "counts");

    let denied = suite.subject().check(&policy(&[Limit::per_minute(0)]), 1).await;
    let got = (denied.is_allowed(), denied.retry_after());
    require_eq(Clause::Exact, got, never, "a request under 0/minute");
}

async fn check_up_to_takes_the_units_that_every_limit_grants(suite: &Suite) {
    let subject = suite.subject();
    let policy = policy(&[Limit::per_minute(5), Limit::per_hour(7)]);
    for expected in [(true, 3), (true, 2), (false, 0)] {
        let part = subject.decide(&policy, Mode::CheckUpTo, 3).await;
        let got = (part.is_allowed(), part.granted());
        require_eq(Clause::Exact, got, expected, "up to 3 units under 5/minute");
    }
    require_eq(Clause::OneStep, subject.used(&policy).await, vec![5, 5], "counts afterwards");
}

async fn a_charge_goes_beyond_the_limit(suite: &Suite) {
    let (subject, policy) = (suite.subject(), policy(&[Limit::per_hour(5)]));
    let charged = subject.decide(&policy, Mode::Charge, 8).await;
    let got = (charged.is_allowed(), charged.granted(), used(&charged));
    require_eq(Clause::Exact, got, (true, 8, vec![8]), "a charge of 8 under 5/hour");
    let remaining = charged.limits().map(|limit| limit.remaining()).sum();
    require_eq(Clause::Exact, remaining, 0_u64, "units remaining after it");
    let is_allowed = subject.check(&policy, 1).await.is_allowed();
    require(Clause::Exact, !is_allowed, "the next request is denied");
    require_eq(Clause::DenialChangesNothing, subject.used(&policy).await, vec![8], "the count");
}

async fn concurrent_requests_are_counted_one_by_one(suite: &Suite) {
    let (subject, policy) = (suite.subject(), policy(&[Limit::per_hour(20), Limit::per_day(40)]));
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let decision = suite.store.decide(DecideRequest::new(
                &subject.namespace,
                &[Part::new(&subject.subject, &policy, Cost::ONE)],
                Mode::Check,
            ));
            tokio::spawn(decision)
        })
        .collect();
    let mut allowed = 0;
    for task in tasks {
        let decision = task.await.expect("no panic").expect("the store answers");
        allowed += u32::from(decision.is_allowed());
    }
    require_eq(Clause::OneStep, allowed, 20, "of 50 requests at once under 20/hour");
    require_eq(Clause::OneStep, subject.used(&policy).await, vec![20, 20], "counts afterwards");
}
