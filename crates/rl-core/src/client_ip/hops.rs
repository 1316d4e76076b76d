//! Reads the hops of `X-Forwarded-For` and `Forwarded`, beginning with the one nearest to this
//! service.
//!
//! Each proxy appends its peer. The nearest hop is therefore at the right end of the last line.

use std::net::IpAddr;

use super::address;

/// The maximum number of bytes of a header that are read.
pub(super) const MAX_LEN: usize = 64 * 1_024;

/// Iterates over the entries of a header from right to left: the entry of the nearest proxy comes
/// first. It reads at most [`MAX_LEN`] bytes.
///
/// A client can add entries only on the left. But a proxy may copy the client's `Host` into its own
/// entry of `Forwarded`. The bound is longer than the headers that such proxies accept, so it hides
/// no entry of a proxy.
pub(super) struct Entries<'a> {
    lines: std::slice::Iter<'a, &'a [u8]>,
    /// The unread part of a line.
    rest: Option<&'a [u8]>,
    /// Whether a comma in quotes is part of an entry, as in `Forwarded`.
    is_quoted: bool,
    budget: usize,
}

impl<'a> Entries<'a> {
    pub(super) fn new(lines: &'a [&'a [u8]], is_quoted: bool) -> Self {
        Self { lines: lines.iter(), rest: None, is_quoted, budget: MAX_LEN }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let line = match self.rest.take() {
            Some(rest) => rest,
            None => self.lines.next_back()?,
        };
        // An entry longer than the budget ends the iteration, so only the end of the line is
        // searched for a comma.
        let unread = line.len().saturating_sub(self.budget + 1);
        let comma = last_comma(&line[unread..], self.is_quoted).map(|comma| unread + comma);
        let entry = &line[comma.map_or(0, |comma| comma + 1)..];
        self.budget = self.budget.checked_sub(entry.len() + 1)?;
        self.rest = comma.map(|comma| &line[..comma]);
        Some(entry)
    }
}

/// Returns the position of the last comma that separates two entries.
///
/// The search starts on the right. A quote that the client left open therefore cannot enclose the
/// entries that proxies appended.
fn last_comma(line: &[u8], quoted: bool) -> Option<usize> {
    let mut inside = false;
    (0..line.len()).rev().find(|at| match line[*at] {
        b'"' if quoted => {
            let backslashes = line[..*at].iter().rev().take_while(|b| **b == b'\\').count();
            inside ^= backslashes % 2 == 0;
            false
        }
        b',' => !inside,
        _ => false,
    })
}

/// Returns the address in the parameter `for` of an element of `Forwarded`:
/// `for=192.0.2.60;proto=http`.
///
/// Returns `None` if the parameter is missing, occurs twice or is not an address. Proxies may also
/// write `unknown` or an obfuscated name.
pub(super) fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    for pair in parameters(element) {
        let Some(equals) = pair.iter().position(|b| *b == b'=') else {
            continue;
        };
        if pair[..equals].trim_ascii().eq_ignore_ascii_case(b"for")
            && found.replace(&pair[equals + 1..]).is_some()
        {
            return None;
        }
    }
    address::parse(found?)
}

/// Splits an element into its parameters.
///
/// Semicolons in quotes do not separate parameters: a proxy copies `host` from the request, so the
/// client controls its value.
fn parameters(element: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut inside = false;
    let mut escaped = false;
    element.split(move |b| {
        match b {
            _ if escaped => escaped = false,
            b'\\' => escaped = inside,
            b'"' => inside = !inside,
            b';' => return !inside,
            _ => {}
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split<'a>(lines: &'a [&'a [u8]], quoted: bool) -> Vec<&'a str> {
        Entries::new(lines, quoted).map(|entry| std::str::from_utf8(entry).unwrap()).collect()
    }

    #[test]
    fn entries_come_from_the_right_of_the_last_line() {
        assert_eq!(split(&[b"a, b", b"c"], false), ["c", " b", "a"]);
        assert_eq!(split(&[b"", b","], false), ["", "", ""]);
        assert_eq!(split(&[], false), [""; 0]);
    }

    #[test]
    fn entries_end_when_the_budget_of_bytes_is_used_up() {
        let near = "a".repeat(MAX_LEN - 3);
        let line = |far: &str| format!("{far},{near}");
        assert_eq!(split(&[line("b").as_bytes()], false), [near.as_str(), "b"]);
        assert_eq!(split(&[line("bc").as_bytes()], false), [near.as_str()]);
        assert_eq!(split(&[b"b", near.as_bytes()], false), [near.as_str(), "b"]);
        assert_eq!(split(&[b"bc", near.as_bytes()], false), [near.as_str()]);
        assert_eq!(split(&[line(&"b,".repeat(90_000)).as_bytes(), b"cc"], false), ["cc"]);
        assert_eq!(split(&[&vec![b'a'; 90_000]], true), [""; 0]);
    }

    #[test]
    fn commas_in_quotes_do_not_separate() {
        assert_eq!(split(&[br#"for=a;x="1,2", for=b"#], true), [" for=b", r#"for=a;x="1,2""#]);
        assert_eq!(split(&[br#"x="1\",2", y="\\""#], true), [r#" y="\\""#, r#"x="1\",2""#]);
        // An unterminated quote.
        assert_eq!(split(&[br#"for="a, for=b"#], true), [" for=b", r#"for="a"#]);
    }

    #[test]
    #[rustfmt::skip]
    fn parameters_of_an_element() {
        let cases = [
            ("for=192.0.2.60;proto=http;by=203.0.113.43", Some("192.0.2.60")),
            ("proto=http; FOR = \"[2001:db8::1]:4711\"",  Some("2001:db8::1")),
            ("for=unknown",                               None),
            ("for=_hidden",                               None),
            ("by=192.0.2.60",                             None),
            ("for=192.0.2.60;for=192.0.2.61",             None),
            ("for=192.0.2.60;host=\"a;for=192.0.2.61\"",  Some("192.0.2.60")),
            ("host=\"\\\";for=192.0.2.61\";for=192.0.2.60", Some("192.0.2.60")),
            ("for",                                       None),
            ("for=",                                      None),
            ("",                                          None),
        ];
        for (element, expected) in cases {
            let expected = expected.map(|address| address.parse().unwrap());
            assert_eq!(forwarded_for(element.as_bytes()), expected, "{element}");
        }
    }
}
