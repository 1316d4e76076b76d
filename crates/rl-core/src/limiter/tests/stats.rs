use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::advance;

use super::*;
use crate::model::Mode;
use crate::rules::{Rule, Rules};
use crate::stats::LimiterStats;
use crate::store::{Namespace, Part};
use crate::time::{Timestamp, TokioClock};

/// The decisions and denials that callers saw.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    allowed: u64,
    denied: u64,
    granted: u64,
    charged_after: u64,
    /// The denials by rule and limit. The entry of a rule with an empty limit name counts all
    /// denials by the rule.
    over: BTreeMap<(String, String), u64>,
    within: BTreeMap<String, u64>,
}

impl Seen {
    fn add(&mut self, decision: &Decision, rules: &[&str]) {
        *(if decision.is_allowed() { &mut self.allowed } else { &mut self.denied }) += 1;
        for (index, part) in decision.parts().enumerate() {
            let rule = rules.get(index).copied().unwrap_or_default();
            self.granted += part.charged();
            for limit in part.limits().filter(LimitStatus::is_over) {
                *self.over.entry((rule.to_owned(), limit.name().to_owned())).or_default() += 1;
            }
            if !rule.is_empty() && part.is_over() {
                *self.over.entry((rule.to_owned(), String::new())).or_default() += 1;
            } else if !rule.is_empty() {
                *self.within.entry(rule.to_owned()).or_default() += 1;
            }
        }
    }

    fn merge(mut self, other: Self) -> Self {
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.granted += other.granted;
        self.charged_after += other.charged_after;
        for (name, count) in other.over {
            *self.over.entry(name).or_default() += count;
        }
        for (rule, count) in other.within {
            *self.within.entry(rule).or_default() += count;
        }
        self
    }

    fn counted(stats: &LimiterStats) -> Self {
        let limits =
            stats.limits.iter().map(|limit| ((limit.rule.clone(), limit.name.clone()), limit.over));
        let rules = stats.rules.iter();
        let rules_over = rules.clone().map(|rule| ((rule.rule.clone(), String::new()), rule.over));
        Self {
            allowed: stats.allowed(),
            denied: stats.denied(),
            granted: stats.units.granted,
            charged_after: stats.units.charged_after,
            over: limits.chain(rules_over).filter(|(_, count)| *count > 0).collect(),
            within: rules.map(|rule| (rule.rule.clone(), rule.within)).collect(),
        }
    }
}

fn ready(decision: MaybeReady<Decision>) -> Decision {
    match decision {
        MaybeReady::Ready(Some(decision)) => decision,
        _ => unreachable!("memory is ready at once"),
    }
}

/// Sends requests of every form, some under two rules.
fn send(limiter: &RateLimiter, [keys, fleet]: [&Namespace; 2], thread: u64, count: u64) -> Seen {
    let mut seen = Seen::default();
    let of_key = Policy::new([Limit::per_hour(50), Limit::per_day(200)]).unwrap();
    let of_fleet = Policy::new([Limit::per_hour(100_000)]).unwrap();
    let of_log = Policy::new(["10/hour:sliding-log".parse().unwrap()]).unwrap();
    for n in 0..count {
        let subject = Subject::consumer(&format!("consumer-{}", (n + thread) % 97));
        match n % 10 {
            0..4 => seen.add(&ready(limiter.check(&subject, 1 + n % 3)), &[]),
            4 => seen.add(&ready(limiter.request(&subject).cost(5).check_up_to()), &[]),
            5 => seen.add(&ready(limiter.request(&subject).policy(&of_log).check()), &[]),
            6 => drop(ready(limiter.peek(&subject, 1))),
            7 => seen.charged_after += ready(limiter.request(&subject).cost(2).charge()).charged(),
            8 => {
                let part = Part::new(&subject, &of_key, 1.into()).with_namespace(keys);
                seen.add(&ready(limiter.request(&[part]).check()), &["keys"]);
            }
            _ => {
                let all = Subject::global();
                let parts = [
                    Part::new(&subject, &of_key, 1.into()).with_namespace(keys),
                    Part::new(&all, &of_fleet, 1.into()).with_namespace(fleet).undisclosed(),
                ];
                seen.add(&ready(limiter.request(&parts).check()), &["keys", "fleet"]);
            }
        }
    }
    seen
}

#[test]
fn the_counts_of_eight_threads_equal_what_their_callers_saw() {
    let limiter = RateLimiter::builder().policy(
        Policy::new([Limit::per_second(1_000_000), Limit::per_hour(900), Limit::per_day(800)])
            .unwrap(),
    );
    let limiter = limiter.build().unwrap();
    let [keys, fleet] = ["keys", "fleet"].map(|name| limiter.namespace().rule(name).unwrap());
    let seen = std::thread::scope(|scope| {
        let (limiter, rules) = (&limiter, [&keys, &fleet]);
        let send = |thread| scope.spawn(move || send(limiter, rules, thread, 25_000));
        let threads: Vec<_> = (0..8).map(send).collect();
        let seen = threads.into_iter().map(|thread| thread.join().unwrap());
        seen.reduce(Seen::merge).unwrap()
    });
    let stats = limiter.stats();
    assert_eq!(Seen::counted(&stats), seen);
    assert_eq!(seen.allowed + seen.denied, 160_000, "all but peeks and charges");
    let both = seen.allowed.min(seen.denied);
    assert!(both > 1_000 && seen.over.len() >= 4, "the decisions are mixed: {seen:?}");
}

/// Fault: decisions on several parts, such as those under several rules, were never timed.
#[test]
fn a_thread_times_one_decision_in_a_millisecond() {
    let policy = Policy::new([Limit::per_hour(9)]).unwrap();
    let subjects = [alice(), Subject::user("bob")];
    let parts = subjects.each_ref().map(|subject| Part::new(subject, &policy, Cost::ZERO));
    for parts in [&parts[..1], &parts] {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_000)));
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let limiter = three().store(store).build().unwrap();
        // Other tests may enable log lines of decisions. `check` then does not use the fast path.
        let check = || ready(limiter.pipeline.decide_fast(parts, Mode::Check));
        check();
        for milliseconds in 1..=5 {
            for _ in 0..100 {
                check();
            }
            assert_eq!(limiter.stats().decision_seconds.count(), milliseconds);
            clock.advance(Duration::from_millis(1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_is_counted_once_and_its_wait_is_recorded() {
    let store = MemoryStore::builder().clock(TokioClock::new()).build();
    let limiter = three().store(store).build().unwrap();
    assert!(limiter.check(&alice(), 3).await.is_allowed());
    let hour = Duration::from_secs(3_600);
    assert!(limiter.request(&alice()).cost(2).wait(hour, 1).check().await.is_allowed());
    assert!(!limiter.request(&alice()).cost(2).wait(hour / 2, 1).check().await.is_allowed());
    let stats = limiter.stats();
    assert_eq!((stats.allowed(), stats.denied(), stats.waiting), (2, 1, 0));
    assert_eq!(stats.wait_seconds.count(), 2);
    assert!((3_599.0..3_601.0).contains(&stats.wait_seconds.sum), "{:?}", stats.wait_seconds);
}

#[tokio::test(start_paused = true)]
async fn decisions_of_the_failure_policy_are_counted_by_origin_and_failures_by_kind() {
    let store = Arc::new(Faulty::default());
    let limiter = three().store(store.clone()).build().unwrap();
    assert!(limiter.check(&alice(), 1).await.is_allowed());
    store.fail_with(FailureKind::Unavailable);
    for _ in 0..5 {
        advance(Duration::from_millis(1)).await;
        assert!(limiter.check(&alice(), 1).await.is_allowed());
    }
    let stats = limiter.stats();
    let count = |is_allowed, origin| {
        let mut all = stats.decisions.iter();
        all.find(|one| (one.is_allowed, one.origin) == (is_allowed, origin)).unwrap().count
    };
    assert_eq!((count(true, "store"), count(true, "failed_open"), stats.denied()), (1, 5, 0));
    let failures: u64 = stats.store_failures.iter().map(|failure| failure.count).sum();
    assert_eq!((failures, stats.is_breaker_closed), (3, false), "the breaker opens after three");
    assert!(stats.limits.iter().all(|limit| limit.over == 0));
}

#[tokio::test]
async fn permits_are_held_until_they_are_settled_and_unused_units_are_refunded() {
    let limiter = RateLimiter::builder().limit(Limit::concurrency(2).unwrap()).build().unwrap();
    let (one, other) = (limiter.acquire(&alice(), 1).await, limiter.acquire(&alice(), 1).await);
    let denied = limiter.acquire(&alice(), 1).await;
    assert_eq!((limiter.stats().permits_held, limiter.stats().denied()), (2, 1));
    one.settle().await.unwrap();
    drop((other, denied));
    let stats = limiter.stats();
    assert_eq!((stats.permits_held, stats.units.refunded), (0, 0));
    assert!(stats.permit_seconds.count() >= 1);

    let limiter = RateLimiter::builder().limit(Limit::per_hour(100)).build().unwrap();
    for cost in [30, 7] {
        let permit = limiter.acquire(&alice(), 10).await;
        permit.set_cost(cost);
        permit.settle().await.unwrap();
    }
    let units = limiter.stats().units;
    assert_eq!((units.granted, units.charged_after, units.refunded), (20, 20, 3));

    // Fault: units that were charged with the head were not counted if the cost fell afterwards.
    let permit = limiter.acquire(&alice(), 10).await;
    permit.set_cost(30);
    permit.charge_cost_of_head();
    permit.set_cost(24);
    permit.settle().await.unwrap();
    let units = limiter.stats().units;
    assert_eq!((units.granted, units.charged_after, units.refunded), (30, 40, 9));
    let used = limiter.usage(&alice()).await.unwrap().limits().next().unwrap().used();
    assert_eq!(used, units.granted + units.charged_after - units.refunded);
}

#[tokio::test]
async fn rules_and_their_limits_are_reported_before_any_request_and_keep_their_names() {
    let rule = |name| Rule::named(name).per(crate::key::Identified).limit(Limit::per_minute(1));
    let rules = Rules::new().rule(rule("users")).rule(rule("trial").shadow());
    let limiter = RateLimiter::builder().rules(rules).build().unwrap();
    let before = limiter.stats();
    let names: Vec<_> = before.rules.iter().map(|rule| &*rule.rule).collect();
    assert_eq!(names, ["users", "trial"]);
    assert_eq!(before.limits[0].by_tier, [(String::new(), Limit::per_minute(1))]);
    for _ in 0..3 {
        limiter.rule("users").of(&alice()).check().await;
        limiter.rule("trial").of(&alice()).check().await;
    }
    assert!(!limiter.rule("unknown").of(&alice()).check().await.is_allowed());
    let stats = limiter.stats();
    let counts: Vec<_> =
        stats.rules.iter().map(|rule| (rule.within, rule.over, rule.shadow_over)).collect();
    assert_eq!(counts, [(1, 2, 0), (1, 0, 2)]);
    let limits: Vec<_> = stats.limits.iter().map(|one| (one.over, one.shadow_over)).collect();
    assert_eq!(limits, [(2, 0), (0, 2)]);
    assert_eq!((stats.allowed(), stats.denied()), (4, 3));
}

#[tokio::test]
async fn a_rule_and_a_namespace_of_the_same_name_have_different_names_in_the_counts() {
    let (limiter, alice) = (three().build().unwrap(), alice());
    let policy = Policy::new([Limit::per_hour(1)]).unwrap();
    let namespaces = [limiter.namespace().rule("fleet").unwrap(), "fleet".parse().unwrap()];
    for (namespace, requests) in namespaces.iter().zip([3, 5]) {
        for _ in 0..requests {
            let part = Part::new(&alice, &policy, 1.into()).with_namespace(namespace);
            ready(limiter.request(&[part]).check());
        }
    }
    let stats = limiter.stats();
    let rules: Vec<_> = stats.rules.iter().map(|rule| (&*rule.rule, rule.over)).collect();
    assert_eq!(rules, [("fleet", 2), ("/fleet", 4)]);
    let limits: Vec<_> = stats.limits.iter().map(|limit| (&*limit.rule, limit.over)).collect();
    assert_eq!(limits, [("", 0), ("fleet", 2), ("/fleet", 4)]);
}

#[tokio::test(start_paused = true)]
async fn a_thread_times_one_of_the_store_calls_that_were_sent_within_a_millisecond() {
    let (answered, late) = (Duration::from_millis(20), Duration::from_secs(9));
    for delay in [answered, late] {
        let limiter = three().store(Delayed(on_tokio_time(), move |_| delay)).build().unwrap();
        let taken = delay.min(limiter.pipeline.stores.deadline);
        for rounds in 1..=2_u32 {
            let calls: JoinSet<_> = (0..10).map(|_| limiter.check(&alice(), 0)).collect();
            assert!(calls.join_all().await.iter().all(Decision::is_allowed));
            let stats = limiter.stats();
            for times in [stats.store_seconds, stats.decision_seconds] {
                assert_eq!(times.count(), u64::from(rounds), "{taken:?}");
                let mean = Duration::from_secs_f64(times.sum) / rounds;
                assert!((taken..taken * 11 / 10).contains(&mean), "{mean:?}");
            }
        }
    }
}

#[tokio::test]
async fn the_most_denied_subjects_are_known_by_exact_numbers_at_low_rates() {
    let clock = Arc::new(ManualClock::default());
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let limiter = three().store(store).build().unwrap();
    for n in 0..30 {
        clock.advance(Duration::from_millis(5));
        limiter.check(&alice(), 1).await;
        if n % 3 == 0 {
            clock.advance(Duration::from_millis(5));
            limiter.check(&Subject::user("bob"), 1).await;
        }
    }
    let stats = limiter.stats();
    let denied: Vec<_> = stats.top_denied.iter().map(|top| (&top.subject, top.count)).collect();
    assert_eq!(denied, [(&alice(), 27), (&Subject::user("bob"), 7)]);
    let by = stats.top_denied[0].denied_by.as_ref().unwrap();
    assert_eq!((&*by.0, &stats.limits.iter().any(|limit| limit.name == by.1)), ("", &true));
    assert!(stats.top_used.iter().all(|top| top.denied_by.is_none()));
    let used: Vec<_> = stats.top_used.iter().map(|top| top.count).collect();
    assert_eq!(used, [3, 3]);
    // The third allowed request of each subject has the utilization 1, and so have all denials.
    // Bucket 4 counts the utilization 1.
    assert_eq!(stats.limits[0].utilization.count(), stats.allowed() + stats.denied());
    assert_eq!(stats.limits[0].utilization.counts[4], 2 + 27 + 7);
}

#[tokio::test]
async fn subjects_that_the_policy_alone_denies_are_among_the_most_denied() {
    let clock = Arc::new(ManualClock::default());
    let limiter = three().clock(clock.clone()).build().unwrap();
    let of = |limit: &str| Policy::new([limit.parse().unwrap()]).unwrap();
    let (closed, blocked) = (of("0/minute"), of("9/minute").blocked_until(None));
    let subject = |id: &str| Subject::user(id);
    for n in 1..=12 {
        clock.advance(Duration::from_millis(5));
        limiter.check(&subject("greedy"), 1_000).await;
        clock.advance(Duration::from_millis(5));
        let policy = if n % 2 == 0 { &closed } else { &blocked };
        limiter.request(&subject("closed")).policy(policy).check().await;
        if n % 3 == 0 {
            clock.advance(Duration::from_millis(5));
            let [one, other] = [subject("ordinary"), subject("of-parts")];
            let (one, other) =
                (Part::new(&one, &closed, 0.into()), Part::new(&other, &closed, 1.into()));
            limiter.request(&[one, other]).check().await;
        }
    }
    let counts = |stats: &LimiterStats| -> Vec<(Subject, u64)> {
        stats.top_denied.iter().map(|top| (top.subject.clone(), top.count)).collect()
    };
    let stats = limiter.stats();
    let expected = [("greedy", 12), ("closed", 12), ("of-parts", 4)];
    assert_eq!(counts(&stats), expected.map(|(id, count)| (subject(id), count)));
    // No counter was read, so nothing is known about used units.
    assert!(stats.limits.iter().all(|limit| limit.utilization.count() == 0));

    // One denial in a millisecond is recorded, and stands for all denials since the last record.
    for _ in 0..1_000 {
        limiter.check(&subject("greedy"), 1_000).await;
    }
    clock.advance(Duration::from_millis(5));
    limiter.check(&subject("greedy"), 1_000).await;
    let stats = limiter.stats();
    assert_eq!(counts(&stats)[0], (subject("greedy"), 12 + 1_001));
    assert_eq!(stats.denied(), 28 + 1_001);
}

#[tokio::test]
async fn a_store_in_memory_reports_its_subjects_and_evictions() {
    let store = Arc::new(MemoryStore::builder().capacity(64).build());
    let limiter = three().store(store.clone()).build().unwrap();
    for n in 0..1_000 {
        limiter.check(&Subject::user(&format!("user-{n}")), 1).await;
    }
    let stats = store.stats();
    assert_eq!((stats.capacity, stats.subjects + stats.evicted), (64, 1_000));
    assert!(
        matches!(limiter.stats().store, crate::stats::StoreStats::Memory(same) if same == stats)
    );
}
