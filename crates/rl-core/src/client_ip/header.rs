use std::fmt;

/// The header that names the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProxyHeader {
    /// `X-Forwarded-For`: a list of addresses.
    XForwardedFor,
    /// `Forwarded` (RFC 7239): a list of elements with a parameter `for`.
    Forwarded,
    /// A header with one address.
    Single(Box<str>),
}

impl ProxyHeader {
    /// Returns the name, in lower case.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
            Self::Single(name) => name,
        }
    }
}

/// Returns whether `b` is valid in a token, such as the name of a header, a method or a scheme.
pub(crate) const fn is_token_byte(b: u8) -> bool {
    matches!(b, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'..=b'`' | b'|' | b'~')
        || b.is_ascii_alphanumeric()
}

/// Returns `name` in lower case.
///
/// # Errors
///
/// Returns an error if `name` is not a valid header name.
pub(crate) fn header_name(name: &str) -> Result<Box<str>, InvalidHeaderName> {
    if name.is_empty() || !name.bytes().all(is_token_byte) {
        return Err(InvalidHeaderName { name: name.chars().take(64).collect() });
    }
    Ok(name.to_ascii_lowercase().into())
}

/// The error for an invalid header name.
#[derive(Clone, PartialEq, Eq)]
pub struct InvalidHeaderName {
    name: String,
}

debug_as_display!(InvalidHeaderName);

impl fmt::Display for InvalidHeaderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "header name {:?}: expected one or more letters, digits and !#$%&'*+-.^_`|~",
            self.name
        )
    }
}

impl std::error::Error for InvalidHeaderName {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_bytes_are_those_of_rfc_9110() {
        for b in 0..=255_u8 {
            let is_one = b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
            assert_eq!(is_token_byte(b), is_one, "{}", b.escape_ascii());
        }
    }

    #[test]
    fn names_are_checked_and_lowered() {
        assert_eq!(&*header_name("X-Real-IP").unwrap(), "x-real-ip");
        for name in ["", "x real ip", "x-real-ip:", "x-rëal-ip", "a\r\nb"] {
            let error = header_name(name).unwrap_err();
            assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
        }
        assert!(header_name(&" ".repeat(10_000)).unwrap_err().to_string().len() < 200);
    }
}
