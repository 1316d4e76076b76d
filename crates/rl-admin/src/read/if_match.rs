use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;

use crate::ApiError;

/// Which revisions the client has seen: the `If-Match` of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IfMatch {
    /// It did not say.
    Absent,
    /// Whatever is there.
    Any,
    /// One of these.
    OneOf(Vec<i64>),
}

impl IfMatch {
    const EXPECTED: &'static str = "the ETag of an earlier answer, such as \"3\", or *";

    fn parse(text: &str) -> Option<Self> {
        if text.trim() == "*" {
            return Some(Self::Any);
        }
        let mut seen = Vec::new();
        for tag in text.split(',').map(str::trim) {
            // A weak tag never matches: what it names may differ.
            if tag.starts_with("W/\"") && tag.ends_with('"') {
                continue;
            }
            let revision = tag.strip_prefix('"')?.strip_suffix('"')?;
            // What is no number of ours is the tag of something else.
            seen.extend(revision.parse::<i64>());
        }
        Some(Self::OneOf(seen))
    }

    /// Whether the client, if it said what it has seen, has seen this.
    pub(crate) fn has_seen(&self, revision: i64) -> bool {
        match self {
            Self::Absent | Self::Any => true,
            Self::OneOf(seen) => seen.contains(&revision),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for IfMatch {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let mut lines = parts.headers.get_all(header::IF_MATCH).iter();
        let Some(line) = lines.next() else { return Ok(Self::Absent) };
        let parsed = line.to_str().ok().and_then(Self::parse).filter(|_| lines.next().is_none());
        parsed.ok_or_else(|| ApiError::invalid("If-Match", Self::EXPECTED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read() {
        assert_eq!(IfMatch::parse("*"), Some(IfMatch::Any));
        assert_eq!(IfMatch::parse("\"3\""), Some(IfMatch::OneOf(vec![3])));
        assert_eq!(IfMatch::parse("\"3\", \"4\",W/\"5\""), Some(IfMatch::OneOf(vec![3, 4])));
        assert_eq!(IfMatch::parse("\"of another system\""), Some(IfMatch::OneOf(vec![])));
        for text in ["", "3", "\"3", "3\"", "\"3\",", "\""] {
            assert_eq!(IfMatch::parse(text), None, "{text}");
        }
    }
}
