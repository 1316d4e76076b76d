use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use rl_records::Expected;
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::{ObjectBuilder, Required, Type};

use crate::error::ApiError;

/// The `If-Match` precondition of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IfMatch {
    /// There is no precondition.
    Absent,
    /// Any existing object (`*`).
    Any,
    /// One of these revisions.
    OneOf(Vec<i64>),
}

impl IfMatch {
    const EXPECTED: &'static str = "the ETag of an earlier response, such as \"3\", or *";

    fn parse(text: &str) -> Option<Self> {
        if text.trim() == "*" {
            return Some(Self::Any);
        }
        let mut seen = Vec::new();
        let mut rest = text.trim();
        loop {
            let is_weak = rest.starts_with("W/");
            rest = rest.strip_prefix("W/").unwrap_or(rest).strip_prefix('"')?;
            let (tag, after) = rest.split_once('"')?;
            // A weak tag never matches, and neither does a tag that is not a revision number.
            let revision = tag.parse::<i64>().ok().filter(|number| number.to_string() == tag);
            seen.extend(revision.filter(|number| *number > 0 && !is_weak));
            rest = after.trim_start();
            if rest.is_empty() {
                return Some(Self::OneOf(seen));
            }
            rest = rest.strip_prefix(',')?.trim_start();
        }
    }

    /// Returns the state of the object that a change expects.
    ///
    /// If `is_required` is set, a change without a precondition expects that there is no object, so
    /// it can only create one.
    pub(crate) fn expected(&self, is_required: bool) -> Expected {
        match self {
            Self::Absent if is_required => Expected::Nothing,
            Self::Absent => Expected::Any,
            Self::Any => Expected::Existing,
            Self::OneOf(revisions) => Expected::OneOf(revisions.clone()),
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

/// Describes the parameter in the OpenAPI document.
impl IntoParams for IfMatch {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let schema = ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some("^(\\*|(W/)?\"[^\"]*\"( *, *(W/)?\"[^\"]*\")*)$"))
            .examples(["\"3\"", "*"]);
        let parameter = ParameterBuilder::new()
            .name("If-Match")
            .parameter_in(ParameterIn::Header)
            .required(Required::False)
            .description(Some(
                "The ETag of the object to change, or * for any existing object. If it does not match, the response is \
                 412. Without it, the change applies to any revision.",
            ))
            .schema(Some(schema));
        vec![parameter.build()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entity_tags_are_parsed() {
        assert_eq!(IfMatch::parse("*"), Some(IfMatch::Any));
        assert_eq!(IfMatch::parse("\"3\""), Some(IfMatch::OneOf(vec![3])));
        assert_eq!(IfMatch::parse("\"3\", \"4\",W/\"5\""), Some(IfMatch::OneOf(vec![3, 4])));
        assert_eq!(IfMatch::parse("\"of another system\""), Some(IfMatch::OneOf(vec![])));
        for text in ["\"\"", "\"a,b\"", "\"0\"", "\"-3\"", "\"+3\"", "\"03\"", "W/\"3\""] {
            assert_eq!(IfMatch::parse(text), Some(IfMatch::OneOf(vec![])), "{text}");
        }
        let wrong = [
            "",
            "3",
            "\"3",
            "3\"",
            "\"3\",",
            "\"",
            "\"3\"4\"",
            "\"3\" \"4\"",
            "w/\"3\"",
            "*, \"3\"",
        ];
        for text in wrong {
            assert_eq!(IfMatch::parse(text), None, "{text}");
        }
    }
}
