//! Checks clause 4 of the contract of [`Store`](crate::store::Store): the clock, and the beginning
//! and end of windows.

use std::time::Duration;

use super::clause::{Clause, require, require_eq};
use super::subject::{policy, used};
use super::suite::Suite;
use crate::decision::RetryAfter;
use crate::model::{Limit, Period};
use crate::policy::Policy;
use crate::time::{Clock, ManualClock};

pub(super) async fn check(suite: &Suite) {
    a_window_ends_at_its_reported_time(suite).await;
    if suite.holds_clock_windows() {
        clock_windows_begin_on_the_clock(suite).await;
    }
    if let Some(clock) = suite.time.manual() {
        a_window_ends_to_the_microsecond(suite, clock).await;
        a_clock_that_steps_back_grants_nothing(suite, clock).await;
    }
}

async fn a_window_ends_at_its_reported_time(suite: &Suite) {
    let subject = suite.subject();
    let policy = policy(&[Limit::per_second(2), Limit::per_hour(100)]);
    subject.check(&policy, 1).await;
    subject.check(&policy, 1).await;
    let wait = match subject.check(&policy, 1).await.retry_after() {
        RetryAfter::In(wait) if wait <= Duration::from_secs(1) => wait,
        other => panic!("{}: a wait of {other:?} under 2/second", Clause::OneClock),
    };
    let is_allowed = subject.check(&policy, 1).await.is_allowed();
    require(Clause::DenialChangesNothing, !is_allowed, "a denied request does not move the end");
    suite.time.pass(wait).await;
    let next = subject.check(&policy, 1).await;
    let got = (next.is_allowed(), used(&next));
    require_eq(Clause::OneClock, got, (true, vec![1, 3]), "after the wait that a denial reported");
}

async fn clock_windows_begin_on_the_clock(suite: &Suite) {
    let subject = suite.subject();
    let first = Limit::per_hour(9);
    let clock = first.aligned_to_clock().expect("a fixed window");
    let ten_minutes = Period::from_millis(600_000).expect("a period");
    let later = first.with_clock_offset(ten_minutes).expect("less than an hour");
    let build = Policy::builder().named("first", first).named("clock", clock).named("later", later);
    let policy = build.build().expect("a policy");
    let decision = subject.check(&policy, 1).await;
    let hour = 3_600_000_000;
    let left = |offset: u64| hour - (decision.at().as_micros() + hour - offset) % hour;
    let resets: Vec<_> = decision.limits().map(|limit| limit.reset_after()).collect();
    let expected = [hour, left(0), left(600_000_000)].map(Duration::from_micros).to_vec();
    let ends = "the ends of 9/hour, 9/hour:clock and 9/hour:clock:offset=10minutes";
    require_eq(Clause::OneClock, resets, expected, ends);
    subject.check(&policy, 1).await;
    require_eq(
        Clause::State,
        subject.used(&policy).await,
        vec![2, 2, 2],
        "limits with different anchors have separate states",
    );
}

async fn a_window_ends_to_the_microsecond(suite: &Suite, clock: &ManualClock) {
    let subject = suite.subject();
    let policy = policy(&[Limit::per_second(1), Limit::per_minute(1)]);
    subject.check(&policy, 1).await;
    clock.advance(Duration::from_micros(1_234_567));
    let wait = Duration::from_micros(60_000_000 - 1_234_567);
    let answered = subject.check(&policy, 1).await.retry_after();
    require_eq(Clause::OneClock, answered, RetryAfter::In(wait), "the wait of a denied request");
    clock.advance(wait - Duration::from_micros(1));
    let is_allowed = subject.check(&policy, 1).await.is_allowed();
    require(Clause::OneClock, !is_allowed, "a microsecond less than the wait is too early");
    clock.advance(Duration::from_micros(1));
    let is_allowed = subject.check(&policy, 1).await.is_allowed();
    require(Clause::OneClock, is_allowed, "the reported wait is enough");
}

async fn a_clock_that_steps_back_grants_nothing(suite: &Suite, clock: &ManualClock) {
    let subject = suite.subject();
    let second = Limit::per_second(1);
    let second = match suite.holds_clock_windows() {
        true => second.aligned_to_clock().expect("a fixed window"),
        false => second,
    };
    let policy = policy(&[second, Limit::per_hour(2)]);
    let start = clock.now();
    subject.check(&policy, 1).await;
    clock.advance(Duration::from_secs(2));
    let last = subject.check(&policy, 1).await;
    require(Clause::OneClock, last.is_allowed(), "a request two seconds later under 1/second");
    for _ in 0..3 {
        clock.set(start);
        let denied = subject.check(&policy, 1).await;
        let got = (denied.is_allowed(), denied.at());
        require_eq(Clause::OneClock, got, (false, last.at()), "a request after a step back");
    }
    clock.set(last.at());
}
