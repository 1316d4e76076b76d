use std::sync::Arc;
use std::time::Duration;

use crate::decision::{Decision, Origin, RetryAfter};
use crate::limiter::OnFailure;
use crate::limiter::tests::Faulty;
use crate::limiter::{RateLimiter, RateLimiterBuilder};
use crate::model::{FailureKind, Subject};
use crate::policy::Policy;
use crate::time::{ManualClock, Timestamp};

const NOW: Timestamp = Timestamp::from_secs(1_000);

fn alice() -> Subject {
    Subject::user("alice")
}

fn policy(limits: &[&str]) -> Policy {
    Policy::new(limits.iter().map(|limit| limit.parse().unwrap())).unwrap()
}

/// Returns the builder of a limiter that fails open, and its store, which is down.
fn open(policy: Policy) -> (RateLimiterBuilder, Arc<Faulty>) {
    let store = Arc::new(Faulty::default());
    store.fail_with(FailureKind::Unavailable);
    let builder = RateLimiter::builder().policy(policy).store(Arc::clone(&store));
    let clock = Arc::new(ManualClock::at(NOW));
    (builder.clock(clock).on_store_failure(OnFailure::Allow), store)
}

fn assert_denied_alone(decision: &Decision, retry_after: RetryAfter) {
    assert_eq!((decision.is_allowed(), decision.origin()), (false, Origin::Policy), "{decision:?}");
    assert_eq!((decision.granted(), decision.retry_after()), (0, retry_after));
}

#[tokio::test]
async fn every_operation_denies_without_the_store_where_no_counter_is_needed() {
    const NEVER: RetryAfter = RetryAfter::Never;
    let blocked = policy(&["5/minute"]).blocked_until(NOW.plus_micros(1_500_000));
    let soon = RetryAfter::In(Duration::from_micros(1_500_000));
    for (policy, cost, retry_after) in [
        (policy(&["0/minute"]), 1, NEVER),
        (policy(&["9/second", "0/day:gcra"]), 1, NEVER),
        (policy(&["0:concurrency"]), 1, NEVER),
        (policy(&["9/second:shadow", "0/day:requests"]), 1, NEVER),
        (policy(&["5/minute"]).blocked_until(None), 1, NEVER),
        (blocked.clone(), 1, soon),
        // A block denies a cost of 0 too.
        (blocked, 0, soon),
    ] {
        let (builder, store) = open(policy.clone());
        let limiter = builder.build().unwrap();
        for decision in [
            limiter.check(&alice(), cost).await,
            limiter.request(&alice()).cost(cost).check_up_to().await,
            limiter.peek(&alice(), cost).await,
            limiter.request(&alice()).policy(&policy).cost(cost).check().await,
            limiter.request(&alice()).cost(cost).wait(Duration::from_secs(9), 9).check().await,
            limiter.acquire(&alice(), cost).await.decision().clone(),
        ] {
            assert_denied_alone(&decision, retry_after);
        }
        assert_eq!(store.asked(), 0, "{policy}");
    }
}

#[tokio::test]
async fn a_cost_above_every_capacity_is_denied_without_the_store() {
    for (limits, most) in [
        (&["5/minute"][..], 5),
        (&["9/second", "100/day"], 9),
        (&["9/second:shadow", "100/day"], 100),
        (&["9/second:requests", "100/day"], 100),
        (&["9/second:gcra:burst=3"], 3),
        (&["1/day:token-bucket:capacity=30"], 30),
        (&["2:concurrency", "9/day"], 2),
    ] {
        let (builder, store) = open(policy(limits));
        let limiter = builder.build().unwrap();
        let never = limiter.check(&alice(), most + 1).await;
        assert_denied_alone(&never, RetryAfter::Never);
        assert_denied_alone(&limiter.peek(&alice(), u64::MAX).await, RetryAfter::Never);
        assert_eq!(store.asked(), 0, "{limits:?}");
        // The store decides a cost that the limit could grant. It also decides `check_up_to` with a
        // larger cost, because it may grant a part of that cost.
        for decision in [
            limiter.check(&alice(), most).await,
            limiter.request(&alice()).cost(most + 1).check_up_to().await,
        ] {
            assert_eq!(decision.origin(), Origin::FailedOpen(FailureKind::Unavailable));
        }
        assert_eq!(store.asked(), 2, "{limits:?}");
    }
}

#[tokio::test]
async fn limits_that_count_requests_grant_any_cost() {
    let (builder, store) = open(policy(&["1/minute:requests"]));
    store.fail_with(None);
    let limiter = builder.build().unwrap();
    assert!(limiter.check(&alice(), u64::MAX).await.is_allowed());
}

#[tokio::test]
async fn a_limit_in_shadow_and_a_limiter_in_shadow_deny_nothing() {
    let closed = policy(&["0/minute"]).blocked_until(None);
    let (builder, store) = open(closed);
    store.fail_with(None);
    let shadow = builder.shadow(true).build().unwrap();
    let decision = shadow.check(&alice(), 1).await;
    assert_eq!((decision.is_allowed(), decision.origin()), (true, Origin::Shadow));

    let (builder, store) = open(policy(&["9/second", "0/minute:shadow"]));
    store.fail_with(None);
    let decision = builder.build().unwrap().check(&alice(), 1).await;
    assert_eq!((decision.is_allowed(), decision.origin()), (true, Origin::Store));
    assert_eq!(decision.over_in_shadow().count(), 1);
}

#[tokio::test]
async fn a_disabled_limiter_enforces_no_block() {
    let (builder, _) = open(policy(&["0/minute"]).blocked_until(None));
    let off = builder.enabled(false).build().unwrap();
    assert_eq!(off.check(&alice(), 1).await.origin(), Origin::Disabled);
    let waited = off.request(&alice()).wait(Duration::ZERO, 1).check().await;
    assert_eq!(waited.origin(), Origin::Disabled);
}

#[tokio::test]
async fn charge_reaches_the_store_for_a_blocked_subject() {
    let (builder, store) = open(policy(&["5/minute"]).blocked_until(None));
    store.fail_with(None);
    let limiter = builder.build().unwrap();
    assert_eq!(limiter.request(&alice()).cost(3).charge().await.origin(), Origin::Store);
    let usage = limiter.usage(&alice()).await.unwrap();
    assert_eq!(usage.limits().next().map(|limit| (limit.used(), limit.max())), Some((3, 5)));
}

#[tokio::test]
async fn a_block_ends_on_the_clock_of_the_limiter_and_then_the_limits_decide() {
    let (builder, store) = open(policy(&["1/minute"]).blocked_until(NOW.plus_micros(5)));
    store.fail_with(None);
    let clock = Arc::new(ManualClock::at(NOW));
    let limiter = builder.clock(Arc::clone(&clock)).build().unwrap();
    for left in (1..=5).rev() {
        let wait = RetryAfter::In(Duration::from_micros(left));
        let denied = limiter.check(&alice(), 1).await;
        assert_denied_alone(&denied, wait);
        assert_eq!(
            (denied.limits().next().unwrap().max(), denied.at()),
            (0, crate::time::Clock::now(&*clock))
        );
        clock.advance(Duration::from_micros(1));
    }
    assert!(limiter.check(&alice(), 1).await.is_allowed());
    let denied = limiter.check(&alice(), 1).await;
    assert_eq!((denied.is_allowed(), denied.origin()), (false, Origin::Store));
    assert_denied_alone(&limiter.check(&alice(), 2).await, RetryAfter::Never);
}

/// Waiting for a counter cannot help a blocked subject.
#[tokio::test(start_paused = true)]
async fn a_blocked_request_does_not_wait_and_is_not_degraded() {
    let (builder, _) = open(policy(&["5/minute"]).blocked_until(NOW.plus_micros(1)));
    let limiter = builder.build().unwrap();
    let begun = tokio::time::Instant::now();
    let denied = limiter.request(&alice()).wait(Duration::from_secs(60), 9).check().await;
    assert_denied_alone(&denied, RetryAfter::In(Duration::from_micros(1)));
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert!(!denied.degraded_if_denied().is_degraded());
}

/// A denial that needed no store must neither hide an outage nor end it.
#[tokio::test]
async fn a_denial_by_the_policy_says_nothing_about_the_store() {
    let (builder, store) = open(policy(&["5/minute"]));
    let limiter = builder.build().unwrap();
    for _ in 0..3 {
        assert!(limiter.check(&alice(), 1).await.is_allowed());
    }
    let asked = store.asked();
    let closed = policy(&["0/minute"]);
    for _ in 0..100 {
        let denied = limiter.request(&alice()).policy(&closed).check().await;
        assert_denied_alone(&denied, RetryAfter::Never);
    }
    assert_eq!(
        limiter.check(&alice(), 1).await.origin(),
        Origin::FailedOpen(FailureKind::Unavailable)
    );
    assert_eq!((store.asked(), limiter.stats().in_flight), (asked, 0), "the breaker is open");
}
