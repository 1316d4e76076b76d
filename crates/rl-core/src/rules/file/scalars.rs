//! The single values of a rule file. Each is checked when it is read, so that an error gives its
//! line and column.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

use super::variables::{SecretFile, clipped, expanded, expanded_secret};
use crate::client_ip::TrustedProxies;
use crate::key::KeySecret;
use crate::model::Period;

/// A type whose values are written as text.
pub(super) trait FromText: Sized {
    /// A description of the expected text, shown in errors and in the JSON schema.
    const EXPECTED: &'static str;

    /// Whether errors must not contain the text. Such a type replaces variables itself.
    const IS_SECRET: bool = false;

    /// Whether variables in the text are replaced.
    const HAS_VARIABLES: bool = false;

    /// Returns the schema of the text.
    fn schema() -> Schema {
        json_schema!({ "type": "string", "description": Self::EXPECTED })
    }

    /// Reads a text whose variables are replaced.
    ///
    /// # Errors
    ///
    /// Returns what is wrong, and what is accepted.
    fn from_text(text: &str) -> Result<Self, String>;

    /// Reads a text as it stands in the file.
    ///
    /// # Errors
    ///
    /// Returns what is wrong, and what is accepted. The error does not contain the values of
    /// variables.
    fn read(text: &str) -> Result<Self, String> {
        if !Self::HAS_VARIABLES || !text.contains('$') {
            return Self::from_text(text);
        }
        Self::from_text(&expanded(text)?).map_err(|_| {
            let text = clipped(text);
            format!("{text:?} with its variables replaced: expected {}", Self::EXPECTED)
        })
    }
}

/// A value that is written as text.
#[derive(Clone, Debug)]
pub(super) struct Text<T>(pub(super) T);

struct TextVisitor<T>(PhantomData<T>);

impl<T: FromText> TextVisitor<T> {
    /// Returns the error for a value that is not a text. Describes it by `kind` if it may be a
    /// secret.
    fn not_a_text<E: Error>(&self, value: Unexpected<'_>, kind: &str) -> E {
        let value = if T::IS_SECRET { Unexpected::Other(kind) } else { value };
        E::invalid_type(value, self)
    }
}

impl<T: FromText> Visitor<'_> for TextVisitor<T> {
    type Value = Text<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Text<T>, E> {
        T::read(text).map(Text).map_err(E::custom)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Text<T>, E> {
        Err(self.not_a_text(Unexpected::Bool(value), "true or false"))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Text<T>, E> {
        Err(self.not_a_text(Unexpected::Signed(value), NUMBER))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Text<T>, E> {
        Err(self.not_a_text(Unexpected::Unsigned(value), NUMBER))
    }

    fn visit_i128<E: Error>(self, _: i128) -> Result<Text<T>, E> {
        Err(self.not_a_text(Unexpected::Other(NUMBER), NUMBER))
    }

    fn visit_u128<E: Error>(self, _: u128) -> Result<Text<T>, E> {
        Err(self.not_a_text(Unexpected::Other(NUMBER), NUMBER))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Text<T>, E> {
        Err(self.not_a_text(Unexpected::Float(value), NUMBER))
    }
}

/// Describes a number in errors.
const NUMBER: &str = "number";

impl<'de, T: FromText> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor(PhantomData))
    }
}

impl<T: FromText> JsonSchema for Text<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "text".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        T::schema()
    }
}

/// A text with its variables replaced.
#[derive(Clone)]
pub(super) struct Expanded {
    pub(super) value: String,
    /// The text as it stands in the file, if it has variables.
    written: Option<String>,
}

impl Expanded {
    /// Returns the text for an error: with its variables, not with what replaces them.
    pub(super) fn shown(&self) -> &str {
        self.written.as_deref().unwrap_or(&self.value)
    }

    /// Returns whether the text has variables.
    pub(super) const fn has_variables(&self) -> bool {
        self.written.is_some()
    }
}

impl fmt::Debug for Expanded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown().fmt(f)
    }
}

impl FromText for Expanded {
    const EXPECTED: &'static str = "a text";
    const HAS_VARIABLES: bool = true;

    fn from_text(text: &str) -> Result<Self, String> {
        Ok(Self { value: text.to_owned(), written: None })
    }

    fn read(text: &str) -> Result<Self, String> {
        let value = expanded(text)?;
        Ok(Self { value, written: text.contains('$').then(|| text.to_owned()) })
    }
}

/// A name that is a key of a map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name(pub(super) String);

impl FromText for Name {
    const EXPECTED: &'static str = "a name without variables";

    fn from_text(text: &str) -> Result<Self, String> {
        if text.contains("${") {
            return Err(format!("name {:?}: expected {}", clipped(text), Self::EXPECTED));
        }
        Ok(Self(text.to_owned()))
    }
}

/// A value that may be secret.
#[derive(Clone)]
pub(super) struct Secret {
    pub(super) text: String,
    /// The file that the value was read from, if there is one.
    pub(super) file: Option<SecretFile>,
}

impl FromText for Secret {
    const EXPECTED: &'static str = "${VARIABLE}, file:PATH or a text";
    const IS_SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, String> {
        let (text, file) = expanded_secret(text)?;
        Ok(Self { text, file })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The secret with which keys are hashed.
#[derive(Clone, Debug)]
pub(super) struct HashSecret {
    pub(super) key: KeySecret,
    /// The secret itself, as the key of an HMAC.
    pub(super) text: Secret,
}

impl FromText for HashSecret {
    const EXPECTED: &'static str = Secret::EXPECTED;
    const IS_SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, String> {
        let text = Secret::from_text(text)?;
        let key = KeySecret::new(text.text.as_bytes()).map_err(|error| error.to_string())?;
        Ok(Self { key, text })
    }
}

/// A proxy whose headers are trusted.
#[derive(Clone, Debug)]
pub(super) struct Proxy(pub(super) String);

impl FromText for Proxy {
    const EXPECTED: &'static str = "an address or a network, such as 10.0.0.0/8";
    const HAS_VARIABLES: bool = true;

    fn from_text(text: &str) -> Result<Self, String> {
        TrustedProxies::new([text]).map_err(|error| error.to_string())?;
        Ok(Self(text.to_owned()))
    }
}

/// A span of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span(pub(super) Duration);

impl FromText for Span {
    const EXPECTED: &'static str = "a time, such as 2s or 500ms";

    fn from_text(text: &str) -> Result<Self, String> {
        let period: Result<Period, _> = text.parse();
        let period = period.map_err(|_| format!("time {text:?}: expected {}", Self::EXPECTED))?;
        Ok(Self(Duration::from_millis(period.as_millis())))
    }
}

/// The name of a rule.
#[derive(Clone, Debug)]
pub(super) struct RuleName(pub(super) String);

impl FromText for RuleName {
    const EXPECTED: &'static str = "the name of a rule";

    fn from_text(text: &str) -> Result<Self, String> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
        if (1..=64).contains(&text.len()) && text.bytes().all(fits) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!(
                "rule name {:?}: expected 1 to 64 characters of A-Z a-z 0-9 _ . -",
                clipped(text)
            ))
        }
    }
}

/// A number of units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Units(pub(super) u64);

impl<'de> Deserialize<'de> for Units {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;

        impl Visitor<'_> for Number {
            type Value = Units;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number that is not negative")
            }

            fn visit_u64<E: Error>(self, units: u64) -> Result<Units, E> {
                Ok(Units(units))
            }

            fn visit_i64<E: Error>(self, units: i64) -> Result<Units, E> {
                let unexpected = Unexpected::Signed(units);
                u64::try_from(units).map(Units).map_err(|_| E::invalid_value(unexpected, &self))
            }
        }

        deserializer.deserialize_any(Number)
    }
}

impl JsonSchema for Units {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "units".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 0 })
    }
}

/// A truth value. The error for any other value contains that value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag(pub(super) bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TrueOrFalse;

        impl Visitor<'_> for TrueOrFalse {
            type Value = Flag;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true or false")
            }

            fn visit_bool<E: Error>(self, flag: bool) -> Result<Flag, E> {
                Ok(Flag(flag))
            }
        }

        deserializer.deserialize_any(TrueOrFalse)
    }
}

impl JsonSchema for Flag {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "flag".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "boolean" })
    }
}
