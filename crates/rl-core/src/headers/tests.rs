use std::time::Duration;

use proptest::prelude::*;
use sfv::{BareItem, Dictionary, List, ListEntry, Parser};

use super::*;
use crate::decision::{Origin, RetryAfter};
use crate::model::{Cost, FailureKind, Limit, MAX_UNITS, Outcome, Period};
use crate::policy::Policy;
use crate::time::Timestamp;

const SECOND: u64 = 1_000_000;
/// 2026-01-01T00:00:00Z.
const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);

fn decide(limits: &[(&str, Limit, Outcome)]) -> Decision {
    let named = |policy: crate::policy::PolicyBuilder,
                 (name, limit, _): &(&str, Limit, Outcome)| {
        policy.named(name, *limit)
    };
    let policy = limits.iter().fold(Policy::builder(), named).build().unwrap();
    let outcomes = limits.iter().map(|(_, _, outcome)| *outcome);
    Decision::decided(policy, Cost::ONE, 1, NOW, outcomes)
}

fn lines(headers: &Headers, decision: &Decision) -> Vec<String> {
    headers.lines(decision).iter().map(|line| line.to_string()).collect()
}

fn value(headers: &Headers, decision: &Decision, name: &str) -> Option<String> {
    let lines = headers.lines(decision);
    let mut values = lines.iter().filter(|line| line.name.as_str() == name);
    let value = values.next().map(|line| String::from_utf8(line.value.into()).unwrap());
    assert_eq!(values.next(), None, "{name} is written once");
    value
}

/// The worked example of the specification: 27 of 100 units per minute are used, and the reset is
/// in 42 seconds.
fn worked_example() -> Decision {
    decide(&[("default", Limit::per_minute(100), Outcome::granted(27, 42 * SECOND))])
}

#[test]
#[rustfmt::skip]
fn worked_example_byte_for_byte() {
    use HeaderFamily as F;
    let cases: [(F, &[&str]); 10] = [
        (F::OpenBank, &["x-rate-limit-limit: 100", "x-rate-limit-remaining: 73", "x-rate-limit-reset: 42"]),
        (F::GitHub, &[
            "x-ratelimit-limit: 100", "x-ratelimit-remaining: 73", "x-ratelimit-used: 27",
            "x-ratelimit-reset: 1767225642", "x-ratelimit-resource: core",
        ]),
        (F::IetfDraft11, &[r#"ratelimit-policy: "default";q=100;w=60"#, r#"ratelimit: "default";r=73;t=42"#]),
        (F::IetfDraft07, &["ratelimit-policy: 100;w=60", "ratelimit: limit=100, remaining=73, reset=42"]),
        (F::IetfDraft06, &[
            "ratelimit-policy: 100;w=60", "ratelimit-limit: 100", "ratelimit-remaining: 73", "ratelimit-reset: 42",
        ]),
        (F::IetfDraft03, &["ratelimit-limit: 100, 100;w=60", "ratelimit-remaining: 73", "ratelimit-reset: 42"]),
        (F::Envoy, &[
            r#"x-ratelimit-limit: 100, 100;w=60;name="default""#, "x-ratelimit-remaining: 73", "x-ratelimit-reset: 42",
        ]),
        (F::Legacy, &["x-ratelimit-limit: 100", "x-ratelimit-remaining: 73", "x-ratelimit-reset: 1767225642"]),
        (F::Twitter, &["x-rate-limit-limit: 100", "x-rate-limit-remaining: 73", "x-rate-limit-reset: 1767225642"]),
        (F::Zuul, &["x-ratelimit-limit: 100", "x-ratelimit-remaining: 73", "x-ratelimit-reset: 60000"]),
    ];
    assert_eq!(cases.map(|(family, _)| family), HeaderFamily::ALL);
    for (family, expected) in cases {
        assert_eq!(lines(&Headers::new(family), &worked_example()), expected, "{family:?}");
    }
    assert_eq!(lines(&Headers::none(), &worked_example()), [""; 0]);
}

#[test]
fn lists_describe_every_limit_in_the_order_of_the_policy() {
    let decision = decide(&[
        ("second", Limit::per_second(10), Outcome::granted(1, SECOND)),
        ("minute", Limit::per_minute(100), Outcome::granted(42, 37 * SECOND)),
        ("hour", Limit::per_hour(1_000), Outcome::granted(732, 2_847 * SECOND)),
    ]);
    let ietf = Headers::new(HeaderFamily::IetfDraft11);
    assert_eq!(
        lines(&ietf, &decision),
        [
            r#"ratelimit-policy: "second";q=10;w=1, "minute";q=100;w=60, "hour";q=1000;w=3600"#,
            r#"ratelimit: "second";r=9;t=1, "minute";r=58;t=37, "hour";r=268;t=2847"#,
        ]
    );
    assert_eq!(
        lines(&ietf.list_governing_limit_only(), &decision),
        [r#"ratelimit-policy: "second";q=10;w=1"#, r#"ratelimit: "second";r=9;t=1"#]
    );
    assert_eq!(
        lines(&Headers::new(HeaderFamily::IetfDraft03), &decision)[0],
        "ratelimit-limit: 10, 10;w=1, 100;w=60, 1000;w=3600"
    );
    assert_eq!(
        lines(&Headers::new(HeaderFamily::IetfDraft06), &decision)[0],
        "ratelimit-policy: 10;w=1, 100;w=60, 1000;w=3600"
    );
}

/// The limits are 10 per second, 100 per minute and 1 000 per hour. The table contains decisions
/// and their single-valued fields.
#[test]
#[rustfmt::skip]
fn single_values_follow_the_governing_limit() {
    let limits = |[second, minute, hour]: [Outcome; 3]| decide(&[
        ("second", Limit::per_second(10), second),
        ("minute", Limit::per_minute(100), minute),
        ("hour", Limit::per_hour(1_000), hour),
    ]);
    let granted = |used, seconds| Outcome::granted(used, seconds * SECOND);
    let denied = |used, seconds| Outcome::denied(used, seconds * SECOND, seconds * SECOND);
    let cases = [
        // outcomes                                               | shortest active | fewest remaining  | retry
        ([granted(1, 1), granted(1, 60), granted(1, 3_600)],        [10, 9, 1],       [10, 9, 1],         None),
        ([granted(2, 1), granted(100, 30), granted(501, 1_800)],    [10, 8, 1],       [100, 0, 30],       None),
        ([granted(0, 0), denied(100, 30), granted(501, 1_800)],     [100, 0, 30],     [100, 0, 30],       Some("30")),
        ([denied(10, 1), granted(90, 30), denied(1_000, 900)],      [10, 0, 1],       [1_000, 0, 900],    Some("900")),
    ];
    for (outcomes, shortest, fewest, retry_after) in cases {
        let decision = limits(outcomes);
        for (follow, expected) in
            [(GoverningLimit::ShortestActive, shortest), (GoverningLimit::FewestRemaining, fewest)]
        {
            let headers = Headers::default().with_governing_limit(follow);
            let number = |name| value(&headers, &decision, name).unwrap().parse().unwrap();
            let said: [u64; 3] = [
                number("x-rate-limit-limit"),
                number("x-rate-limit-remaining"),
                number("x-rate-limit-reset"),
            ];
            assert_eq!(said, expected, "{follow:?} {decision:?}");
            assert_eq!(value(&headers, &decision, "retry-after").as_deref(), retry_after);
        }
    }
}

#[test]
fn a_peek_at_an_unused_limit_has_headers_too() {
    let decision = decide(&[
        ("minute", Limit::per_minute(100), Outcome::granted(0, 0)),
        ("second", Limit::per_second(10), Outcome::granted(0, 0)),
    ]);
    assert_eq!(
        lines(&Headers::default().and(HeaderFamily::IetfDraft11), &decision),
        [
            "x-rate-limit-limit: 10",
            "x-rate-limit-remaining: 10",
            "x-rate-limit-reset: 0",
            r#"ratelimit-policy: "minute";q=100;w=60, "second";q=10;w=1"#,
            r#"ratelimit: "minute";r=100, "second";r=10"#,
        ]
    );
}

/// Other limiters round down. A client that reads `Retry-After: 0` retries immediately, and is
/// denied again.
#[test]
fn seconds_are_rounded_up_and_never_zero_in_a_denial() {
    let deny =
        |micros| decide(&[("second", Limit::per_second(1), Outcome::denied(1, micros, micros))]);
    for (micros, seconds) in [(1, "1"), (999_999, "1"), (SECOND, "1"), (SECOND + 1, "2")] {
        let headers = Headers::default();
        assert_eq!(value(&headers, &deny(micros), "x-rate-limit-reset").unwrap(), seconds);
        assert_eq!(value(&headers, &deny(micros), "retry-after").unwrap(), seconds);
    }
    let at = Headers::new(HeaderFamily::GitHub);
    assert_eq!(value(&at, &deny(1), "x-ratelimit-reset").unwrap(), "1767225601");
}

#[test]
fn a_response_to_a_blocked_subject_has_no_reset() {
    let blocked = decide(&[("day", Limit::per_day(0), Outcome::never(0, 0))]);
    assert_eq!(
        lines(
            &Headers::default().and(HeaderFamily::GitHub).and(HeaderFamily::IetfDraft11),
            &blocked
        ),
        [
            "x-rate-limit-limit: 0",
            "x-rate-limit-remaining: 0",
            "x-ratelimit-limit: 0",
            "x-ratelimit-remaining: 0",
            "x-ratelimit-used: 0",
            "x-ratelimit-resource: core",
            r#"ratelimit-policy: "day";q=0;w=86400"#,
            r#"ratelimit: "day";r=0"#,
        ]
    );
}

#[test]
fn every_family_reports_the_end_of_a_block() {
    let policy = Policy::new([Limit::per_minute(5)]).unwrap();
    let policy = policy.blocked_until(NOW.plus_micros(90 * SECOND + 1));
    let blocked = Decision::blocked(policy.block().unwrap(), Cost::ONE, NOW);
    for (family, name, value_then) in [
        (HeaderFamily::OpenBank, "x-rate-limit-reset", "91"),
        (HeaderFamily::GitHub, "x-ratelimit-reset", "1767225691"),
        (HeaderFamily::IetfDraft06, "ratelimit-reset", "91"),
        (HeaderFamily::IetfDraft07, "ratelimit", "limit=0, remaining=0, reset=91"),
        (HeaderFamily::IetfDraft11, "ratelimit", r#""minute";r=0"#),
    ] {
        let headers = Headers::new(family);
        assert_eq!(value(&headers, &blocked, name).unwrap(), value_then, "{family:?}");
        assert_eq!(value(&headers, &blocked, "retry-after").unwrap(), "91", "{family:?}");
    }
}

/// Without a counter, the remaining units would be a guess.
#[test]
fn headers_for_a_cost_that_is_never_granted_name_only_the_limit() {
    let policy = Policy::new([Limit::per_second(50), Limit::per_minute(100)]).unwrap();
    let never = Decision::never_granted(&policy, Cost::new(101), 101, Timestamp::EPOCH);
    for family in HeaderFamily::ALL.iter().copied() {
        let lines = lines(&Headers::new(family), &never);
        let is_known = |line: &String| {
            line.starts_with("ratelimit-policy: ")
                || line.starts_with("x-ratelimit-resource: ")
                || line.split_once(": ").is_some_and(|(name, _)| name.ends_with("-limit"))
        };
        assert!(lines.iter().all(is_known), "{family:?}: {lines:?}");
        assert!(family == HeaderFamily::IetfDraft07 || !lines.is_empty());
    }
}

#[test]
fn a_request_that_no_store_decided_gets_no_fields() {
    let every = [HeaderFamily::OpenBank, HeaderFamily::GitHub, HeaderFamily::IetfDraft11];
    let every = every.into_iter().fold(Headers::none(), Headers::and);
    let failure = FailureKind::TimedOut;
    for origin in [Origin::Disabled, Origin::Unlimited, Origin::FailedOpen(failure)] {
        assert_eq!(lines(&every, &Decision::undecided(Cost::ONE, origin)), [""; 0]);
    }
    let closed = Decision::undecided(Cost::ONE, Origin::FailedClosed(failure));
    assert_eq!(lines(&every, &closed), ["retry-after: 1"]);
    assert_eq!(lines(&Headers::none(), &closed), ["retry-after: 1"]);
}

#[test]
fn without_a_limit_the_fields_are_minus_one_if_configured() {
    let every = [HeaderFamily::OpenBank, HeaderFamily::GitHub, HeaderFamily::IetfDraft11];
    let every = every.into_iter().fold(Headers::none(), Headers::and).show_unlimited();
    let unlimited = Decision::undecided(Cost::ONE, Origin::Unlimited);
    let counted = Limit::new(MAX_UNITS, Period::MINUTE).unwrap().shadow();
    let counted = decide(&[("minute", counted, Outcome::granted(1, SECOND))]);
    for decision in [unlimited, counted] {
        assert_eq!(
            lines(&every, &decision),
            ["x-rate-limit-limit: -1", "x-rate-limit-remaining: -1", "x-rate-limit-reset: -1"]
        );
    }
    for origin in [Origin::Disabled, Origin::FailedOpen(FailureKind::TimedOut)] {
        assert_eq!(lines(&every, &Decision::undecided(Cost::ONE, origin)), [""; 0]);
    }
}

#[test]
fn windows_that_are_not_whole_seconds_are_left_out() {
    let limit = Limit::new(5, Period::from_millis(1_500).unwrap()).unwrap();
    let decision = decide(&[("burst", limit, Outcome::granted(1, SECOND))]);
    for (family, policy) in [
        (HeaderFamily::IetfDraft11, r#"ratelimit-policy: "burst";q=5"#),
        (HeaderFamily::IetfDraft07, "ratelimit-policy: 5"),
        (HeaderFamily::IetfDraft03, "ratelimit-limit: 5, 5"),
        (HeaderFamily::Envoy, r#"x-ratelimit-limit: 5, 5;name="burst""#),
    ] {
        assert_eq!(lines(&Headers::new(family), &decision)[0], policy);
    }
}

#[test]
fn structured_integers_have_fifteen_digits_at_most() {
    let limit = Limit::new(MAX_UNITS, Period::MONTH).unwrap();
    let decision = decide(&[("month", limit, Outcome::granted(1, SECOND))]);
    let said = |family| lines(&Headers::new(family), &decision);
    assert_eq!(
        said(HeaderFamily::IetfDraft11),
        [
            r#"ratelimit-policy: "month";q=999999999999999;w=2592000"#,
            r#"ratelimit: "month";r=999999999999999;t=1"#
        ]
    );
    assert_eq!(said(HeaderFamily::OpenBank)[0], format!("x-rate-limit-limit: {MAX_UNITS}"));
}

#[test]
fn the_longest_lists_there_are_fit() {
    let names: Vec<String> = (0..16).map(|n| format!("{n:064}")).collect();
    let limits: Vec<_> = names
        .iter()
        .zip(1..)
        .map(|(name, seconds)| {
            let period = Period::from_millis(3_153_600_000_000 - seconds * 1_000).unwrap();
            let limit = Limit::new(MAX_UNITS, period).unwrap().aligned_to_clock().unwrap();
            (name.as_str(), limit, Outcome::denied(0, u64::MAX - 1, u64::MAX - 1))
        })
        .collect();
    let decision = decide(&limits);
    for family in HeaderFamily::ALL.iter().copied() {
        for line in lines(&Headers::new(family), &decision) {
            assert!(line.len() < 1_800, "{family:?}: {}", line.len());
        }
    }
}

#[test]
fn a_family_replaces_those_that_use_its_names() {
    let names = |headers: &Headers| headers.names().collect::<Vec<_>>();
    let twitter = Headers::new(HeaderFamily::OpenBank).and(HeaderFamily::Twitter);
    assert_eq!(twitter, Headers::new(HeaderFamily::Twitter));
    let draft06 = Headers::new(HeaderFamily::IetfDraft03)
        .and(HeaderFamily::GitHub)
        .and(HeaderFamily::IetfDraft11)
        .and(HeaderFamily::IetfDraft06);
    assert_eq!(draft06, Headers::new(HeaderFamily::GitHub).and(HeaderFamily::IetfDraft06));
    for family in HeaderFamily::ALL.iter().copied() {
        assert_eq!(Headers::new(family).and(family), Headers::new(family));
        for second in HeaderFamily::ALL.iter().copied() {
            let all = HeaderFamily::ALL
                .iter()
                .copied()
                .fold(Headers::new(family).and(second), Headers::and);
            let mut names = names(&all);
            names.sort_unstable();
            assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        }
    }
}

#[test]
fn names_are_those_that_are_written() {
    let over = Outcome::denied(1, SECOND, SECOND);
    let denied = decide(&[
        ("minute", Limit::per_minute(1), over),
        ("hour", Limit::per_hour(1).shadow(), over),
    ]);
    for family in HeaderFamily::ALL.iter().copied() {
        let headers = Headers::new(family);
        let lines = headers.lines(&denied);
        let written: Vec<_> = lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(headers.names().collect::<Vec<_>>(), written, "{family:?}");
        for name in written {
            let fits = |b: u8| b.is_ascii_lowercase() || b == b'-';
            assert!(name.bytes().all(fits), "{name}");
        }
    }
}

/// Parses `RateLimit-Policy` and `RateLimit` with an independent parser, as a client does.
fn parse_list(text: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let list: List = Parser::new(text).parse().unwrap();
    let item = |entry: ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("an inner list in {text}") };
        let BareItem::String(name) = item.bare_item else { panic!("not a string in {text}") };
        let parameter = |(key, value): (sfv::Key, BareItem)| {
            let BareItem::Integer(number) = value else { panic!("not an integer in {text}") };
            (key.to_string(), i64::from(number))
        };
        (name.to_string(), item.params.into_iter().map(parameter).collect())
    };
    list.into_iter().map(item).collect()
}

fn any_outcome() -> impl Strategy<Value = Outcome> {
    let micros = prop_oneof![Just(0), 1..10_000_000_u64, any::<u64>()];
    (any::<u64>(), micros.clone(), micros, 0..3).prop_map(|(used, reset, wait, kind)| match kind {
        0 => Outcome::granted(used % 1_000, reset),
        1 => Outcome::denied(used % 1_000, reset.max(wait), wait),
        _ => Outcome::never(used, reset),
    })
}

proptest! {
    /// A generic parser can read every limit, and `retry-after` is never less than the `t` of a
    /// limit that denies.
    #[test]
    fn structured_fields_parse(
        limits in prop::collection::vec((0..=MAX_UNITS, any_outcome()), 1..=16),
        millis in 1..=3_153_600_000_000_u64 - 16,
    ) {
        let limits: Vec<_> = limits.into_iter().zip(millis..).map(|((max, outcome), millis)| {
            (Limit::new(max, Period::from_millis(millis).unwrap()).unwrap(), outcome)
        }).collect();
        let policy = Policy::new(limits.iter().map(|(limit, _)| *limit)).unwrap();
        let outcomes: Vec<_> = limits.iter().map(|(_, outcome)| *outcome).collect();
        let decision = Decision::decided(policy, Cost::ONE, 1, NOW, outcomes);

        let ietf = Headers::new(HeaderFamily::IetfDraft11);
        let policies = parse_list(&value(&ietf, &decision, "ratelimit-policy").unwrap());
        let standings = parse_list(&value(&ietf, &decision, "ratelimit").unwrap());
        let names: Vec<_> = decision.limits().map(|limit| limit.name().to_owned()).collect();
        prop_assert!(policies.iter().map(|(name, _)| name).eq(&names));
        prop_assert!(standings.iter().map(|(name, _)| name).eq(&names));
        for (limit, (_, parameters)) in decision.limits().zip(&policies) {
            prop_assert_eq!(&parameters[0].0, "q");
            prop_assert_eq!(parameters[0].1, limit.max().min(999_999_999_999_999) as i64);
            prop_assert!(parameters[1..].iter().all(|(key, value)| key == "w" && *value > 0));
        }
        let retry_after: Option<i64> =
            value(&ietf, &decision, "retry-after").map(|seconds| seconds.parse().unwrap());
        prop_assert_eq!(
            retry_after.is_some(),
            !decision.is_allowed() && decision.retry_after() != RetryAfter::Never
        );
        for (limit, (_, parameters)) in decision.limits().zip(&standings) {
            prop_assert_eq!(&parameters[0].0, "r");
            prop_assert!(parameters[1..].iter().all(|(key, value)| key == "t" && *value > 0));
            if let (true, Some(retry_after)) = (limit.is_over(), retry_after) {
                prop_assert!(parameters[1..].iter().all(|(_, t)| retry_after >= *t));
            }
        }

        let draft07 = Headers::new(HeaderFamily::IetfDraft07);
        let dictionary = value(&draft07, &decision, "ratelimit").unwrap();
        prop_assert_eq!(Parser::new(&dictionary).parse::<Dictionary>().unwrap().len(), 3);
        let quotas = value(&draft07, &decision, "ratelimit-policy").unwrap();
        prop_assert_eq!(Parser::new(&quotas).parse::<List>().unwrap().len(), names.len());
    }

    /// A client that waits for `Retry-After` retries neither too early nor more than a second too
    /// late.
    #[test]
    fn retry_after_is_never_early_and_at_most_a_second_late(micros in 1..u64::MAX) {
        let outcome = Outcome::denied(1, micros, micros);
        let decision = decide(&[("minute", Limit::per_minute(1), outcome)]);
        let seconds = value(&Headers::none(), &decision, "retry-after").unwrap().parse().unwrap();
        let (retry_after, wait) = (Duration::from_secs(seconds), Duration::from_micros(micros));
        prop_assert!(retry_after >= wait && retry_after < wait + Duration::from_secs(1));
    }
}

#[test]
fn the_unit_of_a_limit_is_in_its_policy_field() {
    let limit = Limit::per_minute(10_000).with_unit("tokens").unwrap();
    let decision = decide(&[("minute", limit, Outcome::granted(27, 42 * SECOND))]);
    let ietf = lines(&Headers::new(HeaderFamily::IetfDraft11), &decision);
    assert_eq!(ietf[0], r#"ratelimit-policy: "minute";q=10000;w=60;qu="tokens""#);
}

/// Fault: the body of a denial named limits that a shortened list omitted.
#[test]
fn lists_of_the_governing_limit_contain_every_limit_that_denies() {
    let over = |seconds| Outcome::denied(9, seconds * SECOND, seconds * SECOND);
    let headers = Headers::new(HeaderFamily::IetfDraft11).list_governing_limit_only();
    let denial = decide(&[
        ("second", Limit::per_second(9), over(1)),
        ("minute", Limit::per_minute(90), Outcome::granted(9, SECOND)),
        ("hour", Limit::per_hour(9), over(900)),
        ("day", Limit::per_day(9).shadow(), over(900)),
    ]);
    assert_eq!(
        lines(&headers.clone().without_warning(), &denial),
        [
            r#"ratelimit-policy: "second";q=9;w=1, "hour";q=9;w=3600"#,
            r#"ratelimit: "second";r=0;t=1, "hour";r=0;t=900"#,
            "retry-after: 900",
        ]
    );
    let allowed = decide(&[
        ("minute", Limit::per_minute(90), Outcome::granted(9, SECOND)),
        ("hour", Limit::per_hour(90), Outcome::granted(9, SECOND)),
    ]);
    let policy = value(&headers, &allowed, "ratelimit-policy");
    assert_eq!(policy.as_deref(), Some(r#""minute";q=90;w=60"#));
}

/// Fault: the reset of a denial by a concurrency limit was the rest of a lease, though
/// `Retry-After` was a second.
#[test]
fn the_reset_of_a_denial_by_a_concurrency_limit_is_at_most_its_hint() {
    let places = |millis| {
        let wait = millis * SECOND / 1_000;
        decide(&[(
            "places",
            "5:concurrency:retry=3s".parse().unwrap(),
            Outcome::denied(5, wait, wait),
        )])
    };
    for (millis, seconds) in [(9_000, "3"), (1_500, "2")] {
        let decision = places(millis);
        for name in ["x-rate-limit-reset", "retry-after"] {
            assert_eq!(value(&Headers::default(), &decision, name).as_deref(), Some(seconds));
        }
        let at = (NOW.as_secs_ceil() + seconds.parse::<u64>().unwrap()).to_string();
        let github = Headers::new(HeaderFamily::GitHub);
        assert_eq!(value(&github, &decision, "x-ratelimit-reset"), Some(at));
    }
    let granted = Outcome::granted(5, 9 * SECOND);
    let allowed = decide(&[("places", Limit::concurrency(5).unwrap(), granted)]);
    let reset = value(&Headers::default(), &allowed, "x-rate-limit-reset");
    assert_eq!(reset.as_deref(), Some("9"));
}

/// The units of a concurrency limit come back when requests end, not when a window ends.
#[test]
fn a_concurrency_limit_has_a_unit_and_no_window() {
    let limits = |outcome| {
        decide(&[
            ("minute", Limit::per_minute(100), Outcome::granted(27, 42 * SECOND)),
            ("concurrency", Limit::concurrency(20).unwrap(), outcome),
        ])
    };
    let (granted, denied) =
        (limits(Outcome::granted(5, 9 * SECOND)), limits(Outcome::denied(20, 9 * SECOND, SECOND)));
    let ietf = Headers::new(HeaderFamily::IetfDraft11);
    let policy =
        r#"ratelimit-policy: "minute";q=100;w=60, "concurrency";q=20;qu="concurrent-requests""#;
    assert_eq!(
        lines(&ietf, &granted),
        [policy, r#"ratelimit: "minute";r=73;t=42, "concurrency";r=15"#]
    );
    assert_eq!(
        lines(&ietf, &denied),
        [policy, r#"ratelimit: "minute";r=73;t=42, "concurrency";r=0"#, "retry-after: 1"]
    );
    assert_eq!(
        lines(&Headers::new(HeaderFamily::IetfDraft06), &denied),
        [
            "ratelimit-policy: 100;w=60, 20",
            "ratelimit-limit: 20",
            "ratelimit-remaining: 0",
            "ratelimit-reset: 1",
            "retry-after: 1",
        ]
    );
    let blocked = decide(&[("b", Limit::concurrency(0).unwrap(), Outcome::never(0, 0))]);
    assert_eq!(lines(&ietf, &blocked)[1], r#"ratelimit: "b";r=0"#);
}

#[test]
fn lists_describe_bursts_by_what_refills_them() {
    let headers = Headers::new(HeaderFamily::IetfDraft11);
    let lines_of = |limit: &str, used, reset| {
        let limit: Limit = limit.parse().unwrap();
        lines(&headers, &decide(&[("b", limit, Outcome::granted(used, reset))]))
    };
    // Ten units per second, with a burst of twenty: an empty burst is full again after two seconds
    // (`w=2`). The next unit comes after a tenth of a second, which is rounded up to `t=1`.
    assert_eq!(
        lines_of("10/second:gcra:burst=20", 5, SECOND / 2),
        ["ratelimit-policy: \"b\";q=20;w=2", "ratelimit: \"b\";r=15;t=1"]
    );
    // The bucket of four gets one unit per hour. Three units are missing, and the bucket is full in
    // 2 hours and 90 seconds, so the next unit comes in 90 seconds.
    assert_eq!(
        lines_of("1/hour:token-bucket:capacity=4", 3, 2 * 3_600 * SECOND + 90 * SECOND),
        ["ratelimit-policy: \"b\";q=4;w=14400", "ratelimit: \"b\";r=1;t=90"]
    );
    // The bucket of nine gets two units at the end of each minute. Five units are missing, so the
    // third refill fills it, in 130 seconds. The first one comes two minutes earlier.
    assert_eq!(
        lines_of("2/minute:token-bucket:capacity=9:refill=interval", 5, 130 * SECOND),
        ["ratelimit-policy: \"b\";q=9;w=270", "ratelimit: \"b\";r=4;t=10"]
    );
}
