//! Reads credentials from the places of a request where clients put them.
//!
//! A service behind the limiter may decode encodings, so they are decoded here too. Otherwise one
//! key, encoded in several ways, would be several subjects, each with its own quota.
//!
//! A text that only some services accept is ambiguous. It must count neither as another subject nor
//! as a missing key.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use super::{AmbiguousKey, MAX_VALUE_LEN, RequestInfo};
use crate::client_ip::is_token_byte;

/// Returns the value of the header called `name`.
pub(super) fn header<'a>(
    request: &'a dyn RequestInfo,
    name: &str,
) -> Result<Option<&'a [u8]>, AmbiguousKey> {
    request.only_header(name)?.map_or(Ok(None), one_word)
}

/// Returns the token in `Authorization: SCHEME …`; the scheme is compared without regard to case.
pub(super) fn token<'a>(
    request: &'a dyn RequestInfo,
    scheme: &str,
) -> Result<Option<&'a [u8]>, AmbiguousKey> {
    let Some(value) = request.only_header("authorization")? else { return Ok(None) };
    let after_scheme = |text: &'a [u8]| {
        let (start, rest) = text.split_at_checked(scheme.len())?;
        // The scheme must end here: `Bearers x` has another scheme. `Bearer:x` is ambiguous,
        // because parsers disagree about it.
        let is_whole = rest.first().is_none_or(|b| !is_token_byte(*b));
        (is_whole && start.eq_ignore_ascii_case(scheme.as_bytes())).then_some(rest)
    };
    match after_scheme(value) {
        Some([]) => Ok(None),
        Some(rest @ [b' ', ..]) => {
            let spaces = rest.iter().take_while(|b| **b == b' ').count();
            one_word(&rest[spaces..])
        }
        Some(_) => Err(AmbiguousKey),
        // A proxy may have joined two header lines, as in `Basic x, Bearer y`.
        None => {
            let mut joined = value.split(|b| *b == b',').skip(1);
            let is_joined = joined.any(|part| after_scheme(part.trim_ascii_start()).is_some());
            if is_joined { Err(AmbiguousKey) } else { Ok(None) }
        }
    }
}

/// Returns the value of the query parameter called `name`.
pub(super) fn parameter<'a>(
    request: &'a dyn RequestInfo,
    name: &str,
) -> Result<Option<Cow<'a, [u8]>>, AmbiguousKey> {
    let mut only = SingleValue::default();
    // Some parsers split parameters at semicolons too. If they would find another value, the key is
    // ambiguous.
    for pair in request.query().unwrap_or_default().as_bytes().split(|b| *b == b'&') {
        only.read(pair, b';', |key| compare_names(&form_decode(key), name));
    }
    only.value()?.map_or(Ok(None), |value| decoded(form_decode(value)))
}

/// Returns the value of the cookie called `name`. Reads all lines, because HTTP/2 may split the
/// header.
pub(super) fn cookie<'a>(
    request: &'a dyn RequestInfo,
    name: &str,
) -> Result<Option<Cow<'a, [u8]>>, AmbiguousKey> {
    let mut only = SingleValue::default();
    request.header_lines("cookie", &mut |line| {
        // Some old parsers split cookies at commas too. If they would find another value, the key
        // is ambiguous.
        for pair in line.split(|b| *b == b';') {
            let compare =
                |key: &[u8]| compare_names(&Cow::from(percent_decode(key.trim_ascii())), name);
            only.read(pair, b',', compare);
        }
    });
    let Some(value) = only.value()?.map(<[u8]>::trim_ascii) else { return Ok(None) };
    let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
    let value = unquoted.unwrap_or(value);
    if value.contains(&b'"') {
        return Err(AmbiguousKey);
    }
    decoded(percent_decode(value).into())
}

/// Returns `value` if it is one word of visible ASCII without a comma.
///
/// All parsers take such a word for the same key. Other values are ambiguous: some parsers trim
/// them, cut them at spaces, split them at commas, or reject other bytes.
fn one_word<V: AsRef<[u8]>>(value: V) -> Result<Option<V>, AmbiguousKey> {
    match value.as_ref() {
        [] => Ok(None),
        word if word.len() > MAX_VALUE_LEN => Err(AmbiguousKey),
        word if word.iter().any(|b| !b.is_ascii_graphic() || *b == b',') => Err(AmbiguousKey),
        _ => Ok(Some(value)),
    }
}

/// Checks a value that was decoded once. A remaining percent sign is ambiguous, because parsers
/// that decode twice would decode it as an escape.
fn decoded(value: Cow<'_, [u8]>) -> Result<Option<Cow<'_, [u8]>>, AmbiguousKey> {
    if value.contains(&b'%') { Err(AmbiguousKey) } else { one_word(value) }
}

/// The result of comparing the name of a parameter or cookie with the expected one.
enum NameMatch {
    Exact,
    /// Equal only for a parser that trims names, ignores case or decodes twice.
    Similar,
    Different,
}

/// Returns whether the names are equal for a parser that trims names, ignores case or decodes
/// twice.
fn is_similar(given: &[u8], name: &[u8]) -> bool {
    let is_equal = |given: &[u8]| given.trim_ascii().eq_ignore_ascii_case(name);
    is_equal(given) || given.contains(&b'%') && is_equal(&Cow::from(percent_decode(given)))
}

fn compare_names(given: &[u8], name: &str) -> NameMatch {
    let name = name.as_bytes();
    if given == name {
        NameMatch::Exact
    } else if is_similar(given, name) {
        NameMatch::Similar
    } else {
        NameMatch::Different
    }
}

/// Collects a value that must occur exactly once.
#[derive(Default)]
struct SingleValue<'a> {
    value: Option<&'a [u8]>,
    is_ambiguous: bool,
}

impl<'a> SingleValue<'a> {
    /// Reads a pair `name=value`, which some parsers would split further at `separator`.
    fn read(&mut self, pair: &'a [u8], separator: u8, compare: impl Fn(&[u8]) -> NameMatch) {
        let (key, value) = split_pair(pair);
        match compare(key) {
            NameMatch::Exact => {
                let is_second = self.value.replace(value).is_some();
                self.is_ambiguous |= is_second || value.contains(&separator);
            }
            NameMatch::Similar => self.is_ambiguous = true,
            NameMatch::Different => {
                let is_named = |part| !matches!(compare(split_pair(part).0), NameMatch::Different);
                self.is_ambiguous |=
                    pair.contains(&separator) && pair.split(|b| *b == separator).any(is_named);
            }
        }
    }

    fn value(self) -> Result<Option<&'a [u8]>, AmbiguousKey> {
        if self.is_ambiguous { Err(AmbiguousKey) } else { Ok(self.value) }
    }
}

/// Splits a pair at the first `=`.
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
