//! The message for people in the body of a denial.

use super::json;
use super::response::DenialReason;
use crate::decision::{Decision, GoverningLimit, LimitStatus, RetryAfter};
use crate::model::{Algorithm, Cost, Limit, Period, Realm, Subject};

/// A [`DenialReason`], and the limit that its message names.
#[derive(Clone, Copy)]
pub(super) struct Reason<'a> {
    pub(super) kind: DenialKind,
    /// The decision. There is none if the key is missing or ambiguous, or
    /// if the address is unknown.
    pub(super) decision: Option<&'a Decision>,
    /// The limit that denies the request, if clients may know it.
    pub(super) over: Option<DenyingLimit<'a>>,
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
    /// The address of the client is unknown.
    UnknownAddress,
}

/// The limit that denies a request, the subject that the request is counted under, and the rule
/// that counts it.
#[derive(Clone, Copy)]
pub(super) struct DenyingLimit<'a> {
    governing: LimitStatus<'a>,
    subject: &'a Subject,
    rule: Option<&'a str>,
}

impl DenyingLimit<'_> {
    /// Returns whether the limit is 0. Only the end of a block or an operator can change that.
    fn is_block(&self) -> bool {
        self.governing.max() == 0
    }

    /// Returns whether the limit can never grant the cost.
    fn is_too_costly(&self) -> bool {
        self.governing.retry_after() == RetryAfter::Never
    }
}

impl<'a> Reason<'a> {
    pub(super) fn new(reason: DenialReason<'a>, governing: GoverningLimit) -> Self {
        let (kind, over) = match reason {
            DenialReason::MissingKey => (DenialKind::MissingKey, None),
            DenialReason::AmbiguousKey => (DenialKind::AmbiguousKey, None),
            DenialReason::UnknownAddress => (DenialKind::UnknownAddress, None),
            DenialReason::Decision { decision, subject, rule } => {
                match decision.governing(governing) {
                    Some(governing) => {
                        (DenialKind::OverLimit, Some(DenyingLimit { governing, subject, rule }))
                    }
                    None if decision.denying_part().is_some() => {
                        (DenialKind::OverUndisclosedLimit, None)
                    }
                    None => (DenialKind::Undecided, None),
                }
            }
        };
        Self { kind, decision: reason.decision(), over }
    }

    /// Returns the HTTP status.
    pub(super) const fn status(self) -> u16 {
        match self.kind {
            DenialKind::OverLimit | DenialKind::OverUndisclosedLimit => 429,
            DenialKind::Undecided => 503,
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

    /// Returns the limits that deny the request, if clients may know them: the name of each, after
    /// that of its rule.
    pub(super) fn violated(self) -> impl Iterator<Item = (String, Limit)> {
        let known = self.decision.zip(self.over).into_iter();
        known.flat_map(|(decision, DenyingLimit { rule, .. })| {
            let over = decision.enforced().filter(|limit| limit.is_over());
            over.map(move |limit| {
                let name =
                    rule.map_or(limit.name().to_owned(), |rule| format!("{rule}/{}", limit.name()));
                (name, limit.limit())
            })
        })
    }

    /// Returns whether problem details need a `detail`, because the message says more than their
    /// other members.
    pub(super) fn has_detail(self) -> bool {
        self.over.is_some_and(|over| {
            let has_unit = over.governing.limit().unit() != "requests";
            has_unit || over.is_block() || over.is_too_costly()
        })
    }

    /// Appends a sentence for people.
    ///
    /// `id` writes the id of a consumer, which may need escaping. If it is `None`, the text does
    /// not name consumers.
    pub(super) fn push_to(self, text: &mut String, id: Option<PushId>) {
        text.push_str(self.phrase());
        text.push_str(match self.kind {
            DenialKind::OverLimit => ". ",
            DenialKind::OverUndisclosedLimit => {
                ". The service receives too many requests at the moment"
            }
            DenialKind::Undecided => ". The rate limiter cannot decide at the moment",
            DenialKind::MissingKey => ". No rate limit key was found in the request",
            DenialKind::AmbiguousKey => {
                ". The credential is given more than once, or cannot be read in one way only"
            }
            DenialKind::UnknownAddress => ". The service does not know the address of its client",
        });
        if let (Some(over), Some(decision)) = (self.over, self.decision) {
            over.push_to(text, decision.cost(), id);
        }
        text.push('.');
    }
}

impl DenyingLimit<'_> {
    fn push_to(self, text: &mut String, cost: Cost, id: Option<PushId>) {
        let Self { subject, rule, .. } = self;
        let limit = self.governing.limit();
        if self.is_block() {
            let is_identified = subject.realm().is_identified();
            text.push_str(if is_identified { "This Consumer" } else { "Anonymous access" });
            text.push_str(" is blocked");
        } else {
            if self.is_too_costly() {
                text.push_str("This request asks for ");
                text.push_str(itoa::Buffer::new().format(cost.units()));
                text.push(' ');
                text.push_str(limit.unit());
                text.push_str(", and we only allow ");
                text.push_str(itoa::Buffer::new().format(limit.capacity()));
                text.push_str(" at once");
            } else {
                text.push_str("We only allow ");
                push_quota(text, limit);
            }
            text.push_str(match subject.realm() {
                Realm::Global if rule.is_some() => " for all clients together",
                realm if realm.is_identified() => " for this Consumer",
                _ => " for anonymous access",
            });
        }
        push_id(text, subject, id);
        if let Some(rule) = rule {
            text.push_str(" under the rule ");
            text.push_str(rule);
        }
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
