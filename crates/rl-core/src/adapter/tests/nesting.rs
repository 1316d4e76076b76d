//! The decisions and headers of nested limiters.

use super::{FakeResponse, apply, http};
use crate::adapter::response::ResponseSettings;
use crate::adapter::{CountedRequest, Extensions, HttpLimiter, ResponseHead};
use crate::decision::{Decision, Origin};
use crate::headers::{HeaderFamily, Headers};
use crate::model::{Cost, Limit, Outcome};
use crate::policy::Policy;

fn decision(limit: Limit, outcome: Outcome) -> Decision {
    let policy = Policy::new([limit]).unwrap();
    Decision::decided(policy, Cost::ONE, 1, Default::default(), [outcome])
}

/// Finishes a response of nested limiters that made the decisions `outer` and `inner`. Returns the
/// header lines, and the decision that is left in the extensions of the response.
fn finish(outer: &Decision, inner: Option<&Decision>) -> (Vec<String>, Decision) {
    let headers = Headers::new(HeaderFamily::OpenBank).and(HeaderFamily::IetfDraft11);
    let settings =
        ResponseSettings { headers, exposes_decision: true, ..ResponseSettings::default() };
    let mut response = FakeResponse::default();
    if let Some(inner) = inner {
        response.extensions().insert(inner.clone().inside(Some(outer.clone())));
    }
    let _ = CountedRequest::new(outer, &settings).finish(&mut response);
    let left = response.extensions().remove();
    (response.lines, left.unwrap())
}

#[test]
fn a_decision_reaches_an_outer_limiter_even_if_it_is_not_exposed() {
    let left = |http: &HttpLimiter, outer: Option<&Decision>| {
        let mut response = FakeResponse::default();
        let _ = apply(http, outer).1.finish(&mut response);
        response.extensions().remove::<Decision>()
    };
    let (outer, hiding, showing) = (http(), http(), http().expose_decision());
    let (by_outer, _) = apply(&outer, None);
    assert!(left(&hiding, None).is_none());
    assert!(left(&showing, None).unwrap().outer().is_none());
    for inner in [hiding, showing] {
        let inner = left(&inner, Some(&by_outer)).unwrap();
        assert_eq!(inner.outer().and_then(Decision::policy), by_outer.policy());
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

/// A limiter that is called by a handler does not know the decision of the limiter around it.
#[test]
fn single_valued_fields_describe_the_denial_of_a_handler() {
    let own = decision(Limit::per_hour(1), Outcome::granted(1, 3_600_000_000));
    let denied = decision(Limit::per_minute(9), Outcome::denied(8, 5_000_000, 5_000_000));
    let mut response = FakeResponse::default();
    response.extensions().insert(denied.clone());
    let settings = ResponseSettings { exposes_decision: true, ..ResponseSettings::default() };
    let _ = CountedRequest::new(&own, &settings).finish(&mut response);
    assert_eq!(response.lines, [""; 0], "the response of the handler has its lines already");
    let left: Decision = response.extensions().remove().unwrap();
    assert_eq!(left.policy(), denied.policy());
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
