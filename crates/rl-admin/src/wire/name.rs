use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::SchemaType;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// The id of a consumer, or the name of an endpoint, a version, a bank, a resource or an
/// application.
///
/// Quotes, spaces and angle brackets are refused, because they indicate a mistake or an attack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Name(String);

impl Name {
    pub(crate) const EXPECTED: &'static str =
        "1 to 250 characters of A-Z a-z 0-9 . _ : @ / + ~ { } $ # -, and neither . nor ..";

    pub(crate) const PATTERN: &'static str =
        r"^(\.{0,2}[A-Za-z0-9_:@/+~{}$#\-]|\.{3})[A-Za-z0-9._:@/+~{}$#\-]*$";

    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let fits = |char: char| char.is_ascii_alphanumeric() || "._:@/+~{}$#-".contains(char);
        let is_name = (1..=250).contains(&text.len()) && text.chars().all(fits);
        // Clients and proxies remove these segments from a path, so an object with such a name
        // could not be reached.
        let is_name = is_name && !matches!(text, "." | "..");
        if is_name { Ok(Self(text.to_owned())) } else { Err(Self::EXPECTED) }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn schema_of(description: &str) -> ObjectBuilder {
        let text = ObjectBuilder::new().schema_type(Type::String).pattern(Some(Self::PATTERN));
        text.max_length(Some(250)).description(Some(description))
    }
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).map_err(|expected| format!("expected {expected}"))
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl PartialSchema for Name {
    fn schema() -> RefOr<Schema> {
        Self::schema_of(
            "A name: 1 to 250 characters of A-Z a-z 0-9 . _ : @ / + ~ { } $ # -, and neither . nor ..",
        )
        .into()
    }
}

impl ToSchema for Name {}

/// An optional name. A missing value, `null` and an empty text all mean no name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Option<String>")]
pub(crate) struct Optional(pub(crate) Option<Name>);

impl Optional {
    const PATTERN: &'static str =
        r"^((\.{0,2}[A-Za-z0-9_:@/+~{}$#\-]|\.{3})[A-Za-z0-9._:@/+~{}$#\-]*)?$";

    pub(crate) fn into_text(self) -> Option<String> {
        self.0.map(String::from)
    }
}

impl TryFrom<Option<String>> for Optional {
    type Error = String;

    fn try_from(text: Option<String>) -> Result<Self, String> {
        let text = text.filter(|text| !text.is_empty());
        text.map(Name::try_from).transpose().map(Self)
    }
}

impl PartialSchema for Optional {
    fn schema() -> RefOr<Schema> {
        let types = SchemaType::from_iter([Type::String, Type::Null]);
        let text = ObjectBuilder::new().schema_type(types).pattern(Some(Self::PATTERN));
        let text = text.max_length(Some(250));
        text.description(Some("A name, or none: null, or an empty text.")).into()
    }
}

impl ToSchema for Optional {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_quotes_spaces_or_brackets() {
        for name in
            ["abc", "...", ".a", "..a", "alice@example.org", "2001:db8::/64", "GET_/banks/{id}"]
        {
            assert!(Name::parse(name).is_ok(), "{name}");
        }
        let long = "a".repeat(251);
        for text in [
            "",
            ".",
            "..",
            "a b",
            "' OR '1'='1",
            "a'; DROP TABLE rl_records; --",
            "<script>alert(1)</script>",
            "\"",
            "a\0b",
            "a\r\nb",
            "a\u{202e}b",
            "K\u{e4}se",
            "\u{430}bc",
            "%00",
            long.as_str(),
        ] {
            assert_eq!(Name::parse(text), Err(Name::EXPECTED), "{text}");
        }
    }
}
