//! Events, log lines and decisions that name the rules of a limiter.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rl_core::key::Identified;
use rl_core::observe::{DecisionEvent, Event, EventKind, Observer};
use rl_core::rules::{Rule, Rules};
use rl_core::store::{
    DecideRequest, LeaseStatus, Namespace, Renewal, Reset, Settlement, Store, StoreFuture,
};
use rl_core::time::Timestamp;
use rl_core::{
    Cost, Decision, FailureKind, Limit, MaybeReady, MemoryStore, Origin, Part, Policy, RateLimiter,
    RetryAfter, Share, StoreError, Subject,
};
use rl_tests::web::new_year;

use crate::redis::failure::log::Log;

/// A store that is down.
#[derive(Debug)]
struct Down;

impl Store for Down {
    fn decide(&self, _: DecideRequest<'_>) -> StoreFuture<Decision> {
        MaybeReady::ready(Err(StoreError::new(FailureKind::Unavailable)))
    }

    fn settle(&self, _: &[Settlement<'_>]) -> StoreFuture<LeaseStatus> {
        MaybeReady::ready(Err(StoreError::new(FailureKind::Unavailable)))
    }

    fn renew(&self, _: Renewal<'_>) -> StoreFuture<LeaseStatus<Timestamp>> {
        MaybeReady::ready(Err(StoreError::new(FailureKind::Unavailable)))
    }

    fn reset(&self, _: &[Reset<'_>]) -> StoreFuture<()> {
        MaybeReady::ready(Err(StoreError::new(FailureKind::Unavailable)))
    }
}

/// Records the rules of events, and whether each would-be denial was the first in its window.
#[derive(Debug, Default)]
struct Seen(Mutex<Vec<(String, bool)>>);

impl Observer for Seen {
    fn decided(&self, event: &DecisionEvent<'_>) {
        let rule = event.location.rule.unwrap_or("none").to_owned();
        self.0.lock().unwrap().push((rule, event.decision.is_allowed()));
    }

    fn observe(&self, event: &Event<'_>) {
        if let EventKind::WouldDeny { is_first, .. } = event.kind {
            let rule = event.location.rule.unwrap_or("none").to_owned();
            self.0.lock().unwrap().push((format!("{rule} would deny"), is_first));
        }
    }
}

/// Fault: limits of different rules have the same name, `hour`. The shadow log identified a limit
/// by its name alone, so the rule that was exceeded first hid the would-be denials of all others.
#[tokio::test]
async fn each_rule_in_shadow_is_reported_once_in_each_window() {
    let (log, _guard) = Log::capture();
    let (seen, clock) = (Arc::new(Seen::default()), new_year());
    let rule = |name: &str| Rule::named(name).limit(Limit::per_hour(1)).shadow();
    let limiter = RateLimiter::builder()
        .rules(Rules::new().rule(rule("login")).rule(rule("export")))
        .store(MemoryStore::builder().clock(Arc::clone(&clock)).build())
        .observer(Arc::clone(&seen))
        .build()
        .unwrap();
    for _ in 0..2 {
        for name in ["login", "export"] {
            for _ in 0..3 {
                limiter.rule(name).of(&Subject::global()).check().await;
            }
        }
        clock.advance(Duration::from_secs(3_600));
    }
    let seen = std::mem::take(&mut *seen.0.lock().unwrap());
    for name in ["login would deny", "export would deny"] {
        let firsts: Vec<_> =
            seen.iter().filter(|(rule, _)| rule == name).map(|one| one.1).collect();
        assert_eq!(firsts, [true, false, true, false], "{name}");
    }
    for name in ["login", "export"] {
        let lines = log.lines();
        let lines = lines.iter().filter(|(level, line)| {
            *level == tracing::Level::WARN && line.contains(&format!("rule=\"{name}\""))
        });
        assert_eq!(lines.count(), 2, "{name}");
    }
}

/// Fault: the namespace of the limiter was cut from the beginning of any name, so a rule of `apiv2`
/// was reported as `v2/login` by the limiter `api`.
#[tokio::test]
async fn an_event_names_a_rule_of_another_limiter_by_its_whole_namespace() {
    let seen = Arc::new(Seen::default());
    let limiter = RateLimiter::builder().limit(Limit::per_hour(9)).namespace("api");
    let limiter = limiter.observer(Arc::clone(&seen)).build().unwrap();
    let other = "apiv2".parse::<Namespace>().unwrap().rule("login").unwrap();
    let own = limiter.namespace().rule("login").unwrap();
    let (subject, policy) = (Subject::global(), Policy::new([Limit::per_hour(9)]).unwrap());
    let part = Part::new(&subject, &policy, Cost::ONE);
    for part in [part, part.with_namespace(&own), part.with_namespace(&other)] {
        limiter.request(&[part]).check().await;
    }
    let seen = seen.0.lock().unwrap();
    let rules: Vec<&str> = seen.iter().map(|(rule, _)| rule.as_str()).collect();
    assert_eq!(rules, ["none", "login", "apiv2/login"]);
}

/// Faults: the parts of a decision had no names, and a limit that was not read looked unused.
#[tokio::test]
async fn a_decision_finds_parts_by_rule_and_says_which_limits_were_read() {
    let tokens = Rule::named("tokens").per(Identified).limit(Limit::per_minute(100));
    let limiter = RateLimiter::builder().rules(Rules::new().rule(tokens)).build().unwrap();
    let alice = Subject::user("alice");
    let decision = limiter.rule("tokens").of(&alice).cost(3).check().await;
    let [minute] = &decision.rule("tokens").unwrap().limits().collect::<Vec<_>>()[..] else {
        panic!("one limit")
    };
    assert_eq!((minute.used(), minute.is_known()), (3, true));
    assert_eq!(decision.parts().map(|part| part.rule()).collect::<Vec<_>>(), [Some("tokens")]);
    assert!(decision.rule("token").is_none());
    let usage = limiter.rule("tokens").of(&alice).usage().await.unwrap();
    assert_eq!(usage.rule("tokens").unwrap().rule(), Some("tokens"));

    let too_large = limiter.rule("tokens").of(&alice).cost(101).check().await;
    assert_eq!(too_large.origin(), Origin::Policy);
    assert!(!too_large.rule("tokens").unwrap().limits().any(|limit| limit.is_known()));
}

/// Fault: a denial under a concurrency limit asked the client to wait for the rest of a lease.
#[tokio::test]
async fn clients_retry_a_second_after_a_denial_by_a_concurrency_limit() {
    let limiter = RateLimiter::builder().limit("1:concurrency".parse().unwrap()).build().unwrap();
    let alice = Subject::user("alice");
    let _held = limiter.acquire(&alice, 1).await;
    let denied = limiter.check(&alice, 1).await;
    assert_eq!(denied.retry_hint(), RetryAfter::In(Duration::from_secs(1)));
    let RetryAfter::In(lease) = denied.retry_after() else { panic!("{denied:?}") };
    assert!(lease > Duration::from_secs(5), "the end of the lease is the bound: {lease:?}");
}

/// Fault: the share of a limit could be less than the cost of one request, and nothing said so.
#[tokio::test]
async fn a_share_that_has_to_be_raised_is_logged_with_its_rule_and_limit() {
    let (log, _guard) = Log::capture();
    let export = Rule::named("export").limit(Limit::per_hour(60)).cost(20);
    let login = Rule::named("login").limit(Limit::per_minute(5)).limit(Limit::per_day(80));
    let limiter = RateLimiter::builder()
        .rules(Rules::new().rule(export).rule(login))
        .store(Down)
        .fallback(MemoryStore::new(), Share::with_instances(8))
        .build()
        .unwrap();
    let lines = log.lines();
    let [(_, export), (_, login)] = &lines[..] else { panic!("{lines:#?}") };
    for (line, rule, limit) in [
        (export, "export", "limit=\"hour\" configured=60/hour cost=20"),
        (login, "login", "limit=\"minute\""),
    ] {
        assert!(line.starts_with("share of a limit raised to the cost of one request"), "{line}");
        assert!(line.contains(&format!("rule=\"{rule}\"")) && line.contains(limit), "{line}");
        assert!(line.contains("instances=8"), "{line}");
    }

    let decisions = [
        limiter.rule("export").of(&Subject::global()).cost(20).check().await,
        limiter.rule("export").of(&Subject::global()).cost(20).check().await,
    ];
    assert_eq!(decisions.each_ref().map(|decision| decision.is_allowed()), [true, false]);
    for decision in decisions {
        let hour = decision.rule("export").unwrap().limits().next().unwrap();
        assert_eq!((hour.configured(), hour.max()), (Limit::per_hour(60), 20));
    }
}
