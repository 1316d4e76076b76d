use crate::decision::{Decision, Origin, RetryAfter};
use crate::denial::{Denial, DenialBody, DenialReason};
use crate::gate::{Admission, Caller, Denied, Gate, MissingKey};
use crate::headers::{HeaderFamily, Headers};
use crate::key::fake_request::FakeRequest;
use crate::key::{
    AmbiguousKey, ClientAddress, Constant, Header, Identified, KeyExtractor, RequestInfo,
};
use crate::limiter::RateLimiter;
use crate::model::{Cost, FailureKind, Limit, Outcome, Realm, Subject};
use crate::policy::Policy;

fn limiter(limit: Limit) -> RateLimiter {
    RateLimiter::builder().limit(limit).build().unwrap()
}

/// Counts the address of the peer, ten times per hour.
fn gate() -> Gate {
    Gate::new(limiter(Limit::per_hour(10)))
}

fn request() -> FakeRequest {
    FakeRequest::get("/").peer("198.51.100.7")
}

fn preflight() -> FakeRequest {
    let options = request().method("OPTIONS").header("origin", b"https://example.org");
    options.header("access-control-request-method", b"PUT")
}

fn is_exempt<K: KeyExtractor>(gate: &Gate<K>, request: &FakeRequest) -> bool {
    matches!(gate.admit(request), Admission::Exempt)
}

/// What is asked about a request that is counted.
async fn asked<K: KeyExtractor>(gate: &Gate<K>, request: &FakeRequest) -> (Decision, Caller) {
    match gate.admit(request) {
        Admission::Asked { decision, caller } => (decision.await, caller),
        other => panic!("{other:?}"),
    }
}

/// The denial of a request that is turned away without being counted.
fn turned_away<K: KeyExtractor>(gate: &Gate<K>, request: &FakeRequest) -> Denial {
    match gate.admit(request) {
        Admission::TurnedAway(denial) => denial,
        other => panic!("{other:?}"),
    }
}

async fn used(gate: &Gate, subject: Subject) -> u64 {
    gate.limiter().usage(&subject).await.unwrap().limits().next().unwrap().used()
}

#[tokio::test]
async fn preflights_are_counted_unless_exempt() {
    let gate = gate();
    assert!(!is_exempt(&gate, &preflight()));
    assert_eq!(used(&gate, Subject::ip("198.51.100.7")).await, 1);
    let gate = gate.exempt_preflights(true);
    assert!(is_exempt(&gate, &preflight()));
    assert_eq!(used(&gate, Subject::ip("198.51.100.7")).await, 1);
    assert!(!is_exempt(&gate, &request().method("OPTIONS")));
}

#[tokio::test]
async fn predicates_add_to_what_is_exempt() {
    let gate = gate()
        .exempt(|request| request.path() == "/health")
        .exempt(|request| request.only_header("x-probe") == Ok(Some(b"yes")))
        .exempt_preflights(true);
    let probe = request().header("x-probe", b"yes");
    assert!(!is_exempt(&gate, &request().header("x-probe", b"yes").header("x-probe", b"yes")));
    for exempt in [FakeRequest::get("/health"), probe, preflight()] {
        assert!(is_exempt(&gate, &exempt));
    }
    asked(&gate, &request()).await;
    assert_eq!(used(&gate, Subject::ip("198.51.100.7")).await, 2);
}

/// A gate is a cheap handle: what is set on one is not set on those it was cloned from.
#[test]
fn settings_do_not_reach_other_clones() {
    let gate = gate();
    let changed = gate.clone().exempt(|_| true).missing_key(MissingKey::Allow);
    assert!(is_exempt(&changed, &request()));
    assert!(!is_exempt(&gate, &request()));
    assert_eq!(turned_away(&gate, &FakeRequest::get("/")).status, 403);
}

#[tokio::test]
async fn the_peer_is_counted_unless_another_key_is_set() {
    let gate = gate();
    let (decision, caller) = asked(&gate, &request()).await;
    assert_eq!((decision.is_allowed(), caller.realm()), (true, &Realm::Ip));
    assert_eq!(used(&gate, Subject::ip("198.51.100.7")).await, 1);

    let by_consumer = gate.key(Identified);
    let alice = request().extension_value(Subject::consumer("alice"));
    let (decision, caller) = asked(&by_consumer, &alice).await;
    assert_eq!((decision.is_allowed(), caller.realm()), (true, &Realm::Consumer));
}

#[tokio::test]
async fn a_request_without_a_key_is_met_as_it_is_set() {
    let nobody = FakeRequest::get("/");
    let denial = turned_away(&gate(), &nobody);
    assert_eq!((denial.status, denial.content_type), (403, Some("application/json")));
    let denial = turned_away(&gate().denial_body(DenialBody::text()), &nobody);
    assert_eq!(denial.content_type, Some("text/plain; charset=utf-8"));
    let grpc = FakeRequest::get("/").method("POST").header("content-type", b"application/grpc");
    let denial = turned_away(&gate(), &grpc);
    assert_eq!((denial.status, denial.content_type), (200, Some("application/grpc")));

    assert!(is_exempt(&gate().missing_key(MissingKey::Allow), &nobody));

    let shared = gate().missing_key(MissingKey::Share);
    for count in 1..=2 {
        let (decision, caller) = asked(&shared, &nobody).await;
        assert_eq!(decision.limits().next().unwrap().used(), count);
        assert_eq!(caller.realm(), &Realm::Unknown);
    }
    asked(&shared, &request()).await;
    assert_eq!(used(&shared, Subject::ip("198.51.100.7")).await, 1);
}

#[tokio::test]
async fn an_ambiguous_key_is_rejected_under_every_setting() {
    let twice = || request().header("x-id", b"a").header("x-id", b"a");
    let by_id = || Header::new("x-id", Realm::Consumer).unwrap();
    for missing_key in [MissingKey::Reject, MissingKey::Allow, MissingKey::Share] {
        let gate = gate().missing_key(missing_key).key(by_id().or(ClientAddress::default()));
        let denial = turned_away(&gate, &twice());
        assert_eq!((denial.status, denial.content_type), (400, Some("application/json")));
        for subject in [Subject::consumer("a"), Subject::ip("198.51.100.7")] {
            let usage = gate.limiter().usage(&subject).await.unwrap();
            assert_eq!(usage.limits().next().unwrap().used(), 0);
        }
    }
    let gate = gate().key(by_id());
    let grpc = twice().method("POST").header("content-type", b"application/grpc");
    let denial = turned_away(&gate, &grpc);
    assert_eq!((denial.status, denial.content_type), (200, Some("application/grpc")));
    assert!(is_exempt(&gate.exempt(|_| true), &twice()));
}

#[cfg(feature = "tracing")]
#[test]
fn an_ambiguous_key_is_logged_once_and_passes_in_shadow() {
    use crate::observe::capture::Capture;

    let capture = Capture::start();
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).shadow(true).build().unwrap();
    let gate = Gate::new(limiter).key(|_: &dyn RequestInfo| Err(AmbiguousKey));
    for _ in 0..3 {
        assert!(is_exempt(&gate, &request()));
    }
    let lines = capture.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("WARN request with an ambiguous key rejected"), "{lines:?}");
}

#[cfg(feature = "tracing")]
#[test]
fn that_requests_have_no_key_is_logged_once() {
    use crate::observe::capture::Capture;

    let capture = Capture::start();
    let gate = gate();
    for _ in 0..3 {
        turned_away(&gate, &FakeRequest::get("/"));
        turned_away(&gate.clone(), &FakeRequest::get("/"));
    }
    let lines = capture.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("WARN a request does not say who is counted"), "{lines:?}");
}

#[tokio::test]
async fn grpc_callers_are_told_by_their_content_type() {
    for (content_type, is_grpc) in [
        (&b"application/grpc"[..], true),
        (b"application/grpc+proto", true),
        (b"application/grpc-web", false),
        (b"application/json", false),
        (b"\xff", false),
    ] {
        let request = request().method("POST").header("content-type", content_type);
        let (_, caller) = asked(&gate(), &request).await;
        assert_eq!(caller.is_grpc(), is_grpc, "{}", content_type.escape_ascii());
    }
    for request in [request(), request().header("content-type", b"application/grpc")] {
        // Calls of gRPC are all POST.
        assert!(!asked(&gate(), &request).await.1.is_grpc());
    }
}

/// Returns the decision in the request's extensions after `gate`, inside of `outer`.
async fn carried<K: KeyExtractor>(
    gate: &Gate<K>,
    request: &FakeRequest,
    outer: Option<Decision>,
) -> Decision {
    let (decision, caller) = asked(gate, request).await;
    assert_eq!(caller.is_nested(), outer.is_some());
    caller.mark(decision, outer)
}

#[tokio::test]
async fn a_request_is_charged_once_for_each_limiter_and_subject() {
    let (outer, inner) = (gate(), Gate::new(limiter(Limit::per_minute(10))));
    let decision = carried(&outer, &request(), None).await;
    let passed = request().extension_value(decision.clone());
    assert!(is_exempt(&outer, &passed));
    // Another gate of the same limiter is the same limiter.
    assert!(is_exempt(&Gate::new(outer.limiter().clone()), &passed));

    let nested = carried(&inner, &passed, Some(decision)).await;
    let both = request().extension_value(nested);
    assert!(is_exempt(&outer, &both) && is_exempt(&inner, &both));
    assert!(!is_exempt(&gate(), &both));
    assert_eq!(used(&outer, Subject::ip("198.51.100.7")).await, 1);
    assert_eq!(used(&inner, Subject::ip("198.51.100.7")).await, 1);
}

/// The fault: the inner of two gates with one limiter charged nothing, even under another subject.
#[tokio::test]
async fn a_request_is_charged_again_under_another_subject() {
    let outer = gate();
    let inner = Gate::new(outer.limiter().clone()).key(Constant);
    let by_address = carried(&outer, &request(), None).await;
    let passed = request().extension_value(by_address.clone());
    let by_all = carried(&inner, &passed, Some(by_address)).await;
    assert_eq!(used(&outer, Subject::global()).await, 1);
    let both = request().extension_value(by_all);
    assert!(is_exempt(&outer, &both) && is_exempt(&inner, &both));
    // A decision that no gate has marked says nothing about a subject.
    let by_hand = outer.limiter().check(&Subject::global(), 1).await;
    assert!(!is_exempt(&inner, &request().extension_value(by_hand)));
}

/// A decision that no store made marks the request as well.
#[tokio::test]
async fn a_limiter_that_is_switched_off_is_asked_once() {
    let off = RateLimiter::builder().limit(Limit::per_hour(1)).enabled(false).build().unwrap();
    let gate = Gate::new(off);
    let decision = carried(&gate, &request(), None).await;
    assert_eq!(decision.origin(), Origin::Disabled);
    assert!(is_exempt(&gate, &request().extension_value(decision)));
}

fn decision(limit: Limit, outcome: Outcome) -> Decision {
    let policy = Policy::new([limit]).unwrap();
    Decision::decided(policy, Cost::ONE, 1, Default::default(), [outcome])
}

/// The lines that a gate adds for `outer`, around a limiter that decided `inner`, and what it leaves
/// for limiters further out.
fn written(outer: &Decision, inner: Option<&Decision>) -> (Vec<String>, Decision) {
    let gate = gate().headers(Headers::new(HeaderFamily::OpenBank).and(HeaderFamily::Ietf));
    let mut lines = Vec::new();
    let mut left = outer.clone();
    let is_left = gate.response_rules().write_headers(&mut left, inner.cloned(), &mut |line| {
        lines.push(format!("{}: {}", line.name, line.value));
    });
    assert!(is_left, "outer layers are told unless that is switched off");
    (lines, left)
}

#[test]
fn a_decision_that_is_not_left_in_the_response_reaches_the_limiter_around() {
    let (outer, inner) = (decision(Limit::per_hour(100), Outcome::granted(1, 1)), || {
        decision(Limit::per_minute(10), Outcome::granted(8, 1))
    });
    let quiet = gate().decision_in_response(false);
    let is_left = |gate: &Gate, mut decision| {
        let is_left = gate.response_rules().write_headers(&mut decision, None, &mut |_| {});
        assert!(decision.outer().is_none(), "further out it is one more around nothing");
        is_left
    };
    assert!(!is_left(&quiet, inner()));
    assert!(is_left(&quiet, inner().nested_in(1, Some(outer))));
    assert!(is_left(&gate(), inner()));
}

#[test]
fn of_nested_limiters_the_stricter_writes_the_single_fields() {
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

    let (lines, left) = written(&lenient, None);
    assert_eq!(lines, [single(100, 99, 3600).as_slice(), &of_lenient].concat());
    assert_eq!(left.policy(), lenient.policy());

    let (lines, left) = written(&strict, Some(&lenient));
    assert_eq!(lines, [single(10, 2, 60).as_slice(), &of_strict].concat());
    assert_eq!(left.policy(), strict.policy());

    let (lines, left) = written(&lenient, Some(&strict));
    assert_eq!(lines, of_lenient);
    assert_eq!(left.policy(), strict.policy());

    // Of equals the inner one stays.
    let (lines, left) = written(&strict, Some(&strict));
    assert_eq!(lines, of_strict);
    assert_eq!(left.policy(), strict.policy());
}

#[test]
fn the_wait_of_an_inner_denial_stays() {
    let strict = decision(Limit::per_minute(10), Outcome::granted(10, 60_000_000));
    let denied = decision(Limit::per_hour(9), Outcome::denied(9, 5_000_000, 5_000_000));
    let (lines, left) = written(&strict, Some(&denied));
    assert!(!lines.iter().any(|line| line.starts_with("retry-after")), "{lines:?}");
    assert!(!left.is_allowed());
    let (lines, _) = written(&denied, None);
    assert_eq!(lines.last().unwrap(), "retry-after: 5");
}

#[test]
fn a_decision_that_no_store_made_writes_nothing_and_replaces_nothing() {
    let known = decision(Limit::per_minute(10), Outcome::granted(1, 60_000_000));
    let off = Decision::undecided(Cost::ONE, Origin::Disabled);
    let (lines, left) = written(&off, Some(&known));
    assert_eq!((lines, left.origin()), (vec![], Origin::Store));
    let (lines, left) = written(&known, Some(&off));
    assert_eq!((lines.len(), left.origin()), (5, Origin::Store));
}

#[tokio::test]
async fn a_denial_is_in_the_form_that_is_set() {
    let gate = Gate::new(limiter(Limit::per_hour(0)));
    let (denied, caller) = asked(&gate, &request()).await;
    let denial = gate.denial(&denied, &caller);
    assert_eq!((denial.status, denial.content_type), (429, Some("application/json")));
    assert!(denial.body.contains("Anonymous access is blocked."), "{}", denial.body);

    let problem = gate.clone().denial_body(DenialBody::problem());
    assert_eq!(problem.denial(&denied, &caller).content_type, Some("application/problem+json"));

    let own = problem.deny_with(|reason, default| {
        let (decision, subject) = (reason.decision().unwrap(), reason.subject().unwrap());
        let body = format!("{} {:?}", subject.realm().as_str(), decision.retry_after());
        Denial::text(default.status - 9, body)
    });
    let denial = own.denial(&denied, &caller);
    assert_eq!((denial.status, &*denial.body), (420, "ip Never"));
    assert_eq!(denied.retry_after(), RetryAfter::Never);
}

#[tokio::test]
async fn a_responder_answers_requests_without_a_key_too() {
    let own = gate().deny_with(|reason, default| match reason {
        DenialReason::MissingKey => Denial::json(default.status, r#"{"error":"who are you?"}"#),
        _ => default,
    });
    let denial = turned_away(&own, &FakeRequest::get("/"));
    assert_eq!((denial.status, &*denial.body), (403, r#"{"error":"who are you?"}"#));
}

/// A gRPC client cannot read another form: to it the stream would end too early.
#[tokio::test]
async fn a_responder_cannot_replace_a_grpc_denial_by_another_form() {
    let gate = Gate::new(limiter(Limit::per_hour(0)));
    let call = request().method("POST").header("content-type", b"application/grpc");
    let (denied, caller) = asked(&gate, &call).await;

    let html = gate.clone().deny_with(|_, _| Denial::text(429, "slow down"));
    assert_eq!(html.denial(&denied, &caller), gate.denial(&denied, &caller));

    let more = gate.clone().deny_with(|_, default| default.header("x-docs", "/limits"));
    let denial = more.denial(&denied, &caller);
    assert_eq!((denial.status, denial.is_grpc()), (200, true));
    assert!(denial.headers.contains(&("x-docs", "/limits".into())), "{denial:?}");
}

#[tokio::test]
async fn a_responder_that_keeps_the_default_status_keeps_503() {
    let down = Decision::undecided(Cost::ONE, Origin::FailedClosed(FailureKind::Unavailable));
    let gate = gate().deny_with(|_, default| Denial::json(default.status, "{}"));
    let (_, caller) = asked(&gate, &request()).await;
    assert_eq!(gate.denial(&down, &caller).status, 503);
}

#[tokio::test]
async fn a_decision_of_a_handler_is_denied_in_the_form_of_the_gate() {
    let (denied, _) = asked(&Gate::new(limiter(Limit::per_hour(0))), &request()).await;
    let subject = Subject::ip("198.51.100.7");
    let plain = gate().denial_body(DenialBody::text()).headers(Headers::none());
    let of_gate = plain.denied(denied.clone(), &subject);
    assert_eq!(of_gate.denial().body, "Too Many Requests. Anonymous access is blocked.");
    let count = |denied: &Denied| {
        let mut lines = 0;
        denied.write_headers(&mut |_| lines += 1);
        lines
    };
    assert_eq!(count(&of_gate), 0);
    let default = Denied::unless_allowed(denied, &subject).unwrap_err();
    assert_eq!((default.denial().content_type, count(&default)), (Some("application/json"), 2));
    let (allowed, _) = asked(&gate(), &request()).await;
    assert!(Denied::unless_allowed(allowed, &subject).is_ok());
}

/// Settings may hold what clients must not see; a key extractor may hold a secret.
#[test]
fn debug_shows_settings_and_no_key() {
    let shown = format!("{:?}", gate().key(|_: &dyn RequestInfo| None));
    assert!(shown.starts_with("Gate { limiter: RateLimiter"), "{shown}");
    assert!(shown.contains("missing_key: Reject"), "{shown}");
}

/// A trial turns nobody away, and says whom it would have.
#[cfg(feature = "tracing")]
#[tokio::test]
async fn a_request_without_a_key_passes_a_limiter_in_shadow_and_is_logged() {
    use crate::observe::capture::Capture;

    let capture = Capture::start();
    let limiter = RateLimiter::builder().limit(Limit::per_hour(1)).shadow(true).build().unwrap();
    let gate = Gate::new(limiter).key(Identified);
    assert!(is_exempt(&gate, &request()));
    assert!(capture.lines()[0].contains("does not say who is counted"), "{:?}", capture.lines());
}
