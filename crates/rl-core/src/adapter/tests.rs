mod denials;
mod nesting;
mod rules;

use std::any::{Any, TypeId};
use std::collections::HashMap;

use super::settings::CountedSubject;
use super::{Admission, CountedRequest, Extensions, HttpLimiter, RequestContext, ResponseHead};
use crate::client_ip::ClientIp;
use crate::decision::{Decision, Origin};
use crate::denial::{Denial, DenialBody, Protocol};
use crate::headers::{HeaderLines, ResponseInfo};
use crate::key::KeyExtractor as _;
use crate::key::fake_request::FakeRequest;
use crate::key::{AmbiguousKey, ClientAddress, Constant, Header, Identified, RequestInfo};
use crate::limiter::RateLimiter;
use crate::maybe_ready::MaybeReady;
use crate::model::{Limit, Realm, Subject};
use crate::rules::{MissingKey, Rule, Rules};

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

/// Returns whether `http` exempts the request. If not, also decides it.
fn is_exempt(http: &HttpLimiter, request: &FakeRequest) -> bool {
    let admission = http.admit(request, None);
    if let Admission::Counted(context) = &admission {
        ready(http.decide(request, context));
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
    let (decision, context) = admit(http, request, None);
    (ready(decision), context)
}

/// Returns the decision of a store in memory.
fn ready(decision: MaybeReady<Decision>) -> Decision {
    match decision {
        MaybeReady::Ready(Some(decision)) => decision,
        _ => panic!("memory is ready at once"),
    }
}

fn admit(
    http: &HttpLimiter,
    request: &FakeRequest,
    outer: Option<&Decision>,
) -> (MaybeReady<Decision>, RequestContext) {
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
    fn add_headers(&mut self, lines: &HeaderLines) {
        self.lines.extend(lines.iter().map(|line| line.to_string()));
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
    let (decision, context) = admit(http, &request(), outer);
    let mut values = Values::new();
    let mut extensions = FakeExtensions(&mut values);
    if let Some(outer) = outer {
        extensions.insert(outer.clone());
    }
    let (counted, denial) = http.apply(ready(decision), &context, &mut extensions);
    assert_eq!(denial, None);
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
    assert_eq!(rejected(&http, &FakeRequest::get("/")).status, 500);
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
    let by_consumer = http().key(Identified);
    let denial = rejected(&by_consumer, &anonymous);
    assert_eq!((denial.status, denial.content_type), (403, Some("application/json")));
    let denial = rejected(&by_consumer.clone().denial_body(DenialBody::text()), &anonymous);
    assert_eq!(denial.content_type, Some("text/plain; charset=utf-8"));
    let grpc = FakeRequest::get("/").method("POST").header("content-type", b"application/grpc");
    let denial = rejected(&by_consumer, &grpc);
    assert_eq!((denial.status, denial.content_type), (200, Some("application/grpc")));
    assert!(denial.headers.contains(&("grpc-status", "7".into())), "{denial:?}");

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

/// Fault: the client was blamed with 403 for a server that does not report the peer.
#[test]
fn a_request_without_a_peer_is_an_error_of_the_server_if_it_is_counted_by_address() {
    let grpc = || FakeRequest::get("/").method("POST").header("content-type", b"application/grpc");
    let by_key = || Header::new("x-id", Realm::Consumer).unwrap();
    for http in [http(), http().key(by_key().or(ClientAddress::default()))] {
        assert_eq!(rejected(&http, &FakeRequest::get("/")).status, 500);
        let denial = rejected(&http, &grpc());
        assert!(denial.headers.contains(&("grpc-status", "13".into())), "{denial:?}");
        let uncounted = http.limiter().stats().uncounted;
        assert_eq!((uncounted.unknown_address, uncounted.missing_key), (2, 0));
    }
    let local = ClientIp::with_proxies("10.0.0.0/8".parse().unwrap()).trust_local();
    let behind_proxy = http().key(ClientAddress::new(local));
    assert_eq!(rejected(&behind_proxy, &FakeRequest::get("/")).status, 403);
    let by_key = http().key(by_key());
    assert_eq!(rejected(&by_key, &FakeRequest::get("/")).status, 403);
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

    let rules = Rules::new().rule(Rule::named("users").per(Identified).limit(Limit::per_day(9)));
    let limiter = RateLimiter::builder().rules(rules).build().unwrap();
    let capture = Capture::start();
    rejected(&HttpLimiter::new(limiter), &FakeRequest::get("/"));
    let lines = capture.lines();
    assert!(lines[0].contains("; rule=\"users\""), "{lines:?}");
    drop(capture);

    let capture = Capture::start();
    let [by_consumer, by_address] = [http().key(Identified), http()];
    for _ in 0..3 {
        for http in [&by_consumer, &by_address, &by_address.clone()] {
            rejected(http, &FakeRequest::get("/"));
        }
    }
    let lines = capture.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("WARN request without a known key rejected"), "{lines:?}");
    assert!(lines[1].starts_with("ERROR client address unknown"), "{lines:?}");
    assert!(lines[1].contains("into_make_service_with_connect_info::<SocketAddr>()"), "{lines:?}");
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
        // All gRPC calls are POST requests, so a GET request is not one, even with the content type
        // of gRPC.
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

/// Fault: a limiter that was switched off rejected requests without a key, or with an ambiguous
/// one.
#[test]
fn a_disabled_limiter_exempts_requests_whose_key_would_be_rejected() {
    let disabled = || RateLimiter::builder().limit(Limit::per_hour(1)).enabled(false);
    let http = HttpLimiter::new(disabled().build().unwrap());
    assert!(is_exempt(&http.clone().key(Identified), &request()));
    assert!(is_exempt(&http.key(|_: &dyn RequestInfo| Err(AmbiguousKey)), &request()));
}

#[test]
fn the_counted_subject_is_in_the_extensions_if_exposed() {
    for (http, expected) in [(http(), None), (http().expose_subject(), Some("198.51.100.7"))] {
        let (decision, context) = decide(&http, &request());
        let mut values = Values::new();
        let mut extensions = FakeExtensions(&mut values);
        let _ = http.apply(decision, &context, &mut extensions);
        let subject = extensions.get::<CountedSubject>();
        assert_eq!(
            subject.cloned(),
            expected.map(|ip| CountedSubject(Subject::new(crate::model::Realm::Ip, ip)))
        );
    }
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
    assert!(capture.lines()[0].contains("request without a known key"), "{:?}", capture.lines());
}
