//! Lists and maps in a rule file.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::scalars::{FromText, Text};

/// One text, or a list of texts.
#[derive(Clone, Debug)]
pub(super) struct OneOrMany<T>(pub(super) Vec<T>);

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

pub(super) struct OneOrManyVisitor<T>(pub(super) PhantomData<T>);

impl<'de, T: FromText> Visitor<'de> for OneOrManyVisitor<T> {
    type Value = OneOrMany<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, or a list of such texts", T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        T::read(text).map(|value| OneOrMany(vec![value])).map_err(E::custom)
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

pub(super) struct NamedVisitor<K, T>(pub(super) PhantomData<(K, T)>);

impl<'de, K: FromText, T: Deserialize<'de>> Visitor<'de> for NamedVisitor<K, T> {
    type Value = Named<K, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a map, in which each key is {}", K::EXPECTED)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Self::Value, A::Error> {
        let reason = format!("a list: expected a map, in which each key is {}", K::EXPECTED);
        values.next_element_seed(Refused(&reason))?;
        Err(A::Error::custom(&reason))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Text(name)) = map.next_key()? {
            all.push((name, map.next_value()?));
        }
        Ok(Named(all))
    }
}

/// Fails at the first text of a value, so that the error has a place. The parser knows none for a
/// whole list.
#[derive(Clone, Copy)]
struct Refused<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Refused<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Refused<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Err(E::custom(self.0))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        map.next_key_seed(self).map(|_| ())
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
