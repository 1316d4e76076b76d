//! Checks clauses 5, 6 and 9 of the contract of [`Store`](crate::store::Store): the identity of
//! states, their expiry, and the separation of subjects.

use std::time::Duration;

use super::clause::{Clause, require, require_eq};
use super::subject::{Tested, policy, used};
use super::suite::{Stored, Suite};
use crate::model::Mode;
use crate::model::{FailureKind, Limit, Period, Subject};

pub(super) async fn check(suite: &Suite) {
    subjects_and_namespaces_are_apart(suite).await;
    a_new_max_keeps_what_was_used(suite).await;
    adding_and_removing_limits_keeps_the_others(suite).await;
    requests_and_units_count_apart(suite).await;
    states_of_many_policies_are_not_forgotten(suite).await;
    a_reset_forgets_one_limit_or_all(suite).await;
    expired_records_are_removed(suite).await;
}

async fn subjects_and_namespaces_are_apart(suite: &Suite) {
    let (subject, policy) = (suite.subject(), policy(&[Limit::per_hour(1)]));
    let id = subject.subject.id().to_string();
    let user = Tested { subject: Subject::user(&id), ..suite.subject() };
    let elsewhere = Tested {
        namespace: "elsewhere".parse().expect("a namespace"),
        subject: subject.subject.clone(),
        suite,
    };
    for tested in [&subject, &user, &elsewhere, &suite.subject()] {
        let is_allowed = tested.check(&policy, 1).await.is_allowed();
        require(Clause::Apart, is_allowed, "the first request of each subject passes 1/hour");
    }
    for tested in [&subject, &user, &elsewhere] {
        let is_allowed = tested.check(&policy, 1).await.is_allowed();
        require(Clause::Apart, !is_allowed, "the second request of each subject is denied");
    }
}

async fn a_new_max_keeps_what_was_used(suite: &Suite) {
    let subject = suite.subject();
    let of = |max| policy(&[Limit::per_hour(max)]);
    subject.check(&of(100), 60).await;
    let lowered = subject.check(&of(10), 1).await;
    let got = (lowered.is_allowed(), used(&lowered));
    require_eq(Clause::State, got, (false, vec![60]), "100/hour with 60 used, lowered to 10/hour");
    let remaining = lowered.limits().next().map(|limit| limit.remaining());
    require_eq(Clause::State, remaining, Some(0), "units remaining then");
    let raised = subject.check(&of(200), 1).await;
    let got = (raised.is_allowed(), used(&raised));
    require_eq(Clause::State, got, (true, vec![61]), "raised to 200/hour");
}

async fn adding_and_removing_limits_keeps_the_others(suite: &Suite) {
    let subject = suite.subject();
    let (minute, hour, day) = (Limit::per_minute(50), Limit::per_hour(50), Limit::per_day(50));
    for limits in [&[minute, hour][..], &[hour, day], &[day], &[day, hour, minute]] {
        subject.check(&policy(limits), 1).await;
    }
    let counts = subject.used(&policy(&[minute, hour, day])).await;
    require_eq(Clause::State, counts, vec![2, 3, 3], "counts after policies that changed");
}

async fn requests_and_units_count_apart(suite: &Suite) {
    let subject = suite.subject();
    let (requests, units) = (Limit::per_hour(5).count_requests(), Limit::per_hour(100));
    for limits in [&[requests, units][..], &[requests], &[units], &[units, requests]] {
        let is_allowed = subject.check(&policy(limits), 20).await.is_allowed();
        require(Clause::State, is_allowed, "cost 20 under 5/hour:requests and 100/hour");
    }
    let counts = subject.used(&policy(&[requests, units])).await;
    require_eq(Clause::State, counts, vec![3, 60], "requests and units of one period");
}

/// Checks that a store does not drop states of a subject to make room for others.
///
/// A store may limit the number of states of a subject, but then it must reject charges that need
/// more.
async fn states_of_many_policies_are_not_forgotten(suite: &Suite) {
    let (subject, daily) = (suite.subject(), policy(&[Limit::per_day(1)]));
    subject.check(&daily, 1).await;
    for hours in 25..=48 {
        let period = Period::from_millis(hours * 3_600_000).expect("a period");
        let other = policy(&[Limit::new(9, period).expect("a limit")]);
        match subject.try_decide(&other, Mode::Check, 1).await {
            Err(error) if error.kind() == FailureKind::Unsupported => {}
            Err(error) => panic!("{}: under {other}: {error}", Clause::Answer),
            Ok(_) => {}
        }
        let is_allowed = subject.check(&daily, 1).await.is_allowed();
        let what = format!("1/day is used up, also after a request under {other}");
        require(Clause::State, !is_allowed, what);
    }
}

async fn a_reset_forgets_one_limit_or_all(suite: &Suite) {
    let subject = suite.subject();
    let policy = policy(&[Limit::per_minute(5), Limit::per_hour(9)]);
    subject.check(&policy, 4).await;
    subject.reset(&policy, Some(0)).await;
    require_eq(Clause::State, subject.used(&policy).await, vec![0, 4], "the minute is reset");
    subject.check(&policy, 1).await;
    require_eq(Clause::State, subject.used(&policy).await, vec![1, 5], "and counts anew");
    subject.reset(&policy, None).await;
    require_eq(Clause::State, subject.used(&policy).await, vec![0, 0], "all is reset");
    subject.reset(&policy, None).await;
    subject.reset(&policy, Some(1)).await;
}

async fn expired_records_are_removed(suite: &Suite) {
    const SUBJECTS: usize = 200;
    const ROUNDS: u32 = 3;

    let Stored::Counted(count) = &suite.stored else { return };
    let (before, policy) = (count().await, policy(&[Limit::per_second(5)]));
    for round in 0..ROUNDS {
        if round > 0 {
            suite.time.pass(Duration::from_secs(1)).await;
        }
        for _ in 0..SUBJECTS {
            suite.subject().check(&policy, 1).await;
        }
    }
    let added = count().await.saturating_sub(before);
    let what = format!(
        "{ROUNDS} times {SUBJECTS} subjects were charged under 5/second, each time a second later, and \
         {added} records are held: expected {} at most",
        2 * SUBJECTS
    );
    require(Clause::Expiry, added <= 2 * SUBJECTS, what);
}
