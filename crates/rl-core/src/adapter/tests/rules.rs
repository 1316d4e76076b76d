//! Limiters with rules.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::{FakeExtensions, Values, admit, decide, ready, request};
use crate::adapter::{Extensions, HttpLimiter};
use crate::decision::Decision;
use crate::key::fake_request::FakeRequest;
use crate::key::{Identified, RequestInfo};
use crate::limiter::{Permit, RateLimiter};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, Limit, Subject};
use crate::rules::{OverLimit, Rule, Rules};
use crate::store::memory::MemoryStore;
use crate::time::TokioClock;

/// Returns a limiter in front of a service, with these rules.
fn under_rules(rules: Rules) -> HttpLimiter {
    let store = MemoryStore::builder().clock(TokioClock::new()).build();
    HttpLimiter::new(RateLimiter::builder().rules(rules).store(store).build().unwrap())
}

/// Fault: the first decision on a request ignored the wait queue, so new requests took the units
/// for which an earlier one waited.
#[tokio::test(start_paused = true)]
async fn requests_under_rules_do_not_overtake_those_that_wait() {
    let wait = OverLimit::Wait { at_most: Duration::from_secs(60), queue: 9 };
    let cost = |request: &dyn RequestInfo| Cost::new(request.path().len() as u64 - 1);
    let fleet = Rule::named("fleet").limit(Limit::per_second(5)).on_over_limit(wait);
    let http = under_rules(Rules::new().rule(fleet.cost_by(cost)));
    let decide = |path: &str| admit(&http, &FakeRequest::get(path), None).0;
    assert!(ready(decide("/aaa")).is_allowed());
    let poll = |waiting: &mut MaybeReady<Decision>| {
        Pin::new(waiting).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    };
    let mut large = decide("/aaaa");
    assert!(!poll(&mut large));
    // The remaining units suffice for this request, but the earlier one must be served first.
    let mut small = decide("/aa");
    assert!(!poll(&mut small));
    let began = Instant::now();
    assert_eq!((large.await.is_allowed(), began.elapsed().as_secs()), (true, 1));
    assert_eq!((small.await.is_allowed(), began.elapsed().as_secs()), (true, 2));
}

/// Fault: a request waited because one rule denied it. When another rule, which is set to reject,
/// denied it later, the request waited for that rule too.
#[tokio::test(start_paused = true)]
async fn a_rule_that_rejects_also_rejects_requests_that_wait_for_another() {
    let wait = OverLimit::Wait { at_most: Duration::from_secs(60), queue: 9 };
    let patient = Rule::named("consumers").per(Identified).limit(Limit::per_second(1));
    let fleet = Rule::named("fleet").limit("2/30s".parse().unwrap());
    let http = under_rules(Rules::new().rule(patient.on_over_limit(wait)).rule(fleet));
    let decide = |id: &str| admit(&http, &request().identified(Subject::consumer(id)), None).0;
    assert!(ready(decide("a")).is_allowed());
    let waiting = decide("a");
    let MaybeReady::Boxed(_) = waiting else { panic!("only the rule that lets it wait denies") };
    assert!(ready(decide("b")).is_allowed());
    let began = Instant::now();
    assert_eq!((waiting.await.is_allowed(), began.elapsed().as_secs()), (false, 1));
}

/// Fault: a request that another rule rejects waited in the queue, and kept its place from requests
/// that could be served.
#[tokio::test(start_paused = true)]
async fn a_request_that_another_rule_rejects_takes_no_place_in_a_queue() {
    let wait = OverLimit::Wait { at_most: Duration::from_secs(60), queue: 2 };
    let keys = Rule::named("keys").per(Identified).limit(Limit::per_hour(1));
    let fleet = Rule::named("fleet").limit("2/30s".parse().unwrap()).on_over_limit(wait);
    let http = under_rules(Rules::new().rule(keys).rule(fleet));
    let decide = |id: &str| admit(&http, &request().identified(Subject::consumer(id)), None).0;
    assert!(ready(decide("a")).is_allowed() && ready(decide("b")).is_allowed());
    let mut waiting = decide("c");
    let polled = Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    let began = Instant::now();
    for _ in 0..3 {
        assert!(!decide("a").await.is_allowed());
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    let served = decide("d");
    assert!(waiting.await.is_allowed() && served.await.is_allowed());
    assert_eq!(began.elapsed(), Duration::from_secs(30));
}

/// Fault: a handler set the cost under one rule, and then changed the cost under all rules. That
/// change restored the cost that was charged at first under the one rule.
#[tokio::test]
async fn a_handler_sets_the_cost_of_each_rule_by_its_name() {
    let rule = |name: &str| Rule::named(name).limit(Limit::per_hour(1_000));
    let rules = Rules::new().rule(rule("requests").cost(1)).rule(rule("tokens").cost(600));
    let http = under_rules(rules.rule(rule("units"))).metered();
    let (decision, context) = decide(&http, &request());
    let mut values = Values::new();
    let (counted, denial) = http.apply(decision, &context, &mut FakeExtensions(&mut values));
    assert_eq!(denial, None);
    let permit: Permit = FakeExtensions(&mut values).remove().unwrap();
    permit.set_cost(900);
    assert!(permit.set_rule_cost("tokens", 150));
    assert!(!permit.set_rule_cost("unknown", 800));
    permit.add_cost(7);
    drop(counted);
    permit.settle().await.unwrap();
    for (rule, units) in [("requests", 1), ("tokens", 150), ("units", 907)] {
        let usage = http.limiter().rule(rule).of(&Subject::global()).usage().await.unwrap();
        assert_eq!(usage.limits().next().map(|limit| limit.used()), Some(units));
    }
}
