use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde_json::{Value, json};

use super::*;
use crate::decision::{Decision, GoverningLimit, Origin, PartFlags, RuleLabel};
use crate::model::{Cost, FailureKind, Limit, Outcome, Subject};
use crate::policy::Policy;
use crate::time::Timestamp;

const SECOND: u64 = 1_000_000;

fn decide(limits: &[(&str, Outcome)]) -> Decision {
    let policy = Policy::new(limits.iter().map(|(limit, _)| limit.parse::<Limit>().unwrap()));
    let outcomes = limits.iter().map(|(_, outcome)| *outcome);
    Decision::decided(policy.unwrap(), Cost::ONE, 0, Timestamp::EPOCH, outcomes)
}

fn denied(seconds: u64) -> Outcome {
    Outcome::denied(9, seconds * SECOND, seconds * SECOND)
}

fn minute_full() -> Decision {
    decide(&[("100/minute", denied(42))])
}

fn undecided() -> Decision {
    Decision::undecided(Cost::ONE, Origin::FailedClosed(FailureKind::Unavailable))
}

/// Returns the denial of a request of `subject` that `decision` denies.
fn deny_to(body: &DenialBody, decision: &Decision, subject: &Subject) -> Denial {
    body.denial(
        DenialReason::Decision { decision, subject, rule: None },
        GoverningLimit::default(),
        Protocol::Http,
    )
}

fn deny(body: &DenialBody, decision: &Decision) -> Denial {
    deny_to(body, decision, &Subject::consumer("abc123"))
}

fn deny_grpc(body: &DenialBody, decision: &Decision) -> Denial {
    let subject = &Subject::consumer("abc123");
    body.denial(
        DenialReason::Decision { decision, subject, rule: None },
        GoverningLimit::default(),
        Protocol::Grpc,
    )
}

fn without_decision(body: &DenialBody, reason: DenialReason<'_>) -> Denial {
    body.denial(reason, GoverningLimit::default(), Protocol::Http)
}

/// Returns the decision on a request of `cost` that `limits` can never grant.
fn by_policy(limits: &[&str], cost: u64) -> Decision {
    let policy = Policy::new(limits.iter().map(|limit| limit.parse::<Limit>().unwrap())).unwrap();
    Decision::never_granted(&policy, Cost::new(cost), cost, Timestamp::EPOCH)
}

fn blocked_for(seconds: u64) -> Decision {
    let until = Timestamp::from_secs(1_000 + seconds);
    let policy = Policy::new([Limit::per_second(5), Limit::per_day(50)]).unwrap();
    let policy = policy.blocked_until(until);
    Decision::blocked(policy.block().unwrap(), Cost::ONE, Timestamp::from_secs(1_000))
}

fn header<'a>(denial: &'a Denial, name: &str) -> Option<&'a str> {
    let mut values = denial.headers.iter().filter(|(known, _)| *known == name);
    let value = values.next().map(|(_, value)| &**value);
    assert!(values.next().is_none(), "{name} is there once");
    value
}

#[test]
fn open_bank_names_the_limit_of_consumers_and_of_anonymous_callers() {
    let body = DenialBody::open_bank();
    let hour = decide(&[("1000/hour", denied(42))]);
    let said = |decision: &Decision, subject: &Subject| deny_to(&body, decision, subject).body;
    let consumer = &Subject::consumer("abc123");
    assert_eq!(
        said(&minute_full(), consumer),
        r#"{"code":429,"message":"Too Many Requests. We only allow 100 requests per minute for this Consumer."}"#
    );
    assert_eq!(
        said(&hour, &Subject::ip([192, 0, 2, 7])),
        r#"{"code":429,"message":"Too Many Requests. We only allow 1000 requests per hour for anonymous access."}"#
    );
    assert_eq!(
        said(&decide(&[("10/15minutes", denied(1))]), &Subject::user("alice")),
        r#"{"code":429,"message":"Too Many Requests. We only allow 10 requests per 15 minutes for this Consumer."}"#
    );
    assert_eq!(
        said(&decide(&[("20:concurrency", denied(1))]), consumer),
        r#"{"code":429,"message":"Too Many Requests. We only allow 20 requests at the same time for this Consumer."}"#
    );
    let prefixed = body.clone().prefix("OBP-10018: ");
    assert_eq!(
        deny(&prefixed, &minute_full()).body,
        r#"{"code":429,"message":"OBP-10018: Too Many Requests. We only allow 100 requests per minute for this Consumer."}"#
    );
    let denial = deny(&body, &minute_full());
    assert_eq!((denial.status, denial.content_type), (429, Some("application/json")));
    assert_eq!(header(&denial, "cache-control"), Some("no-store"));
    assert_eq!(header(&deny(&body.without_no_store(), &minute_full()), "cache-control"), None);
}

#[test]
fn the_default_form_says_what_is_allowed_and_when_to_retry() {
    let said = |limit, wait| deny(&DenialBody::default(), &decide(&[(limit, wait)])).body;
    assert_eq!(
        said("5/10seconds", denied(4)),
        r#"{"code":429,"message":"Too many requests: 5 per 10 seconds. Try again in 4 seconds.","limit":"10seconds"}"#
    );
    let denial = deny(&DenialBody::default(), &minute_full());
    assert_eq!((denial.status, denial.content_type), (429, Some("application/json")));
    assert_eq!(
        deny(&DenialBody::default(), &undecided()).body,
        r#"{"code":503,"message":"The rate limiter cannot decide at the moment. Try again in 1 second."}"#
    );
}

#[test]
fn neutral_words_fit_every_limit_and_every_caller() {
    let callers = [Subject::consumer("abc123"), Subject::ip([192, 0, 2, 7]), Subject::global()];
    let said = |decision: &Decision| {
        let [words, others @ ..] = callers.each_ref().map(|subject| {
            let denial = deny_to(&DenialBody::text(), decision, subject);
            denial.body.into_owned()
        });
        assert!(others.iter().all(|other| *other == words), "{others:?}");
        words
    };
    let over = |limit| said(&decide(&[(limit, denied(1))]));
    assert_eq!(over("1/minute"), "Too many requests: 1 per minute. Try again in 1 second.");
    assert_eq!(
        over("10000/minute:unit=tokens"),
        "Too many requests: 10000 tokens per minute. Try again in 1 second."
    );
    assert_eq!(
        over("1/2weeks:unit=tokens"),
        "Too many requests: 1 token per 2 weeks. Try again in 1 second."
    );
    assert_eq!(
        over("5:concurrency"),
        "Too many requests: at most 5 at the same time. Try again in 1 second."
    );
    let costly = |limit, cost| said(&by_policy(&[limit], cost));
    assert_eq!(
        costly("1/minute", 20),
        "Request too large: it counts as 20 requests, but at most 1 is ever allowed at once."
    );
    assert_eq!(costly("0/hour", 1), "Blocked: no requests are allowed.");
    assert_eq!(
        said(&blocked_for(60)),
        "Blocked: no requests are allowed. Try again in 60 seconds."
    );
}

#[test]
fn units_have_a_singular() {
    for (unit, one) in [
        ("requests", "request"),
        ("bytes", "byte"),
        ("access", "access"),
        ("status", "status"),
        ("bonus", "bonus"),
        ("queries", "queries"),
        ("boxes", "boxes"),
        ("data", "data"),
    ] {
        let limit = Limit::per_minute(1).with_unit(unit).unwrap();
        let mut quota = String::new();
        words::push_quota(&mut quota, limit);
        assert_eq!(quota, format!("1 {one} per minute"));
    }
}

/// Fault: a denial asked the client to wait for the rest of a lease, though a place was free after
/// some milliseconds.
#[test]
fn the_wait_under_a_concurrency_limit_is_a_hint() {
    for (limit, millis, words) in [
        ("5:concurrency", 9_000, "1 second."),
        ("5:concurrency:retry=3s", 9_000, "3 seconds."),
        ("5:concurrency:retry=3s", 1_500, "2 seconds."),
    ] {
        let wait = millis * SECOND / 1_000;
        let decision = decide(&[(limit, Outcome::denied(5, wait, wait))]);
        let text = deny(&DenialBody::text(), &decision).body;
        assert!(text.ends_with(&format!("Try again in {words}")), "{text}");
        let hint: u64 = if limit.contains("retry") { 3_000 } else { 1_000 };
        let pushback = hint.min(millis).to_string();
        let grpc = deny_grpc(&DenialBody::text(), &decision);
        assert_eq!(header(&grpc, "grpc-retry-pushback-ms"), Some(&*pushback));
    }
}

#[test]
fn the_message_of_the_open_bank_project_names_the_governing_limit() {
    let decision = decide(&[
        ("10/second", Outcome::denied(10, SECOND, SECOND)),
        ("100/minute", Outcome::granted(90, SECOND)),
        ("1000/hour", Outcome::denied(1_000, 900 * SECOND, 900 * SECOND)),
    ]);
    for (follow, words) in [
        (GoverningLimit::ShortestActive, "per second"),
        (GoverningLimit::FewestRemaining, "per hour"),
    ] {
        let subject = &Subject::user("alice");
        let reason = DenialReason::Decision { decision: &decision, subject, rule: None };
        let denial = DenialBody::open_bank().denial(reason, follow, Protocol::Http);
        assert!(denial.body.contains(words), "{follow:?}: {}", denial.body);
    }
}

/// Fault: a message named the shortest limit beside the wait of the longest one: "10 per second.
/// Try again in 900 seconds."
#[test]
fn a_message_with_a_wait_names_the_limit_that_is_waited_for() {
    let decision = decide(&[
        ("10/second", denied(1)),
        ("100/minute", denied(42)),
        ("20:concurrency", denied(3_000)),
    ]);
    for governing in [GoverningLimit::ShortestActive, GoverningLimit::FewestRemaining] {
        let subject = &Subject::user("alice");
        let reason = DenialReason::Decision { decision: &decision, subject, rule: None };
        let denial = DenialBody::json().denial(reason, governing, Protocol::Http);
        assert_eq!(
            denial.body,
            r#"{"code":429,"message":"Too many requests: 100 per minute. Try again in 42 seconds.","limit":"minute"}"#
        );
    }
}

#[test]
fn a_message_names_no_limit_if_an_undisclosed_one_is_waited_for() {
    let parts = || [decide(&[("10/second", denied(1))]), decide(&[("1000/hour", denied(900))])];
    let mut flags = PartFlags::default();
    flags.add(1, PartFlags::UNDISCLOSED);
    let hidden = Decision::of_parts(flags, parts().into_iter().collect());
    assert_eq!(
        deny(&DenialBody::json(), &hidden).body,
        r#"{"code":429,"message":"Too many requests at the moment. Try again in 900 seconds."}"#
    );
    let problem: Value = serde_json::from_str(&deny(&DenialBody::problem(), &hidden).body).unwrap();
    assert_eq!(problem["violated-policies"], json!(["second"]));

    let known = Decision::of_parts(PartFlags::default(), parts().into_iter().collect());
    let body = deny(&DenialBody::json(), &known).body;
    assert!(body.contains("1000 per hour. Try again in 900 seconds."), "{body}");
}

#[test]
fn problem_details_list_every_limit_that_denies() {
    let decision = decide(&[
        ("10/second", denied(1)),
        ("100/minute", Outcome::granted(90, SECOND)),
        ("1000/hour", denied(900)),
    ]);
    let denial = deny(&DenialBody::problem(), &decision);
    assert_eq!((denial.status, denial.content_type), (429, Some("application/problem+json")));
    assert_eq!(
        denial.body,
        concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
            r#""title":"Request cannot be satisfied as assigned quota has been exceeded","#,
            r#""status":429,"detail":"Too many requests: 1000 per hour. Try again in 900 seconds.","#,
            r#""violated-policies":["second","hour"]}"#
        )
    );
}

#[test]
fn problem_types_can_be_yours_or_none() {
    let details = |base: Option<&'static str>, decision: Option<&Decision>| -> Value {
        let body = base.into_iter().fold(DenialBody::problem(), DenialBody::problem_types);
        let denial = decision.map_or_else(
            || without_decision(&body, DenialReason::MissingKey),
            |it| deny(&body, it),
        );
        serde_json::from_str(&denial.body).unwrap()
    };
    let (over, undecided) = (&minute_full(), &undecided());
    let blank = Some("about:blank");
    assert_eq!(
        details(blank, Some(over)),
        json!({"type": "about:blank", "title": "Too Many Requests", "status": 429,
            "detail": "Too many requests: 100 per minute. Try again in 42 seconds.",
            "violated-policies": ["minute"]})
    );
    assert_eq!(
        details(blank, Some(undecided)),
        json!({"type": "about:blank", "title": "Service Unavailable", "status": 503,
            "detail": "The rate limiter cannot decide at the moment. Try again in 1 second."})
    );
    assert_eq!(
        details(None, None),
        json!({"type": "about:blank", "title": "Forbidden", "status": 403})
    );
    assert_eq!(
        details(None, Some(undecided))["type"],
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    );
    let ours = Some("https://example.org/\"problems\"/");
    assert_eq!(
        details(ours, Some(over))["type"],
        "https://example.org/\"problems\"/quota-exceeded"
    );
    assert_eq!(details(ours, None)["type"], "https://example.org/\"problems\"/missing-key");
}

#[test]
#[rustfmt::skip]
fn every_form_answers_every_reason() {
    let plain = Some("text/plain; charset=utf-8");
    let json = Some("application/json");
    let cases = [
        // form                  | reason               | status | type | body
        (DenialBody::open_bank(),  Some(undecided()),     503, json,
            r#"{"code":503,"message":"Service Unavailable. The rate limiter cannot decide at the moment."}"#),
        (DenialBody::open_bank(),  None,                  403, json,
            r#"{"code":403,"message":"Forbidden. The request has no rate limit key that the service knows."}"#),
        (DenialBody::text(),       Some(minute_full()),   429, plain,
            "Too many requests: 100 per minute. Try again in 42 seconds."),
        (DenialBody::text(),       Some(undecided()),     503, plain,
            "The rate limiter cannot decide at the moment. Try again in 1 second."),
        (DenialBody::text(),       None,                  403, plain,
            "Forbidden. The request has no rate limit key that the service knows."),
        (DenialBody::empty(),      Some(minute_full()),   429, None,  ""),
        (DenialBody::empty(),      Some(undecided()),     503, None,  ""),
        (DenialBody::empty(),      None,                  403, None,  ""),
    ];
    for (form, decision, status, content_type, body) in cases {
        let denial = decision.map_or_else(|| without_decision(&form, DenialReason::MissingKey), |it| deny(&form, &it));
        assert_eq!((denial.status, denial.content_type, &*denial.body), (status, content_type, body));
    }
}

#[test]
fn an_ambiguous_key_is_a_bad_request_in_every_form() {
    const WORDS: &str = "Bad Request. The credential is given more than once, or cannot be read in \
                         one way only.";

    let body = |form: DenialBody| {
        let denial = without_decision(&form, DenialReason::AmbiguousKey);
        assert_eq!((denial.status, header(&denial, "cache-control")), (400, Some("no-store")));
        denial.body.into_owned()
    };
    assert_eq!(body(DenialBody::text()), WORDS);
    assert_eq!(body(DenialBody::empty()), "");
    let json = |form| serde_json::from_str::<Value>(&body(form)).unwrap();
    assert_eq!(json(DenialBody::open_bank()), json!({"code": 400, "message": WORDS}));
    assert_eq!(
        json(DenialBody::problem()),
        json!({"type": "about:blank", "title": "Bad Request", "status": 400})
    );
    let ours = DenialBody::problem().problem_types("https://example.org/");
    assert_eq!(json(ours)["type"], "https://example.org/ambiguous-key");
}

#[test]
fn too_many_rules_are_an_error_of_the_service_that_names_none_of_them() {
    let body = |form: DenialBody| {
        let denial = without_decision(&form, DenialReason::TooManyRules);
        assert_eq!(denial.status, 503);
        denial.body.into_owned()
    };
    let words = "More rate limits match the request than can be applied.";
    assert_eq!(body(DenialBody::text()), words);
    let json = serde_json::from_str::<Value>(&body(DenialBody::open_bank())).unwrap();
    assert_eq!(json, json!({"code": 503, "message": format!("Service Unavailable. {words}")}));
    let ours = DenialBody::problem().problem_types("https://example.org/");
    let json = serde_json::from_str::<Value>(&body(ours)).unwrap();
    assert_eq!(json["type"], "https://example.org/too-many-rules");
}

#[test]
fn an_unknown_address_is_an_error_of_the_server_in_every_form() {
    let body = |form: DenialBody| {
        let denial = without_decision(&form, DenialReason::UnknownAddress);
        assert_eq!((denial.status, header(&denial, "cache-control")), (500, Some("no-store")));
        denial.body.into_owned()
    };
    let words = "The service does not know the address of its client.";
    assert_eq!(body(DenialBody::text()), words);
    let ours = DenialBody::problem().problem_types("https://example.org/");
    let json = serde_json::from_str::<Value>(&body(ours)).unwrap();
    assert_eq!(json["type"], "https://example.org/unknown-address");
    let grpc = DenialBody::text().denial(
        DenialReason::UnknownAddress,
        GoverningLimit::default(),
        Protocol::Grpc,
    );
    assert_eq!(header(&grpc, "grpc-status"), Some("13"));
}

#[test]
fn grpc_clients_are_answered_in_headers() {
    let body = DenialBody::open_bank().prefix("100 % of über\n");
    let denial = deny_grpc(&body, &minute_full());
    assert_eq!(denial.status, 200);
    assert_eq!(denial.content_type, Some("application/grpc"));
    assert_eq!(denial.body, "");
    assert_eq!(header(&denial, "grpc-status"), Some("8"));
    assert_eq!(
        header(&denial, "grpc-message"),
        Some(concat!(
            "100 %25 of %C3%BCber%0AToo Many Requests. ",
            "We only allow 100 requests per minute for this Consumer."
        ))
    );
    assert_eq!(header(&denial, "grpc-retry-pushback-ms"), Some("42000"));

    let denial = deny_grpc(&DenialBody::problem(), &undecided());
    assert_eq!(header(&denial, "grpc-status"), Some("14"));
    assert_eq!(header(&denial, "grpc-retry-pushback-ms"), Some("1000"));

    let denial = DenialBody::empty().denial(
        DenialReason::AmbiguousKey,
        GoverningLimit::default(),
        Protocol::Grpc,
    );
    assert_eq!((denial.status, &*denial.body), (200, ""));
    assert_eq!(denial.headers, [("grpc-status", Cow::Borrowed("3"))]);

    let missing = DenialReason::MissingKey;
    let denial = DenialBody::empty().denial(missing, GoverningLimit::default(), Protocol::Grpc);
    assert_eq!((denial.status, &*denial.body), (200, ""));
    assert_eq!(denial.headers, [("grpc-status", Cow::Borrowed("7"))]);
}

#[test]
fn grpc_pushback_is_rounded_up_and_limited_to_31_bits() {
    let pushback = |outcome| {
        let denial = deny_grpc(&DenialBody::default(), &decide(&[("9/month", outcome)]));
        header(&denial, "grpc-retry-pushback-ms").unwrap().to_owned()
    };
    let micros = |micros| Outcome::denied(9, micros, micros);
    assert_eq!(pushback(micros(1)), "1");
    assert_eq!(pushback(micros(1_001)), "2");
    assert_eq!(pushback(micros(30 * 86_400 * SECOND)), "2147483647");
    assert_eq!(pushback(micros(u64::MAX - 1)), "2147483647");
    assert_eq!(pushback(Outcome::never(0, 0)), "-1");
}

#[test]
fn protocol_is_found_by_the_content_type() {
    for grpc in ["application/grpc", "application/grpc+proto", "Application/GRPC;x=y"] {
        assert_eq!(Protocol::from_content_type(grpc.as_bytes()), Protocol::Grpc, "{grpc}");
    }
    for other in [
        "",
        "application/grp",
        "application/grpcx",
        "application/grpc/x",
        "application/grpc-web",
        "application/GRPC-Web-text",
    ] {
        assert_eq!(Protocol::from_content_type(other.as_bytes()), Protocol::Http, "{other}");
    }
}

#[test]
fn open_bank_says_that_the_caller_is_blocked() {
    let (consumer, address) = (Subject::consumer("abc123"), Subject::ip([192, 0, 2, 7]));
    for blocked in [by_policy(&["0/hour"], 1), blocked_for(60)] {
        let said = |subject| deny_to(&DenialBody::open_bank(), &blocked, subject).body;
        assert!(said(&consumer).contains("\"Too Many Requests. This Consumer is blocked.\""));
        assert!(said(&address).contains("\"Too Many Requests. Anonymous access is blocked.\""));
    }
}

#[test]
fn open_bank_names_consumers_if_set_and_no_other_subject() {
    let body = DenialBody::open_bank().prefix("OBP-10018: ").name_consumer();
    let said = |decision: &Decision, subject: &Subject| {
        let body = deny_to(&body, decision, subject).body;
        let json: Value = serde_json::from_str(&body).unwrap();
        json["message"].as_str().unwrap().to_owned()
    };
    let consumer = Subject::consumer("abc123");
    assert_eq!(
        said(&minute_full(), &consumer),
        "OBP-10018: Too Many Requests. We only allow 100 requests per minute for this Consumer \
         (consumer_id: abc123)."
    );
    assert_eq!(
        said(&blocked_for(60), &consumer),
        "OBP-10018: Too Many Requests. This Consumer is blocked (consumer_id: abc123)."
    );
    let digest = Subject::digest(crate::model::Realm::Consumer, [7; 16]);
    for other in [Subject::user("alice"), Subject::ip([192, 0, 2, 7]), digest] {
        assert!(!said(&minute_full(), &other).contains("consumer_id"), "{other:?}");
    }
    // Other forms never contain the id of a consumer.
    for other in [DenialBody::text(), DenialBody::problem()] {
        let denial = deny(&other.name_consumer(), &blocked_for(60));
        assert!(!denial.body.contains("abc123"), "{denial:?}");
    }
}

#[test]
fn the_id_of_a_consumer_cannot_break_out_of_the_message() {
    let body = DenialBody::open_bank().name_consumer();
    let id = "a\"}\\\r\nset-cookie: b\u{202e}é\u{7f}";
    let shown = "a\"}\\\u{fffd}\u{fffd}set-cookie: b\u{fffd}é\u{fffd}";
    let denial = deny_to(&body, &minute_full(), &Subject::consumer(id));
    let json: Value = serde_json::from_str(&denial.body).unwrap();
    let message = json["message"].as_str().unwrap();
    assert!(message.ends_with(&format!("(consumer_id: {shown}).")), "{message}");

    let (decision, subject) = (&minute_full(), &Subject::consumer(id));
    let reason = DenialReason::Decision { decision, subject, rule: None };
    let denial = body.denial(reason, GoverningLimit::default(), Protocol::Grpc);
    let message = header(&denial, "grpc-message").unwrap();
    assert!(message.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{message}");
}

#[test]
fn a_denial_reports_a_cost_that_is_never_granted() {
    let decision = by_policy(&["10000/minute:unit=tokens", "5/second:requests"], 20_000);
    let words =
        "Request too large: it counts as 20000 tokens, but at most 10000 are ever allowed at once.";
    assert_eq!(deny(&DenialBody::text(), &decision).body, words);
    let problem: Value =
        serde_json::from_str(&deny(&DenialBody::problem(), &decision).body).unwrap();
    assert_eq!(
        (&problem["detail"], &problem["violated-policies"]),
        (&json!(words), &json!(["minute"]))
    );
    let grpc = deny_grpc(&DenialBody::text(), &decision);
    assert_eq!(header(&grpc, "grpc-message"), Some(words));
    assert_eq!(header(&grpc, "grpc-retry-pushback-ms"), Some("-1"));
    let open_bank = deny(&DenialBody::open_bank(), &decision).body;
    let words = "Too Many Requests. This request asks for 20000 tokens, and we only allow 10000 at once for this Consumer.";
    assert_eq!(open_bank, format!(r#"{{"code":429,"message":"{words}"}}"#));
}

#[test]
fn open_bank_names_the_unit_of_the_limit() {
    let open_bank = DenialBody::open_bank();
    let body = deny(&open_bank, &decide(&[("10000/minute:unit=tokens", denied(42))])).body;
    assert!(body.contains("We only allow 10000 tokens per minute for this Consumer."), "{body}");

    let (decision, all) = (&minute_full(), &Subject::global());
    let reason = DenialReason::Decision { decision, subject: all, rule: Some("fleet") };
    assert_eq!(reason.rule(), Some("fleet"));
    let body = open_bank.denial(reason, GoverningLimit::default(), Protocol::Http).body;
    assert!(body.contains(" 100 requests per minute for all clients together.\""), "{body}");
}

/// The bodies that the project sent while this form was the only one, byte for byte.
#[test]
fn open_bank_sends_the_bodies_that_its_clients_know() {
    let subjects = [
        Subject::consumer("abc123"),
        Subject::user("alice"),
        Subject::ip([192, 0, 2, 7]),
        Subject::global(),
    ];
    let [consumer, user, address, all] = &subjects;
    let decisions = [
        minute_full(),
        decide(&[("1/minute", denied(42))]),
        decide(&[("10000/15minutes:unit=tokens", denied(42))]),
        decide(&[("20:concurrency", denied(1))]),
        by_policy(&["10000/minute:unit=tokens"], 20_000),
        blocked_for(60),
        undecided(),
    ];
    let [minute, one, tokens, places, too_large, blocked, undecided] = &decisions;
    for (decision, subject, rule, code, words) in [
        (minute, consumer, "", 429, "We only allow 100 requests per minute for this Consumer"),
        (one, user, "", 429, "We only allow 1 requests per minute for this Consumer"),
        (minute, address, "", 429, "We only allow 100 requests per minute for anonymous access"),
        (minute, all, "", 429, "We only allow 100 requests per minute for this Consumer"),
        (
            minute,
            all,
            "fleet",
            429,
            "We only allow 100 requests per minute for all clients together under the rule fleet",
        ),
        (
            minute,
            consumer,
            "login",
            429,
            "We only allow 100 requests per minute for this Consumer under the rule login",
        ),
        (
            tokens,
            consumer,
            "tokens",
            429,
            "We only allow 10000 tokens per 15 minutes for this Consumer under the rule tokens",
        ),
        (
            places,
            address,
            "",
            429,
            "We only allow 20 requests at the same time for anonymous access",
        ),
        (
            too_large,
            consumer,
            "exports",
            429,
            "This request asks for 20000 tokens, and we only allow 10000 at once for this Consumer \
             under the rule exports",
        ),
        (blocked, consumer, "", 429, "This Consumer is blocked"),
        (blocked, address, "logins", 429, "Anonymous access is blocked under the rule logins"),
        (undecided, consumer, "", 503, "The rate limiter cannot decide at the moment"),
    ] {
        let rule = (!rule.is_empty()).then_some(rule);
        let decision = match rule {
            None => decision.clone(),
            Some(rule) => decision.clone().labelled(Arc::new(label(rule, true))),
        };
        let reason = DenialReason::Decision { decision: &decision, subject, rule };
        let body = DenialBody::open_bank().prefix("OBP-10018: ");
        let body = body.denial(reason, GoverningLimit::default(), Protocol::Http).body;
        let phrase = if code == 429 { "Too Many Requests" } else { "Service Unavailable" };
        let expected = format!(r#"{{"code":{code},"message":"OBP-10018: {phrase}. {words}."}}"#);
        assert_eq!(body, expected);
    }
}

#[test]
fn open_bank_names_a_rule_after_the_consumer_and_only_if_it_is_disclosed() {
    let body = DenialBody::open_bank().name_consumer();
    for (is_named, end) in [(false, "(consumer_id: abc123)."), (true, " under the rule login.")] {
        let body = deny(&body, &labelled(is_named)).body;
        let json: Value = serde_json::from_str(&body).unwrap();
        let message = json["message"].as_str().unwrap();
        assert!(message.contains("for this Consumer (consumer_id: abc123)"), "{message}");
        assert!(message.ends_with(end), "{message}");
    }
}

fn label(name: &str, is_named: bool) -> RuleLabel {
    RuleLabel { name: name.into(), pseudonym: "r3f2a1".into(), is_named }
}

fn labelled(is_named: bool) -> Decision {
    minute_full().labelled(Arc::new(label("login", is_named)))
}

#[test]
fn a_denial_contains_the_name_of_its_rule_only_if_it_is_disclosed() {
    for (is_named, name) in [(false, "r3f2a1/minute"), (true, "login/minute")] {
        let decision = labelled(is_named);
        let json: Value = serde_json::from_str(&deny(&DenialBody::json(), &decision).body).unwrap();
        assert_eq!(json["limit"], name);
        let problem: Value =
            serde_json::from_str(&deny(&DenialBody::problem(), &decision).body).unwrap();
        assert_eq!(problem["violated-policies"], json!([name]));
        let grpc = deny_grpc(&DenialBody::text(), &decision);
        let details = header(&grpc, "grpc-status-details-bin").unwrap();
        let details = STANDARD_NO_PAD.decode(details).unwrap();
        let details = String::from_utf8_lossy(&details);
        assert!(details.contains(name), "{details}");
        assert_eq!(details.contains("login"), is_named);
        assert!(!deny(&DenialBody::text(), &decision).body.contains("login"));
        let open_bank = deny(&DenialBody::open_bank(), &decision).body;
        assert_eq!(open_bank.contains("login"), is_named, "{open_bank}");
    }
}
