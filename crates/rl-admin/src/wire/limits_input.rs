use rl_core::Realm;
use rl_records::{Limits, RecordContent};
use serde::{Deserialize, Deserializer};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::date::Date;
use super::name::Name;
use crate::error::ApiError;

/// The name of a realm.
#[derive(Clone, Debug)]
pub(crate) struct RealmText(pub(crate) Realm);

impl RealmText {
    pub(crate) const EXPECTED: &'static str =
        "ip, key, consumer, user, global, unknown, or 1 to 32 characters of a-z, 0-9, _ and -";

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let known =
            [Realm::Ip, Realm::Key, Realm::Consumer, Realm::User, Realm::Global, Realm::Unknown];
        let known = known.into_iter().find(|realm| realm.as_str() == text);
        known.or_else(|| Realm::custom(text).ok()).map(Self)
    }

    pub(crate) fn schema() -> ObjectBuilder {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some("^[a-z0-9_-]{1,32}$"))
            .description(Some("A realm: ip, key, consumer, user, or a declared one"))
            .examples(["ip"])
    }
}

impl<'de> Deserialize<'de> for RealmText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom(format_args!("expected {}", Self::EXPECTED));
        Self::parse(&text).ok_or_else(wrong)
    }
}

impl PartialSchema for RealmText {
    fn schema() -> RefOr<Schema> {
        Self::schema().into()
    }
}

impl ToSchema for RealmText {}

/// A new record in a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitsInput {
    /// The realm of the subject.
    realm: RealmText,
    /// The id of the subject: a consumer, a user, an address in any notation, the 32 hexadecimal
    /// digits of the keyed hash of an API key; `-` for the one subject of the realm global.
    subject: Name,
    /// The rule under which the record applies. Without it, or with `null`, the record applies under
    /// every rule that takes its limits from records.
    #[schema(example = "login", pattern = "^[A-Za-z0-9_.-]{1,64}$")]
    rule: Option<String>,
    /// The limits. An empty list is no limit.
    #[schema(example = json!(["5/second:gcra", "10000/minute:unit=tokens"]))]
    limits: Vec<String>,
    /// The first instant at which the record is active.
    from_date: Date,
    /// The last instant at which the record is active. It may equal `from_date`.
    to_date: Date,
    /// Whether the record blocks the subject, whatever the other records contain.
    #[serde(default)]
    blocks: bool,
    /// Whether the record is a grant. Each limit of a grant is added to the limit that counts in the
    /// same window: from other records, a tier, the defaults or the service. This field never
    /// changes.
    #[serde(default)]
    grants: bool,
}

impl LimitsInput {
    /// Returns the id of the subject, if it is a consumer.
    pub(crate) fn consumer(&self) -> Option<&str> {
        Some(self.subject.as_str()).filter(|_| self.realm.0 == Realm::Consumer)
    }

    /// Returns the content. `subject` returns the id of the records of the named subject.
    pub(crate) fn into_content(
        self,
        subject: impl FnOnce(Realm, &str) -> Result<(Realm, String), ApiError>,
    ) -> Result<RecordContent, ApiError> {
        let (realm, subject_id) = subject(self.realm.0, self.subject.as_str())?;
        let limits = limits_of(&self.limits)?;
        Ok(RecordContent {
            realm,
            rule: self.rule,
            blocks: self.blocks,
            grants: self.grants,
            ..RecordContent::new(&subject_id, self.from_date.0, self.to_date.0, limits)
        })
    }
}

/// The limits and the dates of a record in a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitsUpdate {
    /// The limits. An empty list is no limit.
    #[schema(example = json!(["5/second:gcra", "10000/minute:unit=tokens"]))]
    limits: Vec<String>,
    /// The first instant at which the record is active.
    from_date: Date,
    /// The last instant at which the record is active. It may equal `from_date`.
    to_date: Date,
    /// Whether the record blocks the subject. Without it, or with `null`, this stays as it is.
    blocks: Option<bool>,
}

impl LimitsUpdate {
    /// Returns the content that replaces `before`, and whether it blocks, if the request says so.
    pub(crate) fn into_content(
        self,
        before: RecordContent,
    ) -> Result<(RecordContent, Option<bool>), ApiError> {
        let content = RecordContent {
            limits: limits_of(&self.limits)?,
            from_date: self.from_date.0,
            to_date: self.to_date.0,
            blocks: self.blocks.unwrap_or(before.blocks),
            ..before
        };
        Ok((content, self.blocks))
    }
}

fn limits_of(texts: &[String]) -> Result<Limits, ApiError> {
    Ok(Limits::from_texts(texts.iter().map(String::as_str))?)
}
