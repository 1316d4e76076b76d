//! Lists and maps in a rules file.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::scalars::{FromText, Text};
use crate::model::Limit;

/// One text, or a list of texts.
#[derive(Clone, Debug)]
pub(super) struct OneOrMany<T>(pub(super) Vec<T>);

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

struct OneOrManyVisitor<T>(PhantomData<T>);

impl<'de, T: FromText> Visitor<'de> for OneOrManyVisitor<T> {
    type Value = OneOrMany<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, or a list of such texts", T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        T::from_text(text).map(|value| OneOrMany(vec![value])).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Text(value)) = values.next_element()? {
            all.push(value);
        }
        Ok(OneOrMany(all))
    }
}

impl<'de, T: FromText> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrManyVisitor(PhantomData))
    }
}

impl<T: FromText> JsonSchema for OneOrMany<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "texts".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [T::schema(), { "type": "array", "items": T::schema() }] })
    }
}

/// Values by name, in the order of the file.
#[derive(Clone, Debug)]
pub(super) struct Named<K, T>(pub(super) Vec<(K, T)>);

impl<K, T> Default for Named<K, T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

struct NamedVisitor<K, T>(PhantomData<(K, T)>);

impl<'de, K: FromText, T: Deserialize<'de>> Visitor<'de> for NamedVisitor<K, T> {
    type Value = Named<K, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map with names as keys")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Text(name)) = map.next_key()? {
            all.push((name, map.next_value()?));
        }
        Ok(Named(all))
    }
}

impl<'de, K: FromText, T: Deserialize<'de>> Deserialize<'de> for Named<K, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NamedVisitor(PhantomData))
    }
}

impl<K, T: JsonSchema> JsonSchema for Named<K, T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "map".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let values = generator.subschema_for::<T>();
        json_schema!({ "type": "object", "additionalProperties": values })
    }
}

/// The limits of a rule or a tier: one limit, a list of limits, limits by name, or a source.
#[derive(Clone, Debug)]
pub(super) enum LimitTexts {
    Limits(Vec<(Option<String>, Limit)>),
    /// The source that the service has registered under this name.
    Source(String),
}

struct LimitTextsVisitor;

impl<'de> Visitor<'de> for LimitTextsVisitor {
    type Value = LimitTexts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a limit, such as 10/second, a list of limits, or limits by name")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<LimitTexts, E> {
        match Limit::from_text(text) {
            Ok(limit) => Ok(LimitTexts::Limits(vec![(None, limit)])),
            Err(_) if is_source(text) => Ok(LimitTexts::Source(text.to_owned())),
            Err(error) => Err(E::custom(error)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, limits: A) -> Result<LimitTexts, A::Error> {
        let OneOrMany(limits) = OneOrManyVisitor(PhantomData).visit_seq(limits)?;
        Ok(LimitTexts::Limits(limits.into_iter().map(|limit| (None, limit)).collect()))
    }

    fn visit_map<A: MapAccess<'de>>(self, limits: A) -> Result<LimitTexts, A::Error> {
        let limits: Named<String, Text<Limit>> = NamedVisitor(PhantomData).visit_map(limits)?;
        let limits = limits.0.into_iter().map(|(name, Text(limit))| (Some(name), limit));
        Ok(LimitTexts::Limits(limits.collect()))
    }
}

/// Returns whether a text may be the name of a source. No limit begins with a letter.
fn is_source(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b);
    text.starts_with(|first: char| first.is_ascii_lowercase()) && text.bytes().all(fits)
}

impl<'de> Deserialize<'de> for LimitTexts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LimitTextsVisitor)
    }
}

impl JsonSchema for LimitTexts {
    fn schema_name() -> Cow<'static, str> {
        "limits".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let limit = <Limit as FromText>::schema();
        let source = "the name of a source that the service registers, such as records";
        json_schema!({
            "description": "One limit, a list of limits, limits by name, or the name of a source.",
            "anyOf": [
                limit,
                { "type": "array", "items": limit, "minItems": 1 },
                { "type": "object", "additionalProperties": limit, "minProperties": 1 },
                { "type": "string", "pattern": "^[a-z][a-z0-9_-]*$", "description": source },
            ],
        })
    }
}
