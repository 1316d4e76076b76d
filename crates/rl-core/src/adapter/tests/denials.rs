//! The form of denials.

use super::{decide, http, limiter, rejected, request};
use crate::adapter::{Denied, HttpLimiter};
use crate::decision::{Decision, Origin, RetryAfter};
use crate::denial::{Denial, DenialBody, DenialReason};
use crate::headers::Headers;
use crate::key::fake_request::FakeRequest;
use crate::model::{Cost, FailureKind, Limit, Subject};

#[test]
fn a_denial_has_the_form_that_is_set() {
    let http = HttpLimiter::new(limiter(Limit::per_hour(0)));
    let (denied, context) = decide(&http, &request());
    let denial = http.denial(&denied, &context);
    assert_eq!((denial.status, denial.content_type), (429, Some("application/json")));
    assert!(denial.body.contains("Blocked: no requests are allowed."), "{}", denial.body);

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
    let denial = rejected(&own.key(crate::key::Identified), &FakeRequest::get("/"));
    assert_eq!((denial.status, &*denial.body), (403, r#"{"error":"who are you?"}"#));
}

/// A gRPC client can read only a gRPC response. For a response in another form, it would report a
/// stream that ended too early.
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
    assert_eq!(as_set.denial().body, "Blocked: no requests are allowed.");
    let count = |denied: &Denied| denied.clone().into_parts().2.iter().count();
    assert_eq!(count(&as_set), 0);
    let default = Denied::check(denied, &subject).unwrap_err();
    assert_eq!((default.denial().content_type, count(&default)), (Some("application/json"), 2));
    let (allowed, _) = decide(&http(), &request());
    assert!(Denied::check(allowed, &subject).is_ok());
}
