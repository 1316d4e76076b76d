//! The message for people in the body of a denial.

use super::json;
use super::response::DenialReason;
use crate::decision::{Decision, GoverningLimit, LimitStatus, RetryAfter};
use crate::model::{Algorithm, Limit, Period, Realm, Subject};

/// A [`DenialReason`], and the limit that its message names.
#[derive(Clone, Copy)]
pub(super) enum Reason<'a> {
    /// The governing limit is 0. Only the end of a block or an operator can change that.
    Blocked { decision: &'a Decision, counted: CountedUnder<'a> },
    /// The governing limit can never grant the cost.
    TooCostly { decision: &'a Decision, governing: LimitStatus<'a>, counted: CountedUnder<'a> },
    /// The request is over the governing limit, and perhaps over others.
    OverLimit { decision: &'a Decision, governing: LimitStatus<'a>, counted: CountedUnder<'a> },
    /// The request is over a limit that clients may not know.
    OverUndisclosedLimit { decision: &'a Decision },
    /// The limiter cannot decide.
    Undecided { decision: &'a Decision },
    /// The request has no key.
    MissingKey,
    /// The key is ambiguous: two parsers could find different keys.
    AmbiguousKey,
}

/// The subject that a request is counted under, and the rule that counts it.
#[derive(Clone, Copy)]
pub(super) struct CountedUnder<'a> {
    subject: &'a Subject,
    pub(super) rule: Option<&'a str>,
}

impl<'a> Reason<'a> {
    pub(super) fn new(reason: DenialReason<'a>, governing: GoverningLimit) -> Self {
        let (decision, counted) = match reason {
            DenialReason::Decision { decision, subject, rule } => {
                (decision, CountedUnder { subject, rule })
            }
            DenialReason::MissingKey => return Self::MissingKey,
            DenialReason::AmbiguousKey => return Self::AmbiguousKey,
        };
        match decision.governing(governing) {
            None if decision.denying_part().is_some() => Self::OverUndisclosedLimit { decision },
            None => Self::Undecided { decision },
            Some(limit) if limit.max() == 0 => Self::Blocked { decision, counted },
            Some(governing) if governing.retry_after() == RetryAfter::Never => {
                Self::TooCostly { decision, governing, counted }
            }
            Some(governing) => Self::OverLimit { decision, governing, counted },
        }
    }

    /// Returns the HTTP status.
    pub(super) const fn status(self) -> u16 {
        match self {
            Self::Blocked { .. }
            | Self::TooCostly { .. }
            | Self::OverLimit { .. }
            | Self::OverUndisclosedLimit { .. } => 429,
            Self::Undecided { .. } => 503,
            Self::MissingKey => 403,
            Self::AmbiguousKey => 400,
        }
    }

    /// Returns the reason phrase of the HTTP status.
    pub(super) const fn phrase(self) -> &'static str {
        match self.status() {
            429 => "Too Many Requests",
            503 => "Service Unavailable",
            403 => "Forbidden",
            _ => "Bad Request",
        }
    }

    /// Returns the decision. There is none if the key is missing or ambiguous.
    pub(super) const fn decision(self) -> Option<&'a Decision> {
        match self {
            Self::Blocked { decision, .. }
            | Self::TooCostly { decision, .. }
            | Self::OverLimit { decision, .. }
            | Self::OverUndisclosedLimit { decision }
            | Self::Undecided { decision } => Some(decision),
            Self::MissingKey | Self::AmbiguousKey => None,
        }
    }

    /// Returns the decision if a limit that clients may know denies the request.
    pub(super) const fn over_limit(self) -> Option<&'a Decision> {
        match self {
            Self::Undecided { .. } | Self::OverUndisclosedLimit { .. } => None,
            _ => self.decision(),
        }
    }

    /// Returns the rule that denies the request, if clients may know it.
    pub(super) const fn rule(self) -> Option<&'a str> {
        match self {
            Self::Blocked { counted, .. }
            | Self::TooCostly { counted, .. }
            | Self::OverLimit { counted, .. } => counted.rule,
            Self::OverUndisclosedLimit { .. }
            | Self::Undecided { .. }
            | Self::MissingKey
            | Self::AmbiguousKey => None,
        }
    }

    /// Returns whether problem details need a `detail`, because the message says more than their
    /// other members.
    pub(super) fn has_detail(self) -> bool {
        match self {
            Self::Blocked { .. } | Self::TooCostly { .. } => true,
            Self::OverLimit { governing, .. } => governing.limit().unit() != "requests",
            Self::OverUndisclosedLimit { .. }
            | Self::Undecided { .. }
            | Self::MissingKey
            | Self::AmbiguousKey => false,
        }
    }

    /// Appends a sentence for people.
    ///
    /// `id` writes the id of a consumer, which may need escaping. If it is `None`, the text does
    /// not name consumers.
    pub(super) fn push_to(self, text: &mut String, id: Option<PushId>) {
        text.push_str(self.phrase());
        match self {
            Self::Blocked { counted: CountedUnder { subject, rule }, .. } => {
                let is_identified = subject.realm().is_identified();
                text.push_str(if is_identified { ". This Consumer" } else { ". Anonymous access" });
                text.push_str(" is blocked");
                push_id(text, subject, id);
                push_rule(text, rule);
            }
            Self::TooCostly { decision, governing, counted } => {
                let limit = governing.limit();
                text.push_str(". This request asks for ");
                text.push_str(itoa::Buffer::new().format(decision.cost().units()));
                text.push(' ');
                text.push_str(limit.unit());
                text.push_str(", and we only allow ");
                text.push_str(itoa::Buffer::new().format(limit.capacity()));
                text.push_str(" at once");
                push_for(text, counted, id);
            }
            Self::OverLimit { governing, counted, .. } => {
                let limit = governing.limit();
                text.push_str(". We only allow ");
                push_quota(text, limit);
                push_for(text, counted, id);
            }
            Self::OverUndisclosedLimit { .. } => {
                text.push_str(". The service receives too many requests at the moment");
            }
            Self::Undecided { .. } => {
                text.push_str(". The rate limiter cannot decide at the moment");
            }
            Self::MissingKey => text.push_str(". No rate limit key was found in the request"),
            Self::AmbiguousKey => {
                text.push_str(
                    ". The credential is given more than once, or cannot be read in one way only",
                );
            }
        }
        text.push('.');
    }
}

/// A function that appends the id of a consumer, with unprintable characters replaced.
pub(super) type PushId = fn(&mut String, &str);

/// Appends an id to plain text.
pub(super) fn push_plain(text: &mut String, id: &str) {
    text.extend(id.chars().map(printable));
}

/// Appends an id to a JSON string.
pub(super) fn push_json(text: &mut String, id: &str) {
    let clean: String = id.chars().map(printable).collect();
    json::push_escaped(text, &clean);
}

/// Replaces a control character, or one that changes the direction of text.
fn printable(character: char) -> char {
    let is_direction = matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if character.is_control() || is_direction { char::REPLACEMENT_CHARACTER } else { character }
}

/// Appends ` for this Consumer` or ` for anonymous access`, and the name of the rule.
fn push_for(
    text: &mut String,
    CountedUnder { subject, rule }: CountedUnder<'_>,
    id: Option<PushId>,
) {
    text.push_str(match subject.realm() {
        Realm::Global if rule.is_some() => " for all clients together",
        realm if realm.is_identified() => " for this Consumer",
        _ => " for anonymous access",
    });
    push_id(text, subject, id);
    push_rule(text, rule);
}

/// Appends ` under the rule login`. The name of a rule needs no escaping.
fn push_rule(text: &mut String, rule: Option<&str>) {
    if let Some(rule) = rule {
        text.push_str(" under the rule ");
        text.push_str(rule);
    }
}

/// Appends ` (consumer_id: abc123)` for a consumer whose id is known.
fn push_id(text: &mut String, subject: &Subject, push: Option<PushId>) {
    let id = subject.owner().id().as_text().filter(|_| *subject.realm() == Realm::Consumer);
    if let (Some(push), Some(id)) = (push, id) {
        text.push_str(" (consumer_id: ");
        push(text, id);
        text.push(')');
    }
}

/// Appends the quota of a limit: `100 requests per minute`, `20 requests at the same time`.
pub(super) fn push_quota(text: &mut String, limit: Limit) {
    text.push_str(itoa::Buffer::new().format(limit.max()));
    text.push(' ');
    text.push_str(limit.unit());
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
