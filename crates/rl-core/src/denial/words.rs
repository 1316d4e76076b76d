//! The message for people in the body of a denial.

use super::response::DenialReason;
use crate::decision::{Decision, GoverningLimit, LimitStatus, RetryAfter};
use crate::model::{Algorithm, Limit, Period, Subject};

/// The explanation of a denial: its [`DenialReason`], and the limits that messages may name.
#[derive(Clone, Copy)]
pub(super) struct Explanation<'a> {
    pub(super) kind: DenialKind,
    /// The decision. There is none if the key is missing or ambiguous, or
    /// if the address is unknown.
    pub(super) decision: Option<&'a Decision>,
    /// The governing limit, if it denies the request and clients may know it. The message of the
    /// Open Bank Project names it.
    pub(super) disclosed_limit: Option<DenyingLimit<'a>>,
}

/// Why a request is denied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DenialKind {
    OverLimit,
    /// The request is over a limit that clients may not know.
    OverUndisclosedLimit,
    /// The limiter cannot decide.
    Undecided,
    /// The request has no key.
    MissingKey,
    /// The key is ambiguous: two parsers could find different keys.
    AmbiguousKey,
    /// The request matches more rules than a decision can apply.
    TooManyRules,
    /// The address of the client is unknown.
    UnknownAddress,
}

/// The limit that denies a request, and the subject that the request is counted under.
#[derive(Clone, Copy)]
pub(super) struct DenyingLimit<'a> {
    pub(super) governing: LimitStatus<'a>,
    pub(super) subject: &'a Subject,
    /// Whether a rule counts the request.
    pub(super) has_rule: bool,
}

/// Returns whether the limit is 0. Only the end of a block or an operator can change that.
pub(super) const fn is_block(limit: LimitStatus<'_>) -> bool {
    limit.max() == 0
}

/// Returns whether the limit can never grant the cost.
pub(super) fn is_too_costly(limit: LimitStatus<'_>) -> bool {
    limit.retry_after() == RetryAfter::Never
}

impl<'a> Explanation<'a> {
    pub(super) fn new(reason: DenialReason<'a>, governing: GoverningLimit) -> Self {
        let (kind, disclosed_limit) = match reason {
            DenialReason::MissingKey => (DenialKind::MissingKey, None),
            DenialReason::AmbiguousKey => (DenialKind::AmbiguousKey, None),
            DenialReason::TooManyRules => (DenialKind::TooManyRules, None),
            DenialReason::UnknownAddress => (DenialKind::UnknownAddress, None),
            DenialReason::Decision { decision, subject, rule } => {
                let has_rule = rule.is_some();
                match decision.governing(governing) {
                    Some(governing) => {
                        (DenialKind::OverLimit, Some(DenyingLimit { governing, subject, has_rule }))
                    }
                    None if decision.denying_part().is_some() => {
                        (DenialKind::OverUndisclosedLimit, None)
                    }
                    None => (DenialKind::Undecided, None),
                }
            }
        };
        Self { kind, decision: reason.decision(), disclosed_limit }
    }

    /// Returns the HTTP status.
    pub(super) const fn status(self) -> u16 {
        match self.kind {
            DenialKind::OverLimit | DenialKind::OverUndisclosedLimit => 429,
            DenialKind::Undecided | DenialKind::TooManyRules => 503,
            DenialKind::MissingKey => 403,
            DenialKind::AmbiguousKey => 400,
            DenialKind::UnknownAddress => 500,
        }
    }

    /// Returns the reason phrase of the HTTP status.
    pub(super) const fn phrase(self) -> &'static str {
        match self.status() {
            429 => "Too Many Requests",
            503 => "Service Unavailable",
            500 => "Internal Server Error",
            403 => "Forbidden",
            _ => "Bad Request",
        }
    }

    /// Returns the cost of the request.
    pub(super) fn cost(self) -> u64 {
        self.decision.map_or(0, |decision| decision.cost().units())
    }

    /// Returns the limits that deny the request, if clients may know them. The fields of the IETF
    /// drafts list them under the same names.
    pub(super) fn violated(self) -> impl Iterator<Item = LimitStatus<'a>> {
        let known = self.decision.filter(|_| self.disclosed_limit.is_some());
        known.into_iter().flat_map(|decision| decision.listed().filter(|limit| limit.is_over()))
    }

    /// Returns the limit for which the client has to wait, if clients may know it: the one of the
    /// limits that deny with the longest [hint](LimitStatus::retry_hint). The message states the
    /// wait beside the limit, so no other limit may be named.
    pub(super) fn longest(self) -> Option<LimitStatus<'a>> {
        let wait = self.decision?.retry_hint();
        let governing = self.disclosed_limit.map(|over| over.governing);
        let mut known = governing.into_iter().chain(self.violated());
        known.find(|limit| limit.retry_hint() == wait)
    }

    /// Appends a sentence for people, and one that says when to retry if waiting helps. It contains
    /// no character that JSON escapes.
    pub(super) fn push_to(self, text: &mut String) {
        match self.kind {
            DenialKind::OverLimit | DenialKind::OverUndisclosedLimit => match self.longest() {
                Some(limit) => push_limit(limit, self.cost(), text),
                None => text.push_str("Too many requests at the moment"),
            },
            DenialKind::Undecided => text.push_str("The rate limiter cannot decide at the moment"),
            DenialKind::MissingKey => {
                text.push_str(
                    "Forbidden. The request has no rate limit key that the service knows",
                );
            }
            DenialKind::AmbiguousKey => text.push_str(
                "Bad Request. The credential is given more than once, or cannot be read in one way \
                 only",
            ),
            DenialKind::TooManyRules => {
                text.push_str("More rate limits match the request than can be applied");
            }
            DenialKind::UnknownAddress => {
                text.push_str("The service does not know the address of its client");
            }
        }
        text.push('.');
        if let Some(decision) = self.decision {
            push_wait(decision.retry_hint(), text);
        }
    }
}

/// Appends what the limit allows.
fn push_limit(status: LimitStatus<'_>, cost: u64, text: &mut String) {
    let limit = status.configured();
    if is_block(status) {
        text.push_str("Blocked: no ");
        text.push_str(limit.unit());
        text.push_str(" are allowed");
    } else if is_too_costly(status) {
        text.push_str("Request too large: it counts as ");
        push_units(text, cost, limit.unit());
        text.push_str(", but at most ");
        push_number(text, limit.capacity());
        text.push_str(if limit.capacity() == 1 { " is" } else { " are" });
        text.push_str(" ever allowed at once");
    } else {
        text.push_str("Too many requests: ");
        if limit.algorithm() == Algorithm::Concurrency {
            text.push_str("at most ");
        }
        match limit.unit() {
            "requests" => push_number(text, limit.max()),
            unit => push_units(text, limit.max(), unit),
        }
        push_span(text, limit);
    }
}

/// Appends ` Try again in 4 seconds.`, with the seconds of `Retry-After`.
fn push_wait(wait: RetryAfter, text: &mut String) {
    let Some(seconds) = wait.whole_seconds() else { return };
    text.push_str(" Try again in ");
    push_units(text, seconds, "seconds");
    text.push('.');
}

pub(super) fn push_number(text: &mut String, number: u64) {
    text.push_str(itoa::Buffer::new().format(number));
}

/// Appends a number with its unit: `1 request`, `10000 tokens`.
fn push_units(text: &mut String, number: u64, unit: &str) {
    push_number(text, number);
    text.push(' ');
    text.push_str(if number == 1 { singular(unit) } else { unit });
}

/// Returns the singular of a unit, which is named in the plural, such as `tokens`. A name with an
/// irregular plural is returned unchanged.
fn singular(unit: &str) -> &str {
    let is_irregular =
        ["ss", "us", "ies", "xes", "ches", "shes"].iter().any(|end| unit.ends_with(end));
    unit.strip_suffix('s').filter(|_| !is_irregular).unwrap_or(unit)
}

/// Appends the quota of a limit: `1 request per minute`, `20 requests at the same time`.
pub(super) fn push_quota(text: &mut String, limit: Limit) {
    push_units(text, limit.max(), limit.unit());
    push_span(text, limit);
}

/// Appends the quota of a limit with its unit in the plural: `1 requests per minute`.
pub(super) fn push_plural_quota(text: &mut String, limit: Limit) {
    push_number(text, limit.max());
    text.push(' ');
    text.push_str(limit.unit());
    push_span(text, limit);
}

/// Appends ` per minute` or ` at the same time`.
fn push_span(text: &mut String, limit: Limit) {
    match limit.algorithm() {
        Algorithm::Concurrency => text.push_str(" at the same time"),
        _ => {
            text.push_str(" per ");
            push_period(text, limit.period());
        }
    }
}

/// Appends a period in words: `minute`, `15 minutes`, `250 milliseconds`.
fn push_period(text: &mut String, period: Period) {
    let (count, unit) = period.count_and_unit();
    if count != 1 {
        text.push_str(itoa::Buffer::new().format(count));
        text.push(' ');
    }
    text.push_str(if unit == "ms" { "millisecond" } else { unit });
    if count != 1 {
        text.push('s');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_written_in_words() {
        for (period, words) in [
            ("second", "second"),
            ("month", "month"),
            ("15minutes", "15 minutes"),
            ("2weeks", "2 weeks"),
            ("ms", "millisecond"),
            ("250ms", "250 milliseconds"),
            ("3153599999999ms", "3153599999999 milliseconds"),
        ] {
            let mut text = String::new();
            push_period(&mut text, period.parse().unwrap());
            assert_eq!(text, words);
        }
    }
}
