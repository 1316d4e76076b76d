//! Calls of Envoy's service, decided in memory.

mod descriptions;
mod envoy_types;
mod kuadrant;

use indexmap::IndexMap;
use prost::Message;
use rl_core::adapter::HttpLimiter;
use rl_core::key::Header;
use rl_core::rules::{Match, Rule, Rules};
use rl_core::{Limit, RateLimiter, Realm};
use tonic::server::NamedService;
use tower::Service;

use super::messages::{
    Code, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse, Unit,
};
use super::{EnvoyService, KuadrantService, services};
use crate::domains::{Charge, Disclosed, DomainRule, compile};
use crate::service::DecisionService;

/// Creates a service with these rules of the domain `edge`.
fn service(rules: impl IntoIterator<Item = (&'static str, DomainRule)>) -> EnvoyService {
    EnvoyService::new(decisions(rules))
}

fn decisions(rules: impl IntoIterator<Item = (&'static str, DomainRule)>) -> DecisionService {
    decisions_beside(Rules::new(), rules)
}

/// Creates a service with these rules of the domain `edge`, beside rules that match requests.
fn decisions_beside(
    matching: Rules,
    rules: impl IntoIterator<Item = (&'static str, DomainRule)>,
) -> DecisionService {
    let rules: IndexMap<_, _> =
        rules.into_iter().map(|(name, rule)| (name.to_owned(), rule)).collect();
    let domains = IndexMap::from([("edge".to_owned(), rules)]);
    let rules = compile(&domains, matching, None).unwrap();
    let limiter = RateLimiter::builder().rules(rules).build().unwrap();
    DecisionService::new(HttpLimiter::new(limiter))
}

fn rule(descriptor: &[&str], limits: &[&str]) -> DomainRule {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    DomainRule { descriptor: texts(descriptor), limits: texts(limits), ..DomainRule::default() }
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entries = entries.iter().map(|(key, value)| Entry::new(key, value));
    RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
}

async fn call(
    service: &EnvoyService,
    descriptors: &[RateLimitDescriptor],
) -> (Code, RateLimitResponse) {
    let request = RateLimitRequest {
        domain: "edge".into(),
        descriptors: descriptors.to_vec(),
        hits_addend: 0,
    };
    let response = service.should_rate_limit(request).await.unwrap();
    (response.overall_code(), response)
}

#[tokio::test]
async fn all_descriptors_are_charged_or_none() {
    let service = service([
        ("address", rule(&["remote_address"], &["2/minute"])),
        ("user", rule(&["user"], &["5/minute", "100/day"])),
    ]);
    let both = [descriptor(&[("remote_address", "192.0.2.1")]), descriptor(&[("user", "alice")])];
    for remaining in [(1, 4), (0, 3)] {
        let (code, response) = call(&service, &both).await;
        assert_eq!(code, Code::Ok);
        let left: Vec<u32> = response.statuses.iter().map(|one| one.limit_remaining).collect();
        assert_eq!(left, [remaining.0, remaining.1]);
    }
    let (code, response) = call(&service, &both).await;
    assert_eq!(code, Code::OverLimit);
    assert_eq!(response.statuses[0].code(), Code::OverLimit);
    let limit = response.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (2, Unit::Minute));
    assert_eq!(response.statuses[1].code(), Code::Ok);
    let retry = response.response_headers_to_add.iter().find(|header| header.key == "retry-after");
    assert!(retry.is_some(), "{response:?}");
    assert!(!response.raw_body.is_empty());

    // The denial charged nothing to the user.
    let (_, response) = call(&service, &both[1..]).await;
    assert_eq!(response.statuses[0].limit_remaining, 2);
}

#[tokio::test]
async fn statuses_are_aligned_with_descriptors_also_without_a_rule_or_a_limit() {
    let service =
        service([("open", rule(&["path=/open"], &[])), ("user", rule(&["user"], &["1/minute"]))]);
    let descriptors = [
        descriptor(&[("unknown", "x")]),
        descriptor(&[("path", "/open")]),
        descriptor(&[("user", "bob")]),
    ];
    let (code, response) = call(&service, &descriptors).await;
    assert_eq!((code, response.statuses.len()), (Code::Ok, 3));
    assert!(response.statuses[0].current_limit.is_none());
    assert_eq!(response.statuses[1].limit_remaining, u32::MAX);
    assert_eq!(response.statuses[2].limit_remaining, 0);
    let (code, response) = call(&service, &descriptors).await;
    assert_eq!(code, Code::OverLimit);
    let codes: Vec<Code> = response.statuses.iter().map(|one| one.code()).collect();
    assert_eq!(codes, [Code::Ok, Code::Ok, Code::OverLimit]);
}

#[tokio::test]
async fn the_cost_and_the_limit_of_a_descriptor_replace_those_of_its_rule() {
    let service = service([("user", rule(&["user"], &["10/minute"]))]);
    let mut one = descriptor(&[("user", "carol")]);
    one.hits_addend = Some(4);
    let (_, response) = call(&service, &[one.clone()]).await;
    assert_eq!(response.statuses[0].limit_remaining, 6);
    one.hits_addend = Some(0);
    let (_, response) = call(&service, &[one.clone()]).await;
    assert_eq!(response.statuses[0].limit_remaining, 6, "a cost of 0 charges nothing");
    one.hits_addend = None;
    one.limit = Some(RateLimitOverride { requests_per_unit: 1, unit: Unit::Hour.into() });
    assert_eq!(call(&service, &[one.clone()]).await.0, Code::Ok);
    assert_eq!(call(&service, &[one]).await.0, Code::OverLimit);
}

/// Fault: with "a denial charges nothing", a last charge of 5 000 tokens on 100 remaining ones would
/// be refused, and the budget would never be exhausted.
#[tokio::test]
async fn a_rule_that_is_charged_after_the_request_is_charged_beyond_its_limits() {
    let tokens = DomainRule { charge: Charge::After, ..rule(&["user"], &["100/hour"]) };
    let service = service([("tokens", tokens)]);
    let mut before = descriptor(&[("user", "dave")]);
    before.hits_addend = Some(0);
    let mut after = before.clone();
    after.hits_addend = Some(5_000);
    assert_eq!(call(&service, &[before.clone()]).await.0, Code::Ok);
    call(&service, &[after]).await;
    assert_eq!(call(&service, &[before]).await.0, Code::OverLimit);
}

/// Fault: beside a descriptor with a cost, a descriptor with a cost of 0 was charged too, and a charge
/// is never denied.
#[tokio::test]
async fn a_descriptor_with_a_cost_of_0_charges_nothing_beside_others_with_a_cost() {
    let after = |key: &str| DomainRule { charge: Charge::After, ..rule(&[key], &["100/hour"]) };
    let service = service([("read", after("read")), ("written", after("written"))]);
    let of = |key, hits| {
        let hits_addend = Some(hits);
        RateLimitDescriptor { hits_addend, ..descriptor(&[(key, "dave")]) }
    };
    for _ in 0..2 {
        assert_eq!(call(&service, &[of("read", 0), of("written", 60)]).await.0, Code::Ok);
    }
    let (_, response) = call(&service, &[of("read", 99)]).await;
    assert_eq!(response.statuses[0].limit_remaining, 1, "a cost of 0 charged nothing");
    assert_eq!(call(&service, &[of("read", 5), of("written", 0)]).await.0, Code::OverLimit);
    let (code, _) = call(&service, &[of("read", 0)]).await;
    assert_eq!(code, Code::OverLimit, "used units are charged also if the request is denied");
}

/// Envoy writes the numbers of statuses into headers that clients read.
#[tokio::test]
async fn the_numbers_of_an_undisclosed_rule_are_in_no_status_and_no_header() {
    let undisclosed =
        DomainRule { disclosed: Disclosed::Limits(false), ..rule(&["fleet"], &["1/day"]) };
    let service = service([("fleet", undisclosed), ("user", rule(&["user"], &["9/hour"]))]);
    let descriptors = [descriptor(&[("fleet", "a")]), descriptor(&[("user", "alice")])];
    for expected in [Code::Ok, Code::OverLimit] {
        let (code, response) = call(&service, &descriptors).await;
        assert_eq!(code, expected);
        let [fleet, user] = &response.statuses[..] else { panic!("{response:?}") };
        assert_eq!((fleet.code(), &fleet.current_limit, fleet.limit_remaining), (code, &None, 0));
        assert_eq!((user.code(), user.limit_remaining), (Code::Ok, 8));
        let shown = |name: &str| {
            let header = response.response_headers_to_add.iter().find(|one| one.key == name);
            header.map(|header| &*header.value)
        };
        let is_allowed = code == Code::Ok;
        assert_eq!(shown("x-rate-limit-limit"), is_allowed.then_some("9"));
        assert_eq!(shown("retry-after").is_none(), is_allowed);
        let body = String::from_utf8_lossy(&response.raw_body);
        assert!(!body.contains("day") && !body.contains("fleet"), "{body}");
    }
}

/// Fault: a header that is not UTF-8 was an error of the whole call, after which Envoy lets the
/// request pass.
#[tokio::test]
async fn values_that_are_not_utf_8_are_counted_and_never_an_error() {
    let service = service([("user", rule(&["user"], &["1/minute"]))]);
    let entry = Entry { key: b"user".into(), value: b"caf\xe9".into() };
    let wire = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let wire = RateLimitDescriptor::decode(&*wire.encode_to_vec()).unwrap();
    for expected in [Code::Ok, Code::OverLimit] {
        assert_eq!(call(&service, std::slice::from_ref(&wire)).await.0, expected);
    }
}

/// Fault: a header with a tab or U+0085 was none, so a client that added one to its key was not
/// counted.
#[tokio::test]
async fn a_control_character_that_a_header_may_have_avoids_no_rule() {
    let key = Rule::named("key")
        .per(Header::new("x-key", Realm::Consumer).unwrap())
        .limit(Limit::per_minute(1));
    let service = EnvoyService::new(decisions_beside(Rules::new().rule(key), []));
    let ask = async |value| call(&service, &[descriptor(&[("x-key", value)])]).await.0;
    for (value, expected) in [
        ("a\tb", Code::Ok),
        ("a\tb", Code::OverLimit),
        ("a\u{85}b", Code::Ok),
        ("a\u{85}b", Code::OverLimit),
        // Padded: some services trim it.
        ("a\t", Code::OverLimit),
        // None that a header can have.
        ("a\u{1}b", Code::Ok),
        ("a\u{1}b", Code::Ok),
    ] {
        assert_eq!(ask(value).await, expected, "{value:?}");
    }
}

/// Fault: further slashes before the name of Envoy's service were ignored.
#[tokio::test]
async fn a_path_of_another_form_is_no_call_of_a_service() {
    let (mut services, _) = services(&decisions([])).await;
    for name in [EnvoyService::NAME, KuadrantService::NAME] {
        let method = if name == EnvoyService::NAME { "ShouldRateLimit" } else { "Report" };
        for (path, is_call) in [
            (format!("/{name}/{method}"), true),
            (format!("//{name}/{method}"), false),
            (format!("/x/{name}/{method}"), false),
            (format!("/{}/{method}", name.to_uppercase()), false),
            (format!("/{name}%2F{method}"), false),
            (format!("/{name}"), false),
        ] {
            let request = http::Request::post(&path).body(tonic::body::Body::empty()).unwrap();
            let response = services.call(request).await.unwrap();
            let is_unknown = response.headers().get("grpc-status").is_some_and(|one| one == "12");
            assert_eq!(is_unknown, !is_call, "{path}");
        }
    }
}

#[tokio::test]
async fn a_request_with_too_many_descriptors_or_entries_is_refused_at_once() {
    let service = service([("user", rule(&["user"], &["1/minute"]))]);
    let of = |descriptors, entries| RateLimitRequest {
        domain: "edge".into(),
        descriptors: vec![descriptor(&vec![("other", "x"); entries]); descriptors],
        hits_addend: 0,
    };
    assert!(service.should_rate_limit(of(256, 16)).await.is_ok());
    for (request, expected) in [
        (of(257, 1), "descriptors: expected at most 256"),
        (of(1, 4_097), "descriptors: expected at most 4096 entries"),
    ] {
        let error = service.should_rate_limit(request).await.unwrap_err();
        assert_eq!(error.message(), expected);
    }
}

/// Fault: rules that match a request did not count it beside a rule that is charged after it.
#[tokio::test]
async fn rules_that_match_count_a_request_beside_a_rule_that_is_charged_after_it() {
    let login = Rule::named("login").matching(Match::new().path("/login"));
    let matching = Rules::new().rule(login.limit(Limit::per_minute(2)));
    let tokens = DomainRule { charge: Charge::After, ..rule(&["user"], &["100/hour"]) };
    let service = EnvoyService::new(decisions_beside(matching, [("tokens", tokens)]));
    let ask = async |hits| {
        let user = descriptor(&[("user", "a")]);
        let user = RateLimitDescriptor { hits_addend: Some(hits), ..user };
        call(&service, &[user, descriptor(&[("path", "/login")])]).await.0
    };
    // The call after a request charges its units alone.
    for (hits, expected) in
        [(0, Code::Ok), (5, Code::Ok), (0, Code::Ok), (5, Code::Ok), (0, Code::OverLimit)]
    {
        assert_eq!(ask(hits).await, expected, "{hits}");
    }
}

#[tokio::test]
async fn a_rule_in_shadow_answers_ok_and_is_named_in_the_metadata() {
    let shadow = DomainRule { shadow: true, ..rule(&["user"], &["1/hour"]) };
    let service = service([("trial", shadow)]);
    let user = [descriptor(&[("user", "erin")])];
    let (code, response) = call(&service, &user).await;
    assert_eq!((code, response.dynamic_metadata), (Code::Ok, None));
    assert_eq!(response.request_headers_to_add, []);
    let (code, response) = call(&service, &user).await;
    assert_eq!(code, Code::Ok);
    let [header] = &*response.request_headers_to_add else { panic!("{response:?}") };
    assert_eq!((&*header.key, &*header.value), ("x-rate-limit-would-deny", "edge.trial"));
    let metadata = format!("{:?}", response.dynamic_metadata.unwrap());
    assert!(metadata.contains("edge.trial"), "{metadata}");
}

#[tokio::test]
async fn an_unknown_domain_is_allowed() {
    let service = service([("user", rule(&["user"], &["1/hour"]))]);
    let request = RateLimitRequest { domain: "other".into(), ..RateLimitRequest::default() };
    let response = service.should_rate_limit(request).await.unwrap();
    assert_eq!(response.overall_code(), Code::Ok);
}
