//! Where clients put their credentials. What is there twice counts as missing.
//!
//! What the service behind us may decode is decoded here too: else one key, written in many ways,
//! would be many subjects, with a quota each.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use super::RequestInfo;

/// The token in `Authorization: Bearer …`.
pub(super) fn bearer(request: &dyn RequestInfo) -> Option<&[u8]> {
    let value = request.only_header("authorization")?;
    let (scheme, token) = value.split_at(value.iter().position(|b| *b == b' ')?);
    scheme.eq_ignore_ascii_case(b"bearer").then(|| token.trim_ascii())
}

/// The value of the query parameter called `name`.
pub(super) fn parameter<'a>(request: &'a dyn RequestInfo, name: &str) -> Option<Cow<'a, [u8]>> {
    let mut only = Only::default();
    for pair in request.query()?.as_bytes().split(|b| *b == b'&') {
        let (key, value) = split_pair(pair);
        if *form_decode(key) == *name.as_bytes() {
            only.found(value);
        }
    }
    only.value().map(form_decode)
}

/// The value of the cookie called `name`, over all lines: HTTP/2 may split them.
pub(super) fn cookie<'a>(request: &'a dyn RequestInfo, name: &str) -> Option<Cow<'a, [u8]>> {
    let mut only = Only::default();
    request.header_lines("cookie", &mut |line| {
        for pair in line.split(|b| *b == b';') {
            let (key, value) = split_pair(pair);
            if *Cow::from(percent_decode(key.trim_ascii())) == *name.as_bytes() {
                only.found(value.trim_ascii());
            }
        }
    });
    let value = only.value()?;
    let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
    Some(percent_decode(unquoted.unwrap_or(value)).into())
}

/// A value that there must be once.
#[derive(Default)]
struct Only<'a> {
    first: Option<&'a [u8]>,
    twice: bool,
}

impl<'a> Only<'a> {
    fn found(&mut self, value: &'a [u8]) {
        self.twice |= self.first.replace(value).is_some();
    }

    fn value(self) -> Option<&'a [u8]> {
        self.first.filter(|_| !self.twice)
    }
}

/// What is to the left and to the right of the first `=`.
fn split_pair(pair: &[u8]) -> (&[u8], &[u8]) {
    match pair.iter().position(|b| *b == b'=') {
        Some(equals) => (&pair[..equals], &pair[equals + 1..]),
        None => (pair, b""),
    }
}

fn form_decode(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'+') {
        return percent_decode(text).into();
    }
    let spaced: Vec<u8> = text.iter().map(|b| if *b == b'+' { b' ' } else { *b }).collect();
    Cow::Owned(percent_decode(&spaced).collect())
}
