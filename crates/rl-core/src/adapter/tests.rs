use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::future::poll_fn;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::response::{ResponseInfo, ResponseSettings};
use super::settings::CountedSubject;
use super::{
    Admission, CountedRequest, Denied, Extensions, HttpLimiter, RequestContext, ResponseHead,
};
use crate::decision::{Decision, Origin, RetryAfter};
use crate::denial::{Denial, DenialBody, DenialReason, Protocol};
use crate::headers::{HeaderFamily, HeaderLine, Headers};
use crate::key::KeyExtractor as _;
use crate::key::fake_request::FakeRequest;
use crate::key::{AmbiguousKey, ClientAddress, Constant, Header, Identified, RequestInfo};
use crate::limiter::{Permit, RateLimiter};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, FailureKind, Limit, Outcome, Realm, Subject};
use crate::policy::Policy;
use crate::rules::{MissingKey, OverLimit, Rule, Rules};
use crate::store::memory::MemoryStore;
use crate::time::TokioClock;

fn limiter(limit: Limit) -> RateLimiter {
    RateLimiter::builder().limit(limit).build().unwrap()
}

/// Returns a limiter that counts by the address of the peer and allows ten requests per hour.
fn http() -> HttpLimiter {
    HttpLimiter::new(limiter(Limit::per_hour(10)))
}

fn request() -> FakeRequest {
    FakeRequest::get("/").peer("198.51.100.7")
}

fn preflight() -> FakeRequest {
    let options = request().method("OPTIONS").header("origin", b"https://example.org");
    options.header("access-control-request-method", b"PUT")
}

/// Returns whether `http` exempts the request. A request that is not exempt is decided.
fn is_exempt(http: &HttpLimiter, request: &FakeRequest) -> bool {
    let admission = http.admit(request, None);
    if let Admission::Counted(context) = &admission {
        assert!(http.decide(request, context).decision().is_some(), "memory is ready at once");
    }
    matches!(admission, Admission::Exempt)
}

/// Returns whether `http` exempts a request on which an outer limiter has made the decision
/// `outer`.
fn is_exempt_after(http: &HttpLimiter, outer: &Decision) -> bool {
    matches!(http.admit(&request(), Some(outer)), Admission::Exempt)
}

/// Returns the decision on a request that is counted.
fn decide(http: &HttpLimiter, request: &FakeRequest) -> (Decision, RequestContext) {
    let (counted, context) = admit(http, request, None);
    (counted.decision().unwrap().clone(), context)
}

fn admit(
    http: &HttpLimiter,
    request: &FakeRequest,
    outer: Option<&Decision>,
) -> (CountedRequest, RequestContext) {
    match http.admit(request, outer) {
        Admission::Counted(context) => (http.decide(request, &context), context),
        other => panic!("{other:?}"),
    }
}

/// Returns the denial of a request that is rejected without being counted.
fn rejected(http: &HttpLimiter, request: &FakeRequest) -> Denial {
    match http.admit(request, None) {
        Admission::Rejected(denial) => denial,
        other => panic!("{other:?}"),
    }
}

async fn used(http: &HttpLimiter, subject: Subject) -> u64 {
    http.limiter().usage(&subject).await.unwrap().limits().next().unwrap().used()
}

type Values = HashMap<TypeId, Box<dyn Any + Send + Sync>>;

struct FakeExtensions<'a>(&'a mut Values);

impl Extensions for FakeExtensions<'_> {
    fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref()
    }

    fn insert<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Box::new(value));
    }

    fn remove<T: Clone + Send + Sync + 'static>(&mut self) -> Option<T> {
        self.0.remove(&TypeId::of::<T>())?.downcast().ok().map(|value| *value)
    }
}

#[derive(Default)]
struct FakeResponse {
    lines: Vec<String>,
    extensions: Values,
}

impl ResponseInfo for FakeResponse {
    fn status(&self) -> u16 {
        200
    }

    fn header_lines<'a>(&'a self, _: &str, _: &mut dyn FnMut(&'a [u8])) {}
}

impl ResponseHead for FakeResponse {
    fn add_header(&mut self, line: HeaderLine<'_>) {
        self.lines.push(format!("{}: {}", line.name, line.value));
    }

    fn extensions(&mut self) -> impl Extensions {
        FakeExtensions(&mut self.extensions)
    }
}

/// Decides a request with `http` after an outer limiter has made the decision `outer`, and applies
/// the new decision.
///
/// Returns the decision in the extensions of the request, and the counted request.
fn apply(http: &HttpLimiter, outer: Option<&Decision>) -> (Decision, CountedRequest) {
    let (mut counted, context) = admit(http, &request(), outer);
    let mut values = Values::new();
    let mut extensions = FakeExtensions(&mut values);
    if let Some(outer) = outer {
        extensions.insert(outer.clone());
    }
    assert_eq!(http.apply(&mut counted, &context, &mut extensions), None);
    (extensions.remove().unwrap(), counted)
}

#[tokio::test]
async fn preflights_are_counted_unless_exempt() {
    let http = http();
    assert!(!is_exempt(&http, &preflight()));
    assert_eq!(used(&http, Subject::ip([198, 51, 100, 7])).await, 1);
    let http = http.exempt_preflights();
    assert!(is_exempt(&http, &preflight()));
    assert_eq!(used(&http, Subject::ip([198, 51, 100, 7])).await, 1);
    assert!(!is_exempt(&http, &request().method("OPTIONS")));
}

#[tokio::test]
async fn each_exemption_adds_to_the_others() {
    let http = http()
        .exempt(|request| request.path() == "/health")
        .exempt(|request| request.only_header("x-probe") == Ok(Some(b"yes")))
        .exempt_preflights();
    let probe = request().header("x-probe", b"yes");
    assert!(!is_exempt(&http, &request().header("x-probe", b"yes").header("x-probe", b"yes")));
    for exempt in [FakeRequest::get("/health"), probe, preflight()] {
        assert!(is_exempt(&http, &exempt));
    }
    decide(&http, &request());
    assert_eq!(used(&http, Subject::ip([198, 51, 100, 7])).await, 2);
}

#[test]
fn settings_change_one_clone_only() {
    let http = http();
    let changed = http.clone().exempt(|_| true).on_missing_key(MissingKey::Allow);
    assert!(is_exempt(&changed, &request()));
    assert!(!is_exempt(&http, &request()));
    assert_eq!(rejected(&http, &FakeRequest::get("/")).status, 403);
}

#[tokio::test]
async fn requests_are_counted_by_peer_unless_another_key_is_set() {
    let http = http();
    let (decision, context) = decide(&http, &request());
    assert_eq!((decision.is_allowed(), context.subject().realm()), (true, &Realm::Ip));
    assert_eq!(used(&http, Subject::ip([198, 51, 100, 7])).await, 1);

    let by_consumer = http.key(Identified);
    let alice = request().identified(Subject::consumer("alice"));
    let (decision, context) = decide(&by_consumer, &alice);
    assert_eq!((decision.is_allowed(), context.subject().realm()), (true, &Realm::Consumer));
}

#[tokio::test]
async fn a_request_without_a_key_is_handled_as_set() {
    let anonymous = FakeRequest::get("/");
    let denial = rejected(&http(), &anonymous);
    assert_eq!((denial.status, denial.content_type), (403, Some("application/json")));
    let denial = rejected(&http().denial_body(DenialBody::text()), &anonymous);
    assert_eq!(denial.content_type, Some("text/plain; charset=utf-8"));
    let grpc = FakeRequest::get("/").method("POST").header("content-type", b"application/grpc");
    let denial = rejected(&http(), &grpc);
    assert_eq!((denial.status, denial.content_type), (200, Some("application/grpc")));

    assert!(is_exempt(&http().on_missing_key(MissingKey::Allow), &anonymous));

    let shared = http().on_missing_key(MissingKey::Share);
    for count in 1..=2 {
        let (decision, context) = decide(&shared, &anonymous);
        assert_eq!(decision.limits().next().unwrap().used(), count);
        assert_eq!(context.subject().realm(), &Realm::Unknown);
    }
    decide(&shared, &request());
    assert_eq!(used(&shared, Subject::ip([198, 51, 100, 7])).await, 1);
}

#[tokio::test]
async fn an_ambiguous_key_is_rejected_under_every_setting() {
    let twice = || request().header("x-id", b"a").header("x-id", b"a");
    let by_id = || Header::new("x-id", Realm::Consumer).unwrap();
    for missing_key in [MissingKey::Reject, MissingKey::Allow, MissingKey::Share] {
        let http = http().on_missing_key(missing_key).key(by_id().or(ClientAddress::default()));
        let denial = rejected(&http, &twice());
        assert_eq!((denial.status, denial.content_type), (400, Some("application/json")));
        for subject in [Subject::consumer("a"), Subject::ip([198, 51, 100, 7])] {
            let usage = http.limiter().usage(&subject).await.unwrap();
            assert_eq!(usage.limits().next().unwrap().used(), 0);
        }
    }
    let http = http().key(by_id());
    let grpc = twice().method("POST").header("content-type", b"application/grpc");
    let denial = rejected(&http, &grpc);
    assert_eq!((denial.status, denial.content_type), (200, Some("application/grpc")));
    assert!(is_exempt(&http.exempt(|_| true), &twice()));
}

#[cfg(feature = "tracing")]
#[test]
fn an_ambiguous_key_is_logged_once_and_passes_in_shadow() {
    use crate::observe::capture::Capture;

    let capture = Capture::start();
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).shadow(true).build().unwrap();
    let http = HttpLimiter::new(limiter).key(|_: &dyn RequestInfo| Err(AmbiguousKey));
    for _ in 0..3 {
        assert!(is_exempt(&http, &request()));
    }
    let lines = capture.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("WARN request with an ambiguous key rejected"), "{lines:?}");
}

#[cfg(feature = "tracing")]
#[test]
fn requests_without_a_key_are_logged_once() {
    use crate::observe::capture::Capture;

    let capture = Capture::start();
    let http = http();
    for _ in 0..3 {
        rejected(&http, &FakeRequest::get("/"));
        rejected(&http.clone(), &FakeRequest::get("/"));
    }
    let lines = capture.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("WARN request without a key rejected"), "{lines:?}");
}

#[test]
fn grpc_requests_are_found_by_their_content_type() {
    for (content_type, expected) in [
        (&b"application/grpc"[..], Protocol::Grpc),
        (b"application/grpc+proto", Protocol::Grpc),
        (b"application/grpc-web", Protocol::Http),
        (b"application/json", Protocol::Http),
        (b"\xff", Protocol::Http),
    ] {
        let request = request().method("POST").header("content-type", content_type);
        let (_, context) = decide(&http(), &request);
        assert_eq!(context.protocol(), expected, "{}", content_type.escape_ascii());
    }
    for request in [request(), request().header("content-type", b"application/grpc")] {
        // All gRPC calls are POST requests, so a GET request is not one.
        assert_eq!(decide(&http(), &request).1.protocol(), Protocol::Http);
    }
}

#[tokio::test]
async fn a_request_is_charged_once_for_each_limiter_and_subject() {
    let outer = http();
    let inner = HttpLimiter::new(limiter(Limit::per_minute(10)));
    let (by_outer, _) = apply(&outer, None);
    assert!(is_exempt_after(&outer, &by_outer));
    // Another `HttpLimiter` with the same rate limiter counts as the same limiter.
    assert!(is_exempt_after(&HttpLimiter::new(outer.limiter().clone()), &by_outer));

    let (by_both, _) = apply(&inner, Some(&by_outer));
    assert!(is_exempt_after(&outer, &by_both) && is_exempt_after(&inner, &by_both));
    assert!(!is_exempt_after(&http(), &by_both));
    assert_eq!(used(&outer, Subject::ip([198, 51, 100, 7])).await, 1);
    assert_eq!(used(&inner, Subject::ip([198, 51, 100, 7])).await, 1);
}

/// Fault: if two layers shared a limiter, the inner one charged nothing, even under another
/// subject.
#[tokio::test]
async fn a_request_is_charged_again_under_another_subject() {
    let outer = http();
    let inner = HttpLimiter::new(outer.limiter().clone()).key(Constant);
    let (by_outer, _) = apply(&outer, None);
    let (by_both, _) = apply(&inner, Some(&by_outer));
    assert_eq!(used(&outer, Subject::global()).await, 1);
    assert!(is_exempt_after(&outer, &by_both) && is_exempt_after(&inner, &by_both));
    // A handler's decision has no subject, because no adapter has set one.
    let by_handler = outer.limiter().check(&Subject::global(), 1).await;
    assert!(!is_exempt_after(&inner, &by_handler));
}

#[test]
fn a_disabled_limiter_decides_once_for_each_request() {
    let disabled = RateLimiter::builder().limit(Limit::per_hour(1)).enabled(false).build().unwrap();
    let http = HttpLimiter::new(disabled);
    let (decision, _) = apply(&http, None);
    assert_eq!(decision.origin(), Origin::Disabled);
    assert!(is_exempt_after(&http, &decision));
}

#[test]
fn the_counted_subject_is_in_the_extensions_if_exposed() {
    for (http, expected) in [(http(), None), (http().expose_subject(), Some("198.51.100.7"))] {
        let (mut counted, context) = admit(&http, &request(), None);
        let mut values = Values::new();
        let mut extensions = FakeExtensions(&mut values);
        let _ = http.apply(&mut counted, &context, &mut extensions);
        let subject = extensions.get::<CountedSubject>();
        assert_eq!(
            subject.cloned(),
            expected.map(|ip| CountedSubject(Subject::new(crate::model::Realm::Ip, ip)))
        );
    }
}

fn decision(limit: Limit, outcome: Outcome) -> Decision {
    let policy = Policy::new([limit]).unwrap();
    Decision::decided(policy, Cost::ONE, 1, Default::default(), [outcome])
}

/// Finishes a response of nested limiters that made the decisions `outer` and `inner`. Returns the
/// header lines, and the decision that is left in the extensions of the response.
fn finish(outer: &Decision, inner: Option<&Decision>) -> (Vec<String>, Decision) {
    let headers = Headers::new(HeaderFamily::OpenBank).and(HeaderFamily::Ietf);
    let settings = ResponseSettings { headers, ..ResponseSettings::default() };
    let mut response = FakeResponse::default();
    if let Some(inner) = inner {
        response.extensions().insert(inner.clone());
    }
    CountedRequest::new(MaybeReady::ready(outer.clone()), settings).finish(&mut response);
    let left = response.extensions().remove();
    (response.lines, left.unwrap())
}

#[test]
fn a_hidden_decision_still_reaches_an_outer_limiter() {
    let left = |http: &HttpLimiter, outer: Option<&Decision>| {
        let mut response = FakeResponse::default();
        apply(http, outer).1.finish(&mut response);
        response.extensions().remove::<Decision>()
    };
    let (outer, showing, hiding) = (http(), http(), http().hide_decision());
    let (by_outer, _) = apply(&outer, None);
    assert!(left(&hiding, None).is_none());
    for decision in
        [left(&hiding, Some(&by_outer)), left(&showing, Some(&by_outer)), left(&showing, None)]
    {
        assert!(decision.unwrap().outer().is_none(), "the outer limiter adds itself");
    }
}

#[test]
fn single_valued_fields_describe_the_stricter_of_nested_limiters() {
    let lenient = decision(Limit::per_hour(100), Outcome::granted(1, 3_600_000_000));
    let strict = decision(Limit::per_minute(10), Outcome::granted(8, 60_000_000));
    let single = |limit, remaining, reset| {
        [
            format!("x-rate-limit-limit: {limit}"),
            format!("x-rate-limit-remaining: {remaining}"),
            format!("x-rate-limit-reset: {reset}"),
        ]
    };
    let lists = |policy: &str, standing: &str| {
        [format!("ratelimit-policy: {policy}"), format!("ratelimit: {standing}")]
    };
    let of_lenient = lists(r#""hour";q=100;w=3600"#, r#""hour";r=99;t=3600"#);
    let of_strict = lists(r#""minute";q=10;w=60"#, r#""minute";r=2;t=60"#);

    let (lines, left) = finish(&lenient, None);
    assert_eq!(lines, [single(100, 99, 3600).as_slice(), &of_lenient].concat());
    assert_eq!(left.policy(), lenient.policy());

    let (lines, left) = finish(&strict, Some(&lenient));
    assert_eq!(lines, [single(10, 2, 60).as_slice(), &of_strict].concat());
    assert_eq!(left.policy(), strict.policy());

    let (lines, left) = finish(&lenient, Some(&strict));
    assert_eq!(lines, of_lenient);
    assert_eq!(left.policy(), strict.policy());

    // If both decisions are equally strict, the header values of the inner one stay.
    let (lines, left) = finish(&strict, Some(&strict));
    assert_eq!(lines, of_strict);
    assert_eq!(left.policy(), strict.policy());
}

#[test]
fn retry_after_of_an_inner_denial_stays() {
    let strict = decision(Limit::per_minute(10), Outcome::granted(10, 60_000_000));
    let denied = decision(Limit::per_hour(9), Outcome::denied(9, 5_000_000, 5_000_000));
    let (lines, left) = finish(&strict, Some(&denied));
    assert!(!lines.iter().any(|line| line.starts_with("retry-after")), "{lines:?}");
    assert!(!left.is_allowed());
    let (lines, _) = finish(&denied, None);
    assert_eq!(lines.last().unwrap(), "retry-after: 5");
}

#[test]
fn a_decision_without_a_store_writes_no_headers_and_replaces_none() {
    let known = decision(Limit::per_minute(10), Outcome::granted(1, 60_000_000));
    let off = Decision::undecided(Cost::ONE, Origin::Disabled);
    let (lines, left) = finish(&off, Some(&known));
    assert_eq!((lines, left.origin()), (vec![], Origin::Store));
    let (lines, left) = finish(&known, Some(&off));
    assert_eq!((lines.len(), left.origin()), (5, Origin::Store));
}

#[test]
fn a_denial_has_the_form_that_is_set() {
    let http = HttpLimiter::new(limiter(Limit::per_hour(0)));
    let (denied, context) = decide(&http, &request());
    let denial = http.denial(&denied, &context);
    assert_eq!((denial.status, denial.content_type), (429, Some("application/json")));
    assert!(denial.body.contains("Anonymous access is blocked."), "{}", denial.body);

    let problem = http.clone().denial_body(DenialBody::problem());
    assert_eq!(problem.denial(&denied, &context).content_type, Some("application/problem+json"));

    let own = problem.deny_with(|reason, default| {
        let (decision, subject) = (reason.decision().unwrap(), reason.subject().unwrap());
        let body = format!("{} {:?}", subject.realm().as_str(), decision.retry_after());
        Denial::text(default.status - 9, body)
    });
    let denial = own.denial(&denied, &context);
    assert_eq!((denial.status, &*denial.body), (420, "ip Never"));
    assert_eq!(denied.retry_after(), RetryAfter::Never);
}

#[test]
fn a_responder_answers_requests_without_a_key_too() {
    let own = http().deny_with(|reason, default| match reason {
        DenialReason::MissingKey => Denial::json(default.status, r#"{"error":"who are you?"}"#),
        _ => default,
    });
    let denial = rejected(&own, &FakeRequest::get("/"));
    assert_eq!((denial.status, &*denial.body), (403, r#"{"error":"who are you?"}"#));
}

/// A gRPC client cannot read any other form; it would report a stream that ended too early.
#[test]
fn a_responder_cannot_replace_a_grpc_denial_by_another_form() {
    let http = HttpLimiter::new(limiter(Limit::per_hour(0)));
    let call = request().method("POST").header("content-type", b"application/grpc");
    let (denied, context) = decide(&http, &call);

    let html = http.clone().deny_with(|_, _| Denial::text(429, "slow down"));
    assert_eq!(html.denial(&denied, &context), http.denial(&denied, &context));

    let more = http.clone().deny_with(|_, default| default.header("x-docs", "/limits"));
    let denial = more.denial(&denied, &context);
    assert_eq!((denial.status, denial.is_grpc()), (200, true));
    assert!(denial.headers.contains(&("x-docs", "/limits".into())), "{denial:?}");
}

#[test]
fn a_responder_that_keeps_the_default_status_keeps_503() {
    let down = Decision::undecided(Cost::ONE, Origin::FailedClosed(FailureKind::Unavailable));
    let http = http().deny_with(|_, default| Denial::json(default.status, "{}"));
    let (_, context) = decide(&http, &request());
    assert_eq!(http.denial(&down, &context).status, 503);
}

#[test]
fn a_decision_of_a_handler_is_denied_in_the_form_that_is_set() {
    let (denied, _) = decide(&HttpLimiter::new(limiter(Limit::per_hour(0))), &request());
    let subject = Subject::ip([198, 51, 100, 7]);
    let plain = http().denial_body(DenialBody::text()).headers(Headers::none());
    let as_set = plain.denied(denied.clone(), &subject);
    assert_eq!(as_set.denial().body, "Too Many Requests. Anonymous access is blocked.");
    let count = |denied: &Denied| {
        let (decision, _, headers) = denied.clone().into_parts();
        let mut lines = 0;
        headers.write(&decision, &mut |_| lines += 1);
        lines
    };
    assert_eq!(count(&as_set), 0);
    let default = Denied::check(denied, &subject).unwrap_err();
    assert_eq!((default.denial().content_type, count(&default)), (Some("application/json"), 2));
    let (allowed, _) = decide(&http(), &request());
    assert!(Denied::check(allowed, &subject).is_ok());
}

/// A key extractor may contain a secret.
#[test]
fn debug_output_shows_settings_without_the_key() {
    let shown = format!("{:?}", http().key(|_: &dyn RequestInfo| None));
    assert!(shown.starts_with("HttpLimiter { limiter: RateLimiter"), "{shown}");
    assert!(shown.contains("on_missing_key: Reject"), "{shown}");
}

#[cfg(feature = "tracing")]
#[test]
fn a_request_without_a_key_passes_a_limiter_in_shadow_and_is_logged() {
    use crate::observe::capture::Capture;

    let capture = Capture::start();
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).shadow(true).build().unwrap();
    let http = HttpLimiter::new(limiter).key(Identified);
    assert!(is_exempt(&http, &request()));
    assert!(capture.lines()[0].contains("request without a key"), "{:?}", capture.lines());
}

/// Returns a limiter in front of a service, with these rules.
fn under_rules(rules: Rules) -> HttpLimiter {
    let store = MemoryStore::builder().clock(TokioClock::new()).build();
    HttpLimiter::new(RateLimiter::builder().rules(rules).store(store).build().unwrap())
}

/// Fault: the first decision ignored the queue, so new requests took the units that an earlier one
/// waited for.
#[tokio::test(start_paused = true)]
async fn requests_under_rules_do_not_overtake_those_that_wait() {
    let wait = OverLimit::Wait { at_most: Duration::from_secs(60), queue: 9 };
    let cost = |request: &dyn RequestInfo| Cost::new(request.path().len() as u64 - 1);
    let fleet = Rule::named("fleet").limit(Limit::per_second(5)).on_over_limit(wait);
    let http = under_rules(Rules::new().rule(fleet.cost_by(cost)));
    let decide = |path: &str| admit(&http, &FakeRequest::get(path), None).0;
    assert!(decide("/aaa").decision().is_some_and(Decision::is_allowed));
    let poll = |waiting: &mut CountedRequest| {
        waiting.poll_decision(&mut Context::from_waker(Waker::noop())).is_ready()
    };
    let mut large = decide("/aaaa");
    assert!(!poll(&mut large));
    // The remaining units suffice for this request, but the earlier one must be served first.
    let mut small = decide("/aa");
    assert!(!poll(&mut small));
    let began = Instant::now();
    poll_fn(|cx| large.poll_decision(cx)).await;
    assert_eq!((large.decision_mut().is_allowed(), began.elapsed().as_secs()), (true, 1));
    poll_fn(|cx| small.poll_decision(cx)).await;
    assert_eq!((small.decision_mut().is_allowed(), began.elapsed().as_secs()), (true, 2));
}

/// Fault: a request that waited for one rule also waited for a rule that rejects.
#[tokio::test(start_paused = true)]
async fn a_rule_that_rejects_also_rejects_requests_that_wait_for_another() {
    let wait = OverLimit::Wait { at_most: Duration::from_secs(60), queue: 9 };
    let patient = Rule::named("consumers").per(Identified).limit(Limit::per_second(1));
    let fleet = Rule::named("fleet").limit("2/30s".parse().unwrap());
    let http = under_rules(Rules::new().rule(patient.on_over_limit(wait)).rule(fleet));
    let decide = |id: &str| admit(&http, &request().identified(Subject::consumer(id)), None).0;
    assert!(decide("a").decision().is_some_and(Decision::is_allowed));
    let mut waiting = decide("a");
    assert!(waiting.decision().is_none(), "only the rule that lets it wait denies");
    assert!(decide("b").decision().is_some_and(Decision::is_allowed));
    let began = Instant::now();
    poll_fn(|cx| waiting.poll_decision(cx)).await;
    assert_eq!((waiting.decision_mut().is_allowed(), began.elapsed().as_secs()), (false, 1));
}

#[tokio::test]
async fn a_handler_sets_the_cost_of_each_rule_by_its_name() {
    let rule = |name: &str| Rule::named(name).limit(Limit::per_hour(1_000));
    let rules = Rules::new().rule(rule("requests").cost(1)).rule(rule("tokens").cost(600));
    let http = under_rules(rules).metered();
    let (mut counted, context) = admit(&http, &request(), None);
    let mut values = Values::new();
    assert_eq!(http.apply(&mut counted, &context, &mut FakeExtensions(&mut values)), None);
    let permit: Permit = FakeExtensions(&mut values).remove().unwrap();
    permit.set_cost(900);
    permit.set_rule_cost("tokens", 150);
    permit.set_rule_cost("unknown", 800);
    drop(counted);
    permit.settle().await.unwrap();
    for (rule, units) in [("requests", 1), ("tokens", 150)] {
        let usage = http.limiter().usage_of_rule(rule, &Subject::global()).await.unwrap();
        assert_eq!(usage.limits().next().map(|limit| limit.used()), Some(units));
    }
}
