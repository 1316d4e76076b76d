//! The bodies of calls of `/v1/…` that describe the subjects or the request to count.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use rl_core::{MAX_UNITS, Part, RateLimiter, Subject};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use utoipa::ToSchema;

use super::problem::Problem;
use super::subject_text::subject;
use crate::request::{GatewayRequest, RuleSubject, Selection};

/// Either subjects under named rules, or a request that rules match.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckInput {
    /// The subjects, which are decided in one step: all are charged, or none.
    #[schema(min_items = 1, max_items = 8)]
    subjects: Option<Vec<SubjectInput>>,
    /// The request of a client. Rules match it as they match one of a web service.
    request: Option<RequestInput>,
}

/// Either subjects under named rules, or a request that rules match, and the time of the permit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AcquireInput {
    /// The subjects, which are decided in one step: all are charged, or none.
    #[schema(min_items = 1, max_items = 8)]
    subjects: Option<Vec<SubjectInput>>,
    /// The request of a client. Rules match it as they match one of a web service.
    request: Option<RequestInput>,
    /// The seconds after which the permit expires; 60 if it is missing.
    #[schema(minimum = 1, maximum = 3600, example = 60)]
    ttl: Option<u64>,
}

/// A subject under a rule.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SubjectInput {
    /// The name of the rule.
    #[schema(example = "clients")]
    rule: String,
    /// The realm and the id of the subject. `global:` is the subject of a rule without keys.
    #[schema(example = "consumer:abc")]
    subject: String,
    /// The cost; that of the rule if it is missing.
    #[schema(minimum = 0, maximum = 9007199254740991_u64)]
    cost: Option<u64>,
}

/// The request of a client.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RequestInput {
    /// The method; `GET` if it is missing.
    method: Option<String>,
    /// The path, as the client has sent it; `/` if it is missing.
    path: Option<String>,
    /// The text after the `?`.
    query: Option<String>,
    /// The host that the client asks for.
    host: Option<String>,
    /// The address of the client.
    #[schema(example = "192.0.2.7")]
    address: Option<String>,
    /// The headers of the client. Several lines of one name are a list.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, String>)]
    headers: BTreeMap<String, HeaderLinesInput>,
    /// The consumer that the caller has authenticated.
    consumer: Option<String>,
}

impl AcquireInput {
    /// The longest time for which a permit is held, in seconds.
    const MAX_TTL: u64 = 3_600;

    /// Returns the input without the time, and the time in seconds.
    ///
    /// # Errors
    ///
    /// Returns 400 if the time is not valid.
    pub(super) fn into_parts(self) -> Result<(CheckInput, u64), Problem> {
        let ttl = self.ttl.unwrap_or(60);
        if !(1..=Self::MAX_TTL).contains(&ttl) {
            let expected = format!("1 to {} seconds", Self::MAX_TTL);
            return Err(Problem::unexpected("ttl", &ttl.to_string(), &expected));
        }
        Ok((CheckInput { subjects: self.subjects, request: self.request }, ttl))
    }
}

impl CheckInput {
    /// Returns the request to decide.
    ///
    /// # Errors
    ///
    /// Returns 400 if a value is not valid, or if there is no rule of a name.
    pub(super) fn into_request(self, limiter: &RateLimiter) -> Result<GatewayRequest, Problem> {
        match (self.subjects, self.request) {
            (Some(subjects), None) => of_subjects(subjects, limiter),
            (None, Some(request)) => request.into_request(),
            (Some(_), Some(_)) => {
                Err(Problem::invalid("request", "request: expected none beside subjects"))
            }
            (None, None) => {
                Err(Problem::invalid("subjects", "body: expected one of subjects and request"))
            }
        }
    }
}

fn of_subjects(
    subjects: Vec<SubjectInput>,
    limiter: &RateLimiter,
) -> Result<GatewayRequest, Problem> {
    if !(1..=Part::MAX).contains(&subjects.len()) {
        let expected = format!("subjects: expected 1 to {} of them", Part::MAX);
        return Err(Problem::invalid("subjects", format!("{expected}, found {}", subjects.len())));
    }
    let names = limiter.rule_names().unwrap_or_default();
    let selected = subjects.into_iter().enumerate().map(|(place, input)| {
        let field = |name: &str| format!("subjects[{place}].{name}");
        if !names.contains(&input.rule) {
            let expected = format!("one of the rules: {}", names.join(", "));
            return Err(Problem::unexpected(&field("rule"), &input.rule, &expected));
        }
        check_cost(&field("cost"), input.cost)?;
        let subject = subject(&input.subject)
            .map_err(|expected| Problem::unexpected(&field("subject"), &input.subject, expected))?;
        Ok(RuleSubject { rule: input.rule, subject, cost: input.cost })
    });
    let selection = Selection::Rules(selected.collect::<Result<_, Problem>>()?);
    Ok(GatewayRequest { selection, ..GatewayRequest::default() })
}

/// Checks that a cost is in the range of units.
///
/// # Errors
///
/// Returns 400 if it is not.
pub(super) fn check_cost(field: &str, cost: Option<u64>) -> Result<(), Problem> {
    match cost {
        Some(cost) if cost > MAX_UNITS => {
            let expected = format!("a whole number from 0 to {MAX_UNITS}");
            Err(Problem::unexpected(field, &cost.to_string(), &expected))
        }
        _ => Ok(()),
    }
}

impl RequestInput {
    fn into_request(self) -> Result<GatewayRequest, Problem> {
        let method = self.method.unwrap_or_default();
        if !method.is_empty() && axum::http::Method::from_bytes(method.as_bytes()).is_err() {
            return Err(Problem::unexpected("request.method", &method, "a method such as GET"));
        }
        let path = self.path.unwrap_or_default();
        if path.contains('?') {
            let expected = "a path without ?, and the rest in request.query";
            return Err(Problem::unexpected("request.path", &path, expected));
        }
        let peer = self.address.as_deref().map(|address| {
            let expected = "an address such as 192.0.2.7 or 2001:db8::1";
            let invalid = |_| Problem::unexpected("request.address", address, expected);
            address.parse::<IpAddr>().map_err(invalid)
        });
        let consumer = self.consumer.as_deref();
        if consumer == Some("") {
            return Err(Problem::unexpected("request.consumer", "", "an id that is not empty"));
        }
        let mut headers = HeaderMap::new();
        for (name, HeaderLinesInput(lines)) in self.headers {
            let field = format!("request.headers.{name}");
            let Ok(header) = HeaderName::from_bytes(name.as_bytes()) else {
                return Err(Problem::unexpected("request.headers", &name, "a name of a header"));
            };
            for line in lines {
                // The value may be secret, so the error does not repeat it.
                let line = HeaderValue::from_str(&line).map_err(|_| {
                    Problem::invalid(&field, format!("{field}: expected no control characters"))
                })?;
                headers.append(&header, line);
            }
        }
        Ok(GatewayRequest {
            method,
            path,
            query: self.query,
            host: self.host,
            headers,
            peer: peer.transpose()?,
            identified: consumer.map(Subject::consumer),
            ..GatewayRequest::default()
        })
    }
}

/// The lines of a header: a text, or a list of texts.
#[derive(Debug)]
struct HeaderLinesInput(Vec<String>);

impl<'de> Deserialize<'de> for HeaderLinesInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LinesVisitor;

        impl<'de> Visitor<'de> for LinesVisitor {
            type Value = HeaderLinesInput;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text or a list of texts")
            }

            fn visit_str<E: Error>(self, line: &str) -> Result<HeaderLinesInput, E> {
                Ok(HeaderLinesInput(vec![line.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> Result<HeaderLinesInput, A::Error> {
                let mut lines = Vec::new();
                while let Some(line) = list.next_element()? {
                    lines.push(line);
                }
                Ok(HeaderLinesInput(lines))
            }
        }

        deserializer.deserialize_any(LinesVisitor)
    }
}
