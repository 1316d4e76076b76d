//! The prefix that a nested router of axum has removed from the path.

use std::borrow::Cow;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::extract::{FromRequestParts, RawPathParams};
use http::{Extensions, Request};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The characters that are encoded in a segment of a path: all but the unreserved ones of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Puts the values of the request in place of the parameters of a pattern such as `/{tenant}`.
///
/// The pattern alone does not show which path the router has seen, because a middleware may have
/// rewritten it. A value that is not UTF-8 stays a parameter: it equals no literal of a rule.
pub(crate) fn with_values<'a>(pattern: &'a str, extensions: &Extensions) -> Cow<'a, str> {
    if !pattern.contains('{') {
        return Cow::Borrowed(pattern);
    }
    let Some(values) = values(extensions) else { return Cow::Borrowed(pattern) };
    let mut filled = String::new();
    let mut rest = pattern;
    while let Some((before, (name, after))) =
        rest.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    {
        filled.push_str(before);
        match values.iter().find(|(known, _)| *known == name) {
            Some((_, value)) => filled.extend(utf8_percent_encode(value, ENCODED)),
            None => filled.extend(["{", name, "}"]),
        }
        rest = after;
    }
    filled.push_str(rest);
    Cow::Owned(filled)
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
