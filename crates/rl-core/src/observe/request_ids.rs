//! The ids of a request in log lines. Clients choose them, so they are bounded.

use std::fmt;

use arrayvec::ArrayString;

/// The largest number of bytes of a request id in a log line.
const MAX_REQUEST_ID: usize = 64;

/// The ids that connect a request with the log lines of other services.
///
/// They come from the headers `x-request-id` and `traceparent`, which a client may invent. A
/// request id is cut off after 64 bytes, and characters other than letters, digits and `-_.:/+=@`
/// are replaced by `?`. So a client cannot add lines or fields to the log. An invalid `traceparent`
/// is ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestIds {
    pub(crate) request: Option<Id<MAX_REQUEST_ID>>,
    /// The id of the trace, in hexadecimal digits.
    pub(crate) trace: Option<Id<32>>,
    /// The id of the span that has sent the request.
    pub(crate) parent: Option<Id<16>>,
}

/// An id of at most `N` bytes, without control characters and quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Id<const N: usize>(ArrayString<N>);

impl<const N: usize> fmt::Display for Id<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl RequestIds {
    /// Reads the ids. `header` returns the value of the header with a given name in lower case.
    pub(crate) fn read<'a>(header: impl Fn(&str) -> Option<&'a [u8]>) -> Self {
        let context = header("traceparent").and_then(trace_context);
        Self {
            request: header("x-request-id").and_then(request_id),
            trace: context.as_ref().map(|(trace, _)| trace.clone()),
            parent: context.map(|(_, parent)| parent),
        }
    }
}

fn request_id(value: &[u8]) -> Option<Id<MAX_REQUEST_ID>> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(&byte);
    let mut id = ArrayString::new();
    for byte in value.iter().take(MAX_REQUEST_ID) {
        id.push(if is_plain(*byte) { char::from(*byte) } else { '?' });
    }
    (!id.is_empty()).then_some(Id(id))
}

/// Reads a `traceparent` of the W3C: `00-TRACE-PARENT-FLAGS`. Later versions may have more fields.
fn trace_context(value: &[u8]) -> Option<(Id<32>, Id<16>)> {
    let mut fields = value.split(|byte| *byte == b'-');
    let (version, trace, parent, flags) =
        (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let is_version = is_hex(version, 2) && version != b"ff";
    let ends = version != b"00" || fields.next().is_none();
    let is_valid = is_version && ends && is_hex(flags, 2);
    if is_valid { Some((hex_id(trace)?, hex_id(parent)?)) } else { None }
}

fn is_hex(digits: &[u8], count: usize) -> bool {
    let is_digit = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    digits.len() == count && digits.iter().all(is_digit)
}

/// Reads an id of `N` hexadecimal digits that are not all 0.
fn hex_id<const N: usize>(digits: &[u8]) -> Option<Id<N>> {
    let is_id = is_hex(digits, N) && digits.iter().any(|digit| *digit != b'0');
    let text = std::str::from_utf8(digits).ok().filter(|_| is_id)?;
    ArrayString::from(text).ok().map(Id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    fn read(request_id: &[u8], traceparent: &[u8]) -> [Option<String>; 3] {
        let ids = RequestIds::read(|name| match name {
            "x-request-id" => Some(request_id),
            "traceparent" => Some(traceparent),
            _ => None,
        });
        let text = |id: Option<&dyn fmt::Display>| id.map(ToString::to_string);
        [
            text(ids.request.as_ref().map(|id| id as _)),
            text(ids.trace.as_ref().map(|id| id as _)),
            text(ids.parent.as_ref().map(|id| id as _)),
        ]
    }

    #[test]
    fn a_request_id_is_cut_off_and_has_no_character_that_ends_a_line_or_a_field() {
        let request = |id: &[u8]| read(id, b"")[0].clone();
        assert_eq!(request(b"0190-ab_C.d:e/f+g=@"), Some("0190-ab_C.d:e/f+g=@".to_owned()));
        assert_eq!(request(b""), None);
        assert_eq!(request(b"a\"b c\nd\x1b[31m\xff\\"), Some("a?b?c?d??31m??".to_owned()));
        assert_eq!(request(&[b'x'; 100_000]), Some("x".repeat(64)));
        let long = "\u{fc}".repeat(100);
        assert_eq!(request(long.as_bytes()), Some("?".repeat(64)));
    }

    #[test]
    fn a_trace_context_is_read_as_the_w3c_defines_it() {
        let context = |value: String| {
            let [_, trace, parent] = read(b"", value.as_bytes());
            trace.zip(parent)
        };
        let found = Some((TRACE.to_owned(), PARENT.to_owned()));
        assert_eq!(context(format!("00-{TRACE}-{PARENT}-01")), found);
        assert_eq!(context(format!("cc-{TRACE}-{PARENT}-01-more")), found, "a later version");
        let (upper, zeros) = (TRACE.to_uppercase(), "0".repeat(32));
        let invalid = [
            String::new(),
            "-".repeat(55),
            format!("00-{TRACE}-{PARENT}"),
            format!("00-{TRACE}-{PARENT}-01-more"),
            format!("ff-{TRACE}-{PARENT}-01"),
            format!("00-{upper}-{PARENT}-01"),
            format!("00-{zeros}-{PARENT}-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{TRACE}0-{PARENT}-01"),
            format!("00-{TRACE}-{PARENT}-0x"),
            "x".repeat(100_000),
        ];
        for value in invalid {
            assert_eq!(context(value.clone()), None, "{value}");
        }
    }
}
