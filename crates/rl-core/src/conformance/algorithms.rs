//! Checks clauses 2 and 13 of the contract of [`Store`](crate::store::Store): for each algorithm, a
//! store either counts as the algorithm is defined or rejects its limits as unsupported.

use std::time::Duration;

use super::clause::{Clause, require_eq};
use super::subject::{policy, used};
use super::suite::{LIMITS, Suite, limit};
use crate::decision::RetryAfter;
use crate::model::FailureKind;
use crate::model::Mode;
use crate::policy::Policy;
use crate::time::{Clock, ManualClock};

pub(super) async fn check(suite: &Suite) {
    for text in LIMITS {
        let limit = limit(text);
        let alone = policy(&[limit]);
        if suite.holds(limit.algorithm()) {
            six_units_pass_at_once(suite, &alone).await;
            a_refund_and_a_reset_return_units(suite, &alone).await;
            a_refund_after_a_reset_gives_nothing(suite, &alone).await;
        } else {
            unsupported_limits_are_refused(suite, &alone).await;
        }
    }
    if let Some(clock) = suite.time.manual() {
        for (text, steps) in TIMELINES {
            if suite.holds(limit(text).algorithm()) {
                requests_pass_as_the_algorithm_defines(suite, clock, text, steps).await;
            }
        }
    }
}

async fn six_units_pass_at_once(suite: &Suite, policy: &Policy) {
    let subject = suite.subject();
    for (cost, expected) in [(4, (true, 4)), (3, (false, 4)), (2, (true, 6)), (1, (false, 6))] {
        let decision = subject.check(policy, cost).await;
        let got = (decision.is_allowed(), used(&decision).first().copied());
        let expected = (expected.0, Some(expected.1));
        require_eq(Clause::Exact, got, expected, format_args!("cost {cost} under {policy}"));
    }
}

async fn a_refund_and_a_reset_return_units(suite: &Suite, policy: &Policy) {
    let subject = suite.subject();
    let decision = subject.check(policy, 4).await;
    // Without a manual clock, tokens are added between the steps, so exact counts are not checked.
    if suite.time.manual().is_some() {
        subject.refund(&decision, 3).await;
        let what = format!("4 charged and 3 refunded under {policy}");
        require_eq(Clause::Refund, subject.used(policy).await, vec![1], what);
        let is_allowed = subject.check(policy, 5).await.is_allowed();
        let what = format!("the 5 remaining units pass under {policy}");
        require_eq(Clause::Refund, is_allowed, true, what);
    }
    subject.reset(policy, None).await;
    let is_allowed = subject.check(policy, 6).await.is_allowed();
    require_eq(Clause::State, is_allowed, true, format_args!("after a reset under {policy}"));
}

async fn a_refund_after_a_reset_gives_nothing(suite: &Suite, policy: &Policy) {
    let subject = suite.subject();
    let decision = subject.check(policy, 4).await;
    suite.time.pass(Duration::from_millis(5)).await;
    subject.reset(policy, None).await;
    subject.check(policy, 6).await;
    subject.refund(&decision, 4).await;
    let is_allowed = subject.check(policy, 1).await.is_allowed();
    let what = format!("a refund of units from before a reset, under {policy}");
    require_eq(Clause::Refund, is_allowed, false, what);
}

async fn unsupported_limits_are_refused(suite: &Suite, policy: &Policy) {
    let answer = suite.subject().try_decide(policy, Mode::Check, 1).await;
    let kind = answer.as_ref().err().map(|error| error.kind());
    let what = format!("a check under {policy}, which the store does not hold");
    require_eq(Clause::Unsupported, kind, Some(FailureKind::Unsupported), what);
}

/// A request: the milliseconds since the previous request, its cost, and the expected answer.
type Step = (u64, u64, Answer);

#[derive(Clone, Copy, Debug)]
enum Answer {
    Passes,
    /// Denied, with a wait of this many milliseconds.
    Waits(u64),
    Denied,
}
use Answer::{Denied, Passes, Waits};

/// The expected answers of each algorithm over time, starting at a full minute.
#[rustfmt::skip]
const TIMELINES: [(&str, &[Step]); 8] = [
    ("2/minute", &[(0, 1, Passes), (40_000, 1, Passes), (0, 1, Waits(20_000)), (20_000, 2, Passes)]),
    ("2/minute:clock", &[(30_000, 2, Passes), (0, 1, Waits(30_000)), (30_000, 2, Passes)]),
    ("2/minute:sliding-log", &[
        (0, 1, Passes), (40_000, 1, Passes), (0, 1, Waits(20_000)), (20_000, 1, Passes), (0, 1, Waits(40_000)),
    ]),
    ("4/minute:sliding-window:precision=15seconds", &[
        (0, 4, Passes), (0, 1, Denied), (59_999, 1, Denied), (15_001, 4, Passes),
    ]),
    ("10/minute:sliding-window-counter", &[
        (0, 10, Passes), (0, 1, Denied), (60_000, 1, Denied), (30_000, 5, Passes), (0, 1, Denied),
    ]),
    ("60/minute:token-bucket:capacity=3", &[
        (0, 3, Passes), (0, 1, Waits(1_000)), (999, 1, Waits(1)), (1, 1, Passes), (0, 1, Waits(1_000)), (3_000, 3, Passes),
    ]),
    ("2/minute:token-bucket:capacity=4:refill=interval", &[
        (0, 4, Passes), (0, 1, Waits(60_000)), (59_999, 1, Waits(1)), (1, 2, Passes), (0, 1, Waits(60_000)),
    ]),
    ("60/minute:gcra:burst=3", &[
        (0, 3, Passes), (0, 1, Waits(1_000)), (999, 1, Waits(1)), (1, 1, Passes), (0, 1, Waits(1_000)), (3_000, 3, Passes),
    ]),
];

async fn requests_pass_as_the_algorithm_defines(
    suite: &Suite,
    clock: &ManualClock,
    text: &str,
    steps: &[Step],
) {
    const MINUTE: u64 = 60_000_000;

    let (subject, policy) = (suite.subject(), policy(&[limit(text)]));
    clock.advance(Duration::from_micros(MINUTE - clock.now().as_micros() % MINUTE));
    for (place, (millis, cost, expected)) in steps.iter().enumerate() {
        clock.advance(Duration::from_millis(*millis));
        let decision = subject.check(&policy, *cost).await;
        let got = (decision.is_allowed(), decision.retry_after());
        let expected = match expected {
            Passes => (true, RetryAfter::Now),
            Waits(wait) => (false, RetryAfter::In(Duration::from_millis(*wait))),
            Denied => (false, got.1),
        };
        let what = format!("request {} of cost {cost} under {text}", place + 1);
        require_eq(Clause::Exact, got, expected, what);
    }
}
