//! Limiters with rules that get their limits from a source.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{Delayed, From, Silent, Slow, alice, on_tokio_time};
use crate::decision::{Decision, Origin};
use crate::key::fake_request::FakeRequest;
use crate::key::{ClientAddress, CountedAs, Header, Identified, KeyExtractor as _, Route, Tier};
use crate::limiter::{RateLimiter, RateLimiterBuilder, ResetError};
use crate::model::{Cost, FailureKind, Limit, Mode, Realm, Subject};
use crate::policy::Policy;
use crate::rules::{Defaults, MissingKey, OverLimit, Rule, Rules};
use crate::source::PolicySource as _;

const KINDS: [FailureKind; 3] =
    [FailureKind::Unavailable, FailureKind::Overloaded, FailureKind::Unsupported];

fn under(rules: impl IntoIterator<Item = Rule>) -> RateLimiterBuilder {
    RateLimiter::builder().rules(rules.into_iter().fold(Rules::new(), Rules::rule))
}

fn fleet() -> Rule {
    Rule::named("fleet").limit(Limit::per_hour(1))
}

fn one_per_hour() -> Policy {
    Policy::new([Limit::per_hour(1)]).unwrap()
}

/// Decides a request under all rules.
async fn decide(limiter: &RateLimiter) -> Decision {
    decide_request(limiter, &FakeRequest::get("/")).await
}

async fn decide_request(limiter: &RateLimiter, request: &FakeRequest) -> Decision {
    let defaults = Defaults { on_missing_key: MissingKey::Reject, cost: None };
    let rules = limiter.rules().unwrap();
    let parts = rules.parts_of(request, &defaults);
    let parts = Arc::new(parts.unwrap().unwrap());
    limiter.decide_rules(&parts, Mode::Check, OverLimit::Reject, false).await
}

/// Fault: a limiter that was switched off looked policies up, and rejected requests if that failed.
#[tokio::test]
async fn a_disabled_limiter_looks_no_policy_up() {
    for kind in KINDS {
        let calls = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&calls);
        let source = From(move |subject: &Subject| {
            counting.fetch_add(1, Ordering::SeqCst);
            Slow::new(1, Err(kind)).policy(subject)
        });
        let rule = Rule::named("records").policies(source);
        let limiter = under([rule, fleet()]).enabled(false).build().unwrap();
        let decisions =
            [decide(&limiter).await, limiter.rule("records").of(&alice()).check().await];
        for decision in decisions {
            assert_eq!((decision.origin(), decision.granted()), (Origin::Disabled, 1), "{kind}");
        }
        assert_eq!(calls.load(Ordering::SeqCst), 0);
    }
}

/// Fault: the configuration failure was rejected even if the limiter denies nothing.
#[tokio::test]
async fn a_rule_that_does_not_exist_denies_nothing_in_shadow_or_if_the_limiter_is_disabled() {
    let check = async |limiter: RateLimiterBuilder| {
        limiter.build().unwrap().rule("removed").of(&alice()).check().await
    };
    let unsupported = FailureKind::Unsupported;
    let enforced = check(under([fleet()])).await;
    assert_eq!(enforced.origin(), Origin::FailedClosed(unsupported));
    assert!(!enforced.is_allowed());
    let in_shadow = check(under([fleet()]).shadow(true)).await;
    assert_eq!(in_shadow.origin(), Origin::FailedOpen(unsupported));
    let disabled = check(under([fleet()]).enabled(false)).await;
    assert_eq!(disabled.origin(), Origin::Disabled);
}

/// Fault: if the look-up of a rule in shadow failed, the request was rejected, or was allowed and
/// counted under no rule.
#[tokio::test(start_paused = true)]
async fn a_failed_look_up_of_a_rule_in_shadow_leaves_the_other_rules_in_force() {
    for (kind, millis) in KINDS.into_iter().zip([1, 2, 3]) {
        let source = Slow::new(millis, Err(kind));
        let trial = Rule::named("trial").policies(source.clone()).shadow();
        let limiter = under([trial, fleet()]).build().unwrap();
        let decisions = [decide(&limiter).await, decide(&limiter).await];
        let decided = decisions.map(|decision| (decision.origin(), decision.is_allowed()));
        assert_eq!(decided, [(Origin::Store, true), (Origin::Store, false)], "{kind}");
        // An administrator must see the failure.
        assert_eq!(limiter.rule("trial").of(&alice()).usage().await.unwrap_err().kind(), kind);
        assert!(limiter.rule("trial").of(&alice()).reset().await.is_err());

        let enforced = under([Rule::named("records").policies(source), fleet()]).build().unwrap();
        assert!(decide(&enforced).await.origin().is_failure());
    }
}

/// The store needs the rest of the deadline.
#[tokio::test(start_paused = true)]
async fn a_rule_in_shadow_waits_for_its_limits_for_half_of_the_deadline() {
    let begin = Instant::now();
    let trial = Rule::named("trial").policies(Slow::new(10_000, Ok(None))).shadow();
    let limiter = under([trial, fleet()]).build().unwrap();
    assert_eq!(decide(&limiter).await.origin(), Origin::Store);
    assert_eq!(begin.elapsed(), Duration::from_millis(50));
}

/// Fault: the look-ups of a request ran one after the other, so two of them exceeded the deadline.
#[tokio::test(start_paused = true)]
async fn the_look_ups_of_a_request_run_at_the_same_time() {
    let rule = |name: &str| Rule::named(name).policies(Slow::new(60, Ok(Some(one_per_hour()))));
    let limiter = under([rule("a"), rule("b"), rule("c")]).build().unwrap();
    let begin = Instant::now();
    let decision = decide(&limiter).await;
    assert_eq!((decision.origin(), decision.parts().len()), (Origin::Store, 3));
    assert_eq!(begin.elapsed(), Duration::from_millis(60));
}

/// Fault: a request that waited for its limits was checked again with the deadline of its first
/// check, of which the look-up had left little. The check was late, so the request was allowed.
#[tokio::test(start_paused = true)]
async fn each_check_of_a_request_that_waits_has_the_whole_deadline() {
    let one_per_second = Policy::new([Limit::per_second(1)]).unwrap();
    let wait = OverLimit::Wait { at_most: Duration::from_secs(60), queue: 9 };
    let rule = Rule::named("records").policies(Slow::new(80, Ok(Some(one_per_second))));
    // The replies take longer and longer: 0, 15, 30 milliseconds and so on.
    let calls = AtomicU64::new(0);
    let delay = move |_| Duration::from_millis(15 * calls.fetch_add(1, Ordering::SeqCst));
    let limiter = under([rule.on_over_limit(wait)]).store(Delayed(on_tokio_time(), delay));
    let limiter = limiter.build().unwrap();
    assert_eq!(decide(&limiter).await.origin(), Origin::Store);
    let waited = decide(&limiter).await;
    assert_eq!((waited.origin(), waited.is_allowed()), (Origin::Store, true));
}

/// Fault: the sum of the current time and the deadline overflowed.
#[tokio::test(start_paused = true)]
async fn a_limiter_without_a_deadline_waits_for_its_store() {
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).store(Silent);
    let limiter = limiter.deadline(Duration::MAX).build().unwrap();
    let decision = timeout(Duration::from_secs(3_600), limiter.check(&alice(), 1));
    assert!(decision.await.is_err(), "the store has not replied");
}

/// Fault: peeks, which reports make, were counted as requests.
#[tokio::test]
async fn a_peek_under_a_rule_charges_and_counts_nothing() {
    let failing = Rule::named("records").policies(From(|subject: &Subject| {
        Slow::new(1, Err(FailureKind::Unavailable)).policy(subject)
    }));
    let limiter = under([fleet(), failing]).build().unwrap();
    let all = Subject::global();
    for _ in 0..3 {
        assert!(limiter.rule("fleet").of(&all).peek().await.is_allowed());
        assert!(!limiter.rule("fleet").of(&all).cost(2).peek().await.is_allowed());
        assert!(limiter.rule("records").of(&alice()).peek().await.origin().is_failure());
        assert!(limiter.rule("removed").of(&alice()).peek().await.origin().is_failure());
    }
    assert!(limiter.stats().decisions.iter().all(|count| count.count == 0));
    assert!(limiter.rule("fleet").of(&all).check().await.is_allowed());
    assert!(!limiter.rule("fleet").of(&all).peek().await.is_allowed());
}

#[tokio::test]
async fn one_limit_of_a_rule_is_reset_by_its_name() {
    let users = Rule::named("users").limits([Limit::per_minute(5), Limit::per_hour(9)]);
    let limiter = under([users, fleet()]).build().unwrap();
    limiter.rule("users").of(&alice()).cost(3).check().await;
    limiter.rule("users").of(&alice()).reset_limit("minute").await.unwrap();
    let usage = limiter.rule("users").of(&alice()).usage().await.unwrap();
    assert_eq!(usage.limits().map(|limit| limit.used()).collect::<Vec<_>>(), [0, 3]);
    for (rule, limit, words) in
        [("users", "day", "no limit is called \"day\""), ("removed", "minute", "\"removed\"")]
    {
        let error = limiter.rule(rule).of(&alice()).reset_limit(limit).await.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// The limits of a rule and of its tiers: a minute in both, and a day in the tier.
fn tiered() -> Rules {
    let clients = Rule::named("clients").per(Identified).limit(Limit::per_minute(10));
    Rules::new().rule(clients.tier("pro", [Limit::per_minute(50), Limit::per_day(1_000)]))
}

/// Returns the names, uses and maxima of the limits.
fn limits(usage: &Decision) -> Vec<(&str, u64, u64)> {
    usage.limits().map(|limit| (limit.name(), limit.used(), limit.max())).collect()
}

#[tokio::test]
async fn usage_and_peeks_use_the_limits_of_the_given_tier() {
    let limiter = RateLimiter::builder().rules(tiered()).build().unwrap();
    limiter.rule("clients").of(&alice()).cost(8).check().await;
    let usage = limiter.rule("clients").tier("pro").of(&alice()).usage().await.unwrap();
    assert_eq!(limits(&usage), [("minute", 8, 50), ("day", 0, 1_000)]);
    assert!(!limiter.rule("clients").of(&alice()).cost(8).peek().await.is_allowed());
    assert!(limiter.rule("clients").tier("pro").of(&alice()).cost(8).peek().await.is_allowed());
    let usage = limiter.rule("clients").tier("other").of(&alice()).usage().await.unwrap();
    assert_eq!(limits(&usage), [("minute", 8, 10)]);
    let found = limiter.rules_of(&[alice()], None);
    assert_eq!((&found[0].tier, &*found[0].tiers), (&None, &["pro".to_owned()][..]));
    let rules = tiered().tier_by(|_| Some(Tier::new("pro")));
    let limiter = RateLimiter::builder().rules(rules).build().unwrap();
    assert_eq!(limiter.rules_of(&[alice()], None)[0].tier.as_deref(), Some("pro"));
}

/// Fault: a limit that only a tier has was not found, although requests in the tier had used it.
#[tokio::test]
async fn limits_of_a_tier_are_reset_with_those_of_the_rule() {
    let limiter = RateLimiter::builder().rules(tiered()).build().unwrap();
    let request = FakeRequest::get("/").identified(alice()).tier("pro");
    assert!(decide_request(&limiter, &request).await.is_allowed());
    limiter.rule("clients").of(&alice()).reset_limit("day").await.unwrap();
    let usage = limiter.rule("clients").tier("pro").of(&alice()).usage().await.unwrap();
    assert_eq!(limits(&usage), [("minute", 1, 50), ("day", 0, 1_000)]);
    assert!(decide_request(&limiter, &request).await.is_allowed());
    limiter.rule("clients").of(&alice()).reset().await.unwrap();
    let usage = limiter.rule("clients").tier("pro").of(&alice()).usage().await.unwrap();
    assert_eq!(limits(&usage), [("minute", 0, 50), ("day", 0, 1_000)]);
    let week = limiter.rule("clients").of(&alice()).reset_limit("week").await;
    assert!(matches!(week, Err(ResetError::UnknownLimit(name)) if name == "week"));
}

#[test]
fn rules_are_found_by_subject_and_request() {
    let header = || Header::new("x-consumer", Realm::Consumer).unwrap();
    let rejecting = |rule: Rule| rule.on_missing_key(MissingKey::Reject);
    let rules = [
        rejecting(Rule::named("consumers").per(header())),
        rejecting(Rule::named("exports").per(header()).on("GET", "/export").cost(2)),
        rejecting(Rule::named("routes").per(header().and(Route))),
        Rule::named("addresses").per(ClientAddress::default()).on_missing_key(MissingKey::Share),
        Rule::named("fleet").shadow(),
    ];
    let rules = rules.into_iter().map(|rule| rule.limit(Limit::per_hour(9)));
    let limiter = under(rules).build().unwrap();
    let names = |subject: Subject| -> Vec<String> {
        limiter.rules_of(&[subject], None).into_iter().map(|rule| rule.name).collect()
    };
    assert_eq!(names(Subject::consumer("abc")), ["consumers", "exports", "routes"]);
    assert_eq!(names(Subject::ip([192, 0, 2, 7])), ["addresses"]);
    assert_eq!(names(Subject::new(Realm::Unknown, "")), ["addresses"]);
    assert_eq!(names(Subject::global()), ["fleet"]);
    assert_eq!(names(Subject::user("alice")), [""; 0]);
    let all = ["consumers", "exports", "routes", "addresses", "fleet"];
    assert_eq!(limiter.rule_names().unwrap(), all);
    assert_eq!(all.map(|rule| limiter.rule(rule).is_shadow()), [false, false, false, false, true]);

    let subjects = [Subject::consumer("abc"), Subject::global()];
    let found = limiter.rules_of(&subjects, Some(&FakeRequest::get("/other")));
    let found: Vec<_> = found.iter().map(|rule| (&*rule.name, rule.counted_as)).collect();
    let expected = [
        ("consumers", CountedAs::Itself),
        ("routes", CountedAs::Pair),
        ("fleet", CountedAs::Itself),
    ];
    assert_eq!(found, expected);
    let export = limiter.rules_of(&subjects, Some(&FakeRequest::get("/export")));
    assert_eq!((&*export[1].name, export[1].cost), ("exports", Some(Cost::new(2))));
    assert!(export[1].has_match && export[3].is_shadow);
    let alone = RateLimiter::builder().limit(Limit::per_hour(1)).build().unwrap();
    assert_eq!((alone.rule_names(), alone.rules_of(&subjects, None)), (None, Vec::new()));
}

/// Returns a rule whose limits a source looks up. The look-up takes a millisecond.
fn looked_up(name: &str, limits: [Limit; 2]) -> Rule {
    let policy = Policy::new(limits).unwrap();
    Rule::named(name).policies(From(move |subject: &Subject| {
        Slow::new(1, Ok(Some(policy.clone()))).policy(subject)
    }))
}

#[tokio::test]
async fn a_request_under_a_rule_is_settled_and_refunded_in_the_counters_of_the_rule() {
    let limits = [Limit::per_hour(20), Limit::concurrency(2).unwrap()];
    for rule in [Rule::named("jobs").limits(limits), looked_up("jobs", limits)] {
        let limiter = under([rule, fleet()]).build().unwrap();
        let alice = alice();
        let request = limiter.rule("jobs").of(&alice);
        let used = async || {
            let usage = request.usage().await.unwrap();
            usage.limits().map(|limit| limit.used()).collect::<Vec<_>>()
        };
        let permit = request.acquire().await;
        assert!(permit.decision().is_allowed());
        assert_eq!(used().await, [1, 1]);
        assert!(permit.set_rule_cost("jobs", 5));
        permit.settle().await.unwrap();
        assert_eq!(used().await, [5, 0]);

        let decision = request.cost(2).check().await;
        assert_eq!(used().await, [7, 2]);
        let permit = request.permit(decision);
        permit.set_cost(1);
        permit.settle().await.unwrap();
        assert_eq!(used().await, [6, 0]);

        let decision = request.cost(9).check_up_to().await;
        assert_eq!((decision.charged(), used().await), (2, vec![8, 2]));
        request.refund(&decision, &[1]).await.unwrap();
        assert_eq!(used().await, [7, 1]);
        request.cost(99).charge().await;
        assert_eq!(used().await, [106, 1]);
        request.reset().await.unwrap();
        assert_eq!(used().await, [0, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_under_a_rule_waits_until_the_rule_allows_it() {
    let limits = [Limit::per_second(1), Limit::per_hour(2)];
    for rule in [Rule::named("calls").limits(limits), looked_up("calls", limits)] {
        let limiter = under([rule]).store(on_tokio_time()).build().unwrap();
        let alice = alice();
        let request = limiter.rule("calls").of(&alice).wait(Duration::from_secs(5), 9);
        let begin = Instant::now();
        assert!(request.check().await.is_allowed());
        assert!(request.acquire().await.decision().is_allowed());
        assert!(begin.elapsed() > Duration::ZERO);
        // The hour does not end within five seconds.
        assert!(!request.check().await.is_allowed());
    }
}

#[tokio::test]
async fn limits_of_a_request_replace_those_of_its_rule_in_the_same_counters() {
    let limiter = under([Rule::named("users").limit(Limit::per_hour(9)), fleet()]).build().unwrap();
    let alice = alice();
    let request = limiter.rule("users").of(&alice);
    assert!(request.cost(4).check().await.is_allowed());
    let narrow = Policy::new([Limit::per_hour(5)]).unwrap();
    assert!(!request.policy(&narrow).cost(2).check().await.is_allowed());
    assert_eq!(limits(&request.policy(&narrow).usage().await.unwrap()), [("hour", 4, 5)]);
    request.policy(&narrow).reset_limit("hour").await.unwrap();
    assert_eq!(limits(&request.usage().await.unwrap()), [("hour", 0, 9)]);
}
