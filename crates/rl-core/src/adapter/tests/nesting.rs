//! The decisions and headers of nested limiters.

use super::{FakeResponse, apply, http};
use crate::adapter::response::ResponseSettings;
use crate::adapter::{CountedRequest, Extensions, HttpLimiter, ResponseHead};
use crate::decision::{Decision, Origin};
use crate::headers::{HeaderFamily, Headers};
use crate::maybe_ready::MaybeReady;
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
