//! The messages of the Open Bank Project.

use super::json;
use super::words::{
    DenialKind, DenyingLimit, Explanation, is_block, is_too_costly, push_number, push_plural_quota,
};
use crate::model::{Realm, Subject};

/// A function that appends the id of a consumer, with unprintable characters replaced.
pub(super) type PushId = fn(&mut String, &str);

/// Appends a sentence for people, in the words of the Open Bank Project. It names the rule if
/// clients may read its name.
///
/// `id` writes the id of a consumer, which may need escaping. If it is `None`, the text does not
/// name consumers.
pub(super) fn push_message(reason: Explanation<'_>, text: &mut String, id: Option<PushId>) {
    text.push_str(reason.phrase());
    text.push_str(match reason.kind {
        DenialKind::OverLimit => ". ",
        DenialKind::OverUndisclosedLimit => {
            ". The service receives too many requests at the moment"
        }
        DenialKind::Undecided => ". The rate limiter cannot decide at the moment",
        DenialKind::MissingKey => ". The request has no rate limit key that the service knows",
        DenialKind::AmbiguousKey => {
            ". The credential is given more than once, or cannot be read in one way only"
        }
        DenialKind::TooManyRules => ". More rate limits match the request than can be applied",
        DenialKind::UnknownAddress => ". The service does not know the address of its client",
    });
    if let Some(over) = reason.disclosed_limit {
        push_limit(over, text, reason.cost(), id);
    }
    text.push('.');
}

fn push_limit(over: DenyingLimit<'_>, text: &mut String, cost: u64, id: Option<PushId>) {
    let DenyingLimit { governing, subject, has_rule } = over;
    let limit = governing.configured();
    if is_block(governing) {
        let is_identified = subject.realm().is_identified();
        text.push_str(if is_identified { "This Consumer" } else { "Anonymous access" });
        text.push_str(" is blocked");
    } else {
        if is_too_costly(governing) {
            text.push_str("This request asks for ");
            push_number(text, cost);
            text.push(' ');
            text.push_str(limit.unit());
            text.push_str(", and we only allow ");
            push_number(text, limit.capacity());
            text.push_str(" at once");
        } else {
            text.push_str("We only allow ");
            push_plural_quota(text, limit);
        }
        text.push_str(match subject.realm() {
            Realm::Global if has_rule => " for all clients together",
            realm if realm.is_identified() => " for this Consumer",
            _ => " for anonymous access",
        });
    }
    push_consumer_id(text, subject, id);
    if let Some(rule) = governing.disclosed_rule() {
        text.push_str(" under the rule ");
        text.push_str(rule);
    }
}

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
fn push_consumer_id(text: &mut String, subject: &Subject, push: Option<PushId>) {
    let id = subject.owner().id().as_text().filter(|_| *subject.realm() == Realm::Consumer);
    if let (Some(push), Some(id)) = (push, id) {
        text.push_str(" (consumer_id: ");
        push(text, id);
        text.push(')');
    }
}
