//! Requests that are counted under several subjects.

use std::sync::Arc;
use std::time::Duration;

use super::{Faulty, alice};
use crate::decision::{Decision, GoverningLimit, Origin, RetryAfter};
use crate::limiter::{OnFailure, Permit, RateLimiter, Share};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, FailureKind, Limit, Subject};
use crate::policy::Policy;
use crate::store::memory::MemoryStore;
use crate::store::{Namespace, Part, StoreFuture};
use crate::time::TokioClock;

/// The rules of the tests: their policies, and the namespaces in which they count.
struct Rules {
    limiter: RateLimiter,
    fleet: (Namespace, Policy),
    key: (Namespace, Policy),
}

const ONE: Cost = Cost::ONE;

fn policy(limits: &[&str]) -> Policy {
    Policy::new(limits.iter().map(|limit| limit.parse().unwrap())).unwrap()
}

/// Creates rules with these limits of the fleet and of each key.
fn rules(limiter: RateLimiter, fleet: &[&str], key: &[&str]) -> Rules {
    let rule = |name: &str| limiter.namespace().rule(name).unwrap();
    let (fleet, key) = ((rule("fleet"), policy(fleet)), (rule("key"), policy(key)));
    Rules { limiter, fleet, key }
}

fn in_memory() -> RateLimiter {
    RateLimiter::builder().limit(Limit::per_second(1)).build().unwrap()
}

impl Rules {
    fn parts<'a>(&'a self, key: &'a Subject, all: &'a Subject) -> [Part<'a>; 2] {
        let (names, policies) = ((&self.key.0, &self.fleet.0), (&self.key.1, &self.fleet.1));
        [
            Part::new(key, policies.0, ONE).with_namespace(names.0),
            Part::new(all, policies.1, ONE).with_namespace(names.1),
        ]
    }

    async fn used(&self, part: Part<'_>) -> Vec<u64> {
        let usage = self.limiter.request(&part).usage().await.unwrap();
        usage.limits().map(|limit| limit.used()).collect()
    }
}

fn over(decision: &Decision) -> Vec<bool> {
    decision.parts().map(|part| part.is_over()).collect()
}

/// If keys and fleet had nested limiters, the fleet would be charged thirty times.
#[tokio::test]
async fn an_abusive_key_uses_up_nothing_of_the_fleet() {
    let rules = rules(in_memory(), &["1000/minute"], &["1/minute"]);
    let (key, all) = (alice(), Subject::global());
    let parts = rules.parts(&key, &all);
    let mut denied = 0;
    for _ in 0..30 {
        let decision = rules.limiter.request(&parts).check().await;
        denied += u64::from(!decision.is_allowed());
    }
    assert_eq!(denied, 29);
    assert_eq!(rules.used(parts[1]).await, [1]);
}

#[tokio::test]
async fn a_part_that_is_not_disclosed_shows_no_numbers() {
    let rules = rules(in_memory(), &["1/minute"], &["2/hour"]);
    let (key, all) = (alice(), Subject::global());
    let [of_key, of_fleet] = rules.parts(&key, &all);
    let parts = [of_fleet.undisclosed(), of_key];

    let allowed = rules.limiter.request(&parts).check().await;
    assert_eq!((allowed.is_allowed(), allowed.governing_part()), (true, Some(1)));
    assert_eq!(allowed.policy(), Some(of_key.policy), "the fleet has fewer units left");

    let denied = rules.limiter.request(&parts).check().await;
    assert!(!denied.is_allowed());
    assert_eq!((over(&denied), denied.denying_part()), (vec![true, false], Some(0)));
    assert_eq!(denied.governing(GoverningLimit::ShortestActive).map(|limit| limit.max()), None);
    assert!(matches!(denied.retry_after(), RetryAfter::In(wait) if wait.as_secs() >= 59));

    let alone = rules.limiter.request(&[of_fleet.undisclosed()]).check().await;
    assert!(!alone.is_allowed() && alone.limits().next().is_none());
    assert_eq!((alone.governing_part(), alone.parts().len()), (None, 1));
}

#[tokio::test]
async fn the_part_that_denies_for_the_longest_time_governs() {
    let rules = rules(in_memory(), &["1/minute"], &["1/hour", "1/second"]);
    let (key, all) = (alice(), Subject::global());
    let parts = rules.parts(&key, &all);
    assert!(rules.limiter.request(&parts).check().await.is_allowed());
    let denied = rules.limiter.request(&parts).check().await;
    assert_eq!((over(&denied), denied.governing_part()), (vec![true, true], Some(0)));
    assert!(matches!(denied.retry_after(), RetryAfter::In(wait) if wait.as_secs() >= 3_599));
    let never =
        rules.limiter.request(&[parts[0], Part { cost: Cost::new(2), ..parts[1] }]).check().await;
    assert_eq!(never.retry_after(), RetryAfter::Never);
}

/// A part in shadow counts what it would count if it were enforced.
#[tokio::test]
async fn a_part_in_shadow_denies_nothing_and_counts_whole_requests() {
    let rules = rules(in_memory(), &["9/minute"], &["1/minute", "5/hour"]);
    let (key, all) = (alice(), Subject::global());
    let [of_key, of_fleet] = rules.parts(&key, &all);
    let parts = [of_key.shadow(), of_fleet];
    for expected in [vec![false, false], vec![true, false]] {
        let decision = rules.limiter.request(&parts).check().await;
        assert!(decision.is_allowed());
        assert_eq!((over(&decision), decision.retry_after()), (expected, RetryAfter::Now));
        assert_eq!(decision.governing_part(), Some(1));
    }
    assert_eq!((rules.used(of_key).await, rules.used(of_fleet).await), (vec![1, 1], vec![2]));
    let alone = rules.limiter.request(&parts[..1]).check().await;
    assert!(alone.is_allowed());
    assert_eq!(alone.over_in_shadow().count(), 1);
    // The settlement of a request must not charge a part that was not charged.
    let permit = rules.limiter.request(&parts).acquire().await;
    permit.set_cost(4);
    permit.settle().await.unwrap();
    assert_eq!((rules.used(of_key).await, rules.used(of_fleet).await), (vec![1, 1], vec![6]));
}

#[tokio::test]
async fn each_part_of_a_permit_is_settled_at_its_own_cost() {
    let rules = rules(in_memory(), &["9000/minute"], &["9/minute", "2:concurrency"]);
    let (key, all) = (alice(), Subject::global());
    let [of_key, of_fleet] = rules.parts(&key, &all);
    let parts = [of_key, Part { cost: Cost::new(600), ..of_fleet }];
    let permit = rules.limiter.request(&parts).acquire().await;
    assert!(permit.decision().is_allowed());
    assert_eq!(permit.decision().parts().len(), 2);
    let other = rules.limiter.request(&rules.parts(&key, &all)).acquire().await;
    assert_eq!((rules.used(of_key).await, rules.used(of_fleet).await), (vec![2, 2], vec![601]));

    let denied = rules.limiter.request(&parts).acquire().await;
    assert_eq!(over(denied.decision()), [true, false]);
    denied.set_cost(7);
    drop(denied);
    permit.set_part_cost(1, 150);
    permit.settle().await.unwrap();
    assert_eq!((rules.used(of_key).await, rules.used(of_fleet).await), (vec![2, 1], vec![151]));
    other.add_part_cost(1, 9);
    drop(other);
    assert_eq!((rules.used(of_key).await, rules.used(of_fleet).await), (vec![2, 0], vec![160]));
}

#[tokio::test]
async fn each_part_is_refunded_its_own_units() {
    let rules = rules(in_memory(), &["1000/minute"], &["9/minute"]);
    let (key, all) = (alice(), Subject::global());
    let [of_key, of_fleet] = rules.parts(&key, &all);
    let parts = [Part { cost: Cost::new(3), ..of_key }, Part { cost: Cost::new(600), ..of_fleet }];
    let decision = rules.limiter.request(&parts).check().await;
    rules.limiter.request(&parts).refund(&decision, &[1, 900]).await.unwrap();
    assert_eq!((rules.used(of_key).await, rules.used(of_fleet).await), (vec![2], vec![0]));
    rules.limiter.request(&of_key).reset_limit("minute").await.unwrap();
    assert_eq!(rules.used(of_key).await, [0]);
    assert!(rules.limiter.request(&of_key).reset_limit("hour").await.is_err());
}

/// Fault: each part was settled by a call of its own, so that the parts changed one after the
/// other.
#[tokio::test]
async fn all_parts_are_settled_freed_and_refunded_in_one_call() {
    let store = Arc::new(Faulty::default());
    let limiter = RateLimiter::builder().limit(Limit::per_second(1)).store(Arc::clone(&store));
    let key_limits = ["900/minute", "2:concurrency"];
    let rules = rules(limiter.build().unwrap(), &["9000/minute", "9:concurrency"], &key_limits);
    let (key, all) = (alice(), Subject::global());
    let parts = rules.parts(&key, &all).map(|part| Part { cost: 2.into(), ..part });
    let calls = async |operation: &dyn Fn(Permit) -> StoreFuture<()>| {
        let permit = rules.limiter.request(&parts).acquire().await;
        permit.set_part_cost(0, 5);
        permit.set_part_cost(1, 0);
        let before = store.asked();
        operation(permit).await.unwrap();
        store.asked() - before
    };
    assert_eq!(calls(&Permit::settle).await, 1);
    let dropped = calls(&|permit| {
        drop(permit);
        MaybeReady::ready(Ok(()))
    });
    assert_eq!(dropped.await, 1);
    let decision = rules.limiter.request(&parts).check().await;
    let before = store.asked();
    rules.limiter.request(&parts).refund(&decision, &[1, 2]).await.unwrap();
    assert_eq!(store.asked() - before, 1);
    let used = (rules.used(parts[0]).await, rules.used(parts[1]).await);
    assert_eq!(used, (vec![5 + 5 + 1, 1], vec![0, 0]));
}

/// Returns two parts that share the counters of `key`.
fn twice(rules: &Rules, key: &'static Subject, costs: [u64; 2]) -> [Part<'static>; 2] {
    let (namespace, policy) = (rules.key.0.clone(), rules.key.1.clone());
    let (namespace, policy) = (Box::leak(Box::new(namespace)), Box::leak(Box::new(policy)));
    costs.map(|cost| Part::new(key, policy, cost.into()).with_namespace(namespace))
}

fn bob() -> &'static Subject {
    Box::leak(Box::new(Subject::user("bob")))
}

/// Fault: both parts together had been charged one unit of the limit that counts requests, and each
/// of them refunded it.
#[tokio::test]
async fn parts_with_the_same_counters_are_refunded_and_settled_as_one_request() {
    let rules = rules(in_memory(), &["9/minute"], &["20/minute:requests", "10000/minute"]);
    let parts = twice(&rules, bob(), [100, 50]);
    // A unit of another request. No refund below may return it.
    rules.limiter.request(&[parts[0]]).check().await;
    for (units, expected) in
        [([100, 50], vec![1, 100]), ([100, 0], vec![2, 150]), ([0, 900], vec![3, 250])]
    {
        let decision = rules.limiter.request(&parts).check().await;
        assert!(decision.is_allowed());
        rules.limiter.request(&parts).refund(&decision, &units).await.unwrap();
        assert_eq!(rules.used(parts[0]).await, expected, "{units:?}");
    }
    let permit = rules.limiter.request(&parts).acquire().await;
    permit.set_part_cost(0, 0);
    permit.add_part_cost(1, 7);
    assert_eq!(permit.cost(), Cost::ZERO);
    drop(permit);
    assert_eq!(rules.used(parts[0]).await, [4, 307]);
    let permit = rules.limiter.request(&parts).acquire().await;
    permit.set_cost(0);
    permit.settle().await.unwrap();
    assert_eq!(rules.used(parts[0]).await, [4, 307]);
}

/// Fault: the second part's renewal did not find the place that the first had renewed, and took
/// another one.
#[tokio::test(start_paused = true)]
async fn parts_with_the_same_counters_hold_one_place_under_a_limit_that_counts_requests() {
    let store = MemoryStore::builder().clock(TokioClock::new()).build();
    let limiter = RateLimiter::builder().limit(Limit::per_second(1)).store(store);
    let rules = rules(limiter.build().unwrap(), &["9/minute"], &["3:concurrency:requests"]);
    let parts = twice(&rules, bob(), [100, 50]);
    let permit = rules.limiter.request(&parts).acquire().await;
    let other = rules.limiter.request(&parts[..1]).acquire().await;
    assert_eq!(rules.used(parts[0]).await, [2]);
    tokio::time::timeout(Duration::from_secs(35), std::future::pending::<()>()).await.unwrap_err();
    assert_eq!(rules.used(parts[0]).await, [2]);
    drop(permit);
    assert_eq!(rules.used(parts[0]).await, [1]);
    drop(other);
    assert_eq!(rules.used(parts[0]).await, [0]);
}

/// Fault: the flags of the ninth part were shifted out of their byte.
#[tokio::test]
async fn a_request_of_too_many_parts_is_a_configuration_failure_even_if_a_policy_denies() {
    let rules = rules(in_memory(), &["9/minute"], &["9/minute"]);
    let subjects: Vec<_> = (0..9).map(|n| Subject::user(&n.to_string())).collect();
    let blocked = rules.key.1.blocked_until(None);
    let nine: Vec<_> = subjects.iter().map(|one| Part::new(one, &blocked, ONE)).collect();
    let wait = Duration::from_secs(1);
    let decisions = [
        rules.limiter.request(&nine).check().await,
        rules.limiter.request(&nine).wait(wait, 9).check().await,
    ];
    for decision in decisions {
        let failures = [Origin::FailedOpen, Origin::FailedClosed];
        let failures = failures.map(|origin| origin(FailureKind::Unsupported));
        assert!(failures.contains(&decision.origin()), "{decision:?}");
    }
}

/// Fault: each part alone was within the limit, so the failure policy allowed the request.
#[tokio::test]
async fn a_policy_denies_the_summed_cost_of_parts_while_the_store_is_down() {
    let store = Arc::new(Faulty::default());
    store.fail_with(FailureKind::Unavailable);
    let limiter = RateLimiter::builder().limit(Limit::per_second(1)).store(Arc::clone(&store));
    let limiter = limiter.on_store_failure(OnFailure::Allow).build().unwrap();
    let rules = rules(limiter, &["9/minute"], &["3/minute"]);
    for (costs, expected) in
        [([2, 2], Origin::Policy), ([2, 1], Origin::FailedOpen(FailureKind::Unavailable))]
    {
        let decision = rules.limiter.request(&twice(&rules, bob(), costs)).check().await;
        assert_eq!(decision.origin(), expected, "{costs:?}");
    }
}

/// Fault: the share of a limit was compared with the cost of one part, not with the sum. For a
/// limit that counts requests, it was compared with units.
#[tokio::test]
async fn the_share_of_a_fallback_grants_the_summed_cost_of_a_request() {
    let store = Arc::new(Faulty::default());
    store.fail_with(FailureKind::Unavailable);
    let limiter = RateLimiter::builder().limit(Limit::per_second(1)).store(Arc::clone(&store));
    let limiter = limiter.fallback(MemoryStore::new(), Share::with_instances(2)).build().unwrap();
    let rules = rules(limiter, &["9/minute"], &["20/minute:requests", "1000/minute"]);
    let fallback = Origin::Fallback(FailureKind::Unavailable);
    for (costs, is_allowed, origin) in [
        ([300, 300], true, fallback),
        ([200, 200], false, fallback),
        ([600, 600], false, Origin::Policy),
    ] {
        let decision = rules.limiter.request(&twice(&rules, bob(), costs)).check().await;
        assert_eq!((decision.is_allowed(), decision.origin()), (is_allowed, origin), "{costs:?}");
    }
}

/// Fault: a request over a limit in shadow was treated as denied, so the place that its permit held
/// was not freed.
#[tokio::test]
async fn a_limit_in_shadow_does_not_keep_places_under_a_limiter_in_shadow() {
    let limiter = RateLimiter::builder().limit(Limit::per_second(1)).shadow(true).build().unwrap();
    let rules = rules(limiter, &["9/minute"], &["1/hour:shadow", "2:concurrency"]);
    let parts = twice(&rules, bob(), [1, 0]);
    for _ in 0..3 {
        let permit = rules.limiter.request(&parts[..1]).acquire().await;
        assert_eq!(rules.used(parts[0]).await[1], 1);
        drop(permit);
    }
    assert_eq!(rules.used(parts[0]).await, [1, 0]);
}

/// The parts may have different costs, such as one request and its tokens. The smaller cost must
/// not bound the larger one.
#[tokio::test]
async fn a_check_up_to_grants_every_part_the_same_units_or_its_cost() {
    let rules = rules(in_memory(), &["100/minute"], &["40/minute"]);
    let (key, all) = (alice(), Subject::global());
    let [of_key, of_fleet] = rules.parts(&key, &all);
    let of = |key: u64, fleet: u64| {
        [Part { cost: key.into(), ..of_key }, Part { cost: fleet.into(), ..of_fleet }]
    };
    for (costs, expected) in [
        ((50, 60), vec![40, 40]),
        ((0, 50), vec![0, 50]),
        ((1, 1), vec![0, 0]),
        ((0, 50), vec![0, 10]),
    ] {
        let decision = rules.limiter.request(&of(costs.0, costs.1)).check_up_to().await;
        let charged: Vec<_> = decision.parts().map(|part| part.charged()).collect();
        assert_eq!(charged, expected, "{costs:?}");
    }
}

#[tokio::test]
async fn work_that_is_done_already_is_charged_to_the_rates_of_all_parts() {
    let rules = rules(in_memory(), &["2:concurrency"], &["1/minute", "2:concurrency"]);
    let (key, all) = (alice(), Subject::global());
    let [of_key, of_fleet] = rules.parts(&key, &all);
    let decision =
        rules.limiter.request(&[Part { cost: 5.into(), ..of_key }, of_fleet]).charge().await;
    assert!(decision.is_allowed());
    assert_eq!((rules.used(of_key).await, rules.used(of_fleet).await), (vec![5, 0], vec![0]));
}

#[tokio::test]
async fn a_block_of_one_part_denies_without_a_store() {
    let store = Arc::new(Faulty::default());
    let limiter = RateLimiter::builder().limit(Limit::per_second(1)).store(Arc::clone(&store));
    let rules = rules(limiter.build().unwrap(), &["9/minute"], &["9/minute"]);
    let (key, all) = (alice(), Subject::global());
    let [of_key, of_fleet] = rules.parts(&key, &all);
    let blocked = of_fleet.policy.blocked_until(None);
    let blocked = Part { policy: &blocked, ..of_fleet };
    let denied = rules.limiter.request(&[of_key, blocked]).check().await;
    assert_eq!((denied.is_allowed(), denied.origin()), (false, Origin::Policy));
    assert_eq!((over(&denied), store.asked()), (vec![false, true], 0));
    assert!(rules.limiter.request(&[of_key, blocked.shadow()]).check().await.is_allowed());
    assert!(rules.limiter.request(&[]).check().await.is_allowed());
}

#[tokio::test]
async fn the_failure_policy_decides_for_all_parts() {
    let store = Arc::new(Faulty::default());
    let build = |on_failure, fallback: Option<MemoryStore>| {
        let limiter = RateLimiter::builder().limit(Limit::per_second(1)).store(Arc::clone(&store));
        let limiter = match fallback {
            Some(fallback) => limiter.fallback(fallback, Share::with_instances(2)),
            None => limiter.on_store_failure(on_failure),
        };
        rules(limiter.build().unwrap(), &["100/minute"], &["4/minute"])
    };
    store.fail_with(FailureKind::Unavailable);
    let (key, all) = (alice(), Subject::global());
    for (on_failure, expected) in [(OnFailure::Allow, true), (OnFailure::Reject, false)] {
        let rules = build(on_failure, None);
        let decision = rules.limiter.request(&rules.parts(&key, &all)).check().await;
        assert_eq!(decision.is_allowed(), expected);
    }
    let rules = build(OnFailure::Allow, Some(MemoryStore::new()));
    let parts = rules.parts(&key, &all);
    for expected in [true, true, false] {
        let decision = rules.limiter.request(&parts).check().await;
        assert_eq!(decision.is_allowed(), expected);
        assert_eq!(decision.origin(), Origin::Fallback(FailureKind::Unavailable));
        assert_eq!(over(&decision), [!expected, false]);
    }
    // The fallback also decides a request with a permit.
    let permit = rules.limiter.request(&[Part { cost: 2.into(), ..parts[1] }]).acquire().await;
    assert!(permit.decision().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_request_of_parts_waits_in_the_queue_of_the_part_that_denies() {
    let store = MemoryStore::builder().clock(TokioClock::new()).build();
    let limiter = RateLimiter::builder().limit(Limit::per_second(1)).store(store);
    let rules = rules(limiter.build().unwrap(), &["2/second"], &["9/second"]);
    let (one, other, all) = (alice(), Subject::user("bob"), Subject::global());
    let wait = |key: &Subject| {
        let parts = rules.parts(key, &all);
        rules.limiter.request(&parts).wait(Duration::from_secs(5), 9).check()
    };
    let asked = (0..6).map(|n| wait(if n % 2 == 0 { &one } else { &other }));
    for decision in futures_of(asked.collect()).await {
        assert!(decision.is_allowed());
    }
    assert!(rules.limiter.pipeline.wait_queues.is_empty());
    assert_eq!(rules.used(rules.parts(&one, &all)[1]).await, [2]);
    let none =
        rules.limiter.request(&rules.parts(&one, &all)).wait(Duration::ZERO, 9).check().await;
    assert!(!none.is_allowed());
}

/// Runs all futures at the same time.
async fn futures_of(futures: Vec<crate::maybe_ready::MaybeReady<Decision>>) -> Vec<Decision> {
    let tasks: Vec<_> = futures.into_iter().map(tokio::spawn).collect();
    let mut decisions = Vec::new();
    for task in tasks {
        decisions.push(task.await.unwrap());
    }
    decisions
}

#[tokio::test]
async fn the_cost_and_the_limits_of_a_request_replace_those_of_its_parts() {
    let rules = rules(in_memory(), &["100/minute"], &["100/minute"]);
    let (key, all) = (alice(), Subject::global());
    let parts = rules.parts(&key, &all);
    let request = rules.limiter.request(&parts);
    let decision = request.cost(4).check().await;
    assert_eq!(decision.parts().map(|part| part.charged()).collect::<Vec<_>>(), [4, 4]);
    let narrow = policy(&["5/minute"]);
    assert!(!request.policy(&narrow).cost(2).check().await.is_allowed());
    assert!(request.policy(&narrow).check().await.is_allowed());
    assert_eq!((rules.used(parts[0]).await, rules.used(parts[1]).await), (vec![5], vec![5]));
}

#[tokio::test]
async fn a_limit_is_reset_in_each_part_that_has_it() {
    let rules = rules(in_memory(), &["9/minute", "9/day"], &["9/minute", "9/hour"]);
    let (key, all) = (alice(), Subject::global());
    let parts = rules.parts(&key, &all);
    let request = rules.limiter.request(&parts);
    assert!(request.check().await.is_allowed());
    request.reset_limit("minute").await.unwrap();
    request.reset_limit("day").await.unwrap();
    assert!(request.reset_limit("week").await.is_err());
    assert_eq!((rules.used(parts[0]).await, rules.used(parts[1]).await), (vec![0, 1], vec![0, 0]));
}
