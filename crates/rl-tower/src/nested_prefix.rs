//! The prefix that a nested router of axum has removed from the path.

use std::borrow::Cow;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::extract::{FromRequestParts, RawPathParams};
use http::{Extensions, Request};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rl_core::key::NestedPrefix;

/// The characters that are encoded in a segment of a path: all but the unreserved ones of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Puts the values of the request in place of the parameters of a pattern such as `/{tenant}`.
///
/// The pattern alone does not show which path the router has seen, because a middleware may have
/// rewritten it. The prefix is unknown if a value is not UTF-8, or if two routers have a parameter
/// of the same name: axum then lists both values, and does not say whose they are.
pub(crate) fn with_values<'a>(pattern: &'a str, extensions: &Extensions) -> NestedPrefix<'a> {
    let pattern = pattern.trim_end_matches('/');
    if !pattern.contains('{') {
        return NestedPrefix::Removed(Cow::Borrowed(pattern));
    }
    let Some(filled) = values(extensions).and_then(|values| fill(pattern, &values)) else {
        return NestedPrefix::Unknown;
    };
    let is_removed = pattern.split('/').all(|segment| {
        !segment.contains('{') || segment.starts_with('{') && segment.ends_with('}')
    });
    let prefix = Cow::Owned(filled);
    if is_removed { NestedPrefix::Removed(prefix) } else { NestedPrefix::PartlyRemoved(prefix) }
}

/// Returns `None` if the value of a parameter is missing or ambiguous.
fn fill(pattern: &str, values: &RawPathParams) -> Option<String> {
    let mut filled = String::new();
    let mut rest = pattern;
    while let Some((before, (name, after))) =
        rest.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    {
        let mut known = values.iter().filter(|(known, _)| *known == name);
        let (Some((_, value)), None) = (known.next(), known.next()) else { return None };
        filled.push_str(before);
        filled.extend(utf8_percent_encode(value, ENCODED));
        rest = after;
    }
    filled.push_str(rest);
    Some(filled)
}

/// Returns the values of the parameters of the route that matched.
///
/// axum gives them only to an extractor, which needs a request of its own to read them from.
fn values(extensions: &Extensions) -> Option<RawPathParams> {
    let mut request = Request::new(());
    request.extensions_mut().clone_from(extensions);
    let (mut parts, ()) = request.into_parts();
    let extract = pin!(RawPathParams::from_request_parts(&mut parts, &()));
    match extract.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(values) => values.ok(),
        Poll::Pending => None,
    }
}
