use std::fmt;

use rl_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::ApiError;

const HOUR_MICROS: u64 = 3_600_000_000;

/// A time as RFC 3339 writes it: `2025-12-31T13:00:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Date(pub(crate) Timestamp);

impl Date {
    pub(crate) const EXPECTED: &'static str =
        "a time from 1970 to 9999 such as 2025-12-31T13:00:00Z";

    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let is_written_so = {
            // What stands for digits, and then the rest: fractions and an offset.
            let bytes = text.as_bytes();
            let is_like = |(byte, like): (&u8, u8)| match like {
                b'0' => byte.is_ascii_digit(),
                like => *byte == like,
            };
            bytes.len() >= 20 && bytes.iter().zip(*b"0000-00-00T00:00:00").all(is_like)
        };
        let time: jiff::Timestamp = match (is_written_so, text.parse()) {
            (true, Ok(time)) => time,
            _ => return Err(Self::EXPECTED),
        };
        let micros = u64::try_from(time.as_microsecond()).map_err(|_| Self::EXPECTED)?;
        Ok(Self(Timestamp::from_micros(micros)))
    }
}

impl TryFrom<String> for Date {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).map_err(|expected| format!("expected {expected}"))
    }
}

impl From<Date> for String {
    fn from(date: Date) -> Self {
        date.to_string()
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = i64::try_from(self.0.as_micros()).unwrap_or(i64::MAX);
        // What cannot be written lies beyond the year 9999: the last that can stands for it.
        jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX).fmt(f)
    }
}

impl PartialSchema for Date {
    fn schema() -> RefOr<Schema> {
        let time = ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .description(Some(
                "A time as RFC 3339 writes it, from 1970 to 9999; answers are in UTC.",
            ))
            .examples(["2025-12-31T13:00:00Z"]);
        time.into()
    }
}

impl ToSchema for Date {}

/// An hour in UTC: `2025-12-31-13`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hour {
    /// Its first microsecond.
    pub(crate) start: Timestamp,
}

impl Hour {
    pub(crate) const PATTERN: &'static str = "^[0-9]{4}-[0-9]{2}-[0-9]{2}-[0-9]{2}$";

    pub(crate) fn parse(text: &str) -> Result<Self, ApiError> {
        let is_written_so = text.len() == 13
            && text.bytes().zip(*b"0000-00-00-00").all(|(byte, like)| match like {
                b'0' => byte.is_ascii_digit(),
                like => byte == like,
            });
        let date = is_written_so.then(|| format!("{}T{}:00:00Z", &text[..10], &text[11..]));
        match date.map(|date| Date::parse(&date)) {
            Some(Ok(Date(start))) => Ok(Self { start }),
            _ => Err(ApiError::invalid_hour(text)),
        }
    }

    /// Its last microsecond.
    pub(crate) const fn end(self) -> Timestamp {
        self.start.plus_micros(HOUR_MICROS - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_rfc_3339_writes_them() {
        for (text, micros) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2025-12-31T13:00:00Z", 1_767_186_000_000_000),
            ("2025-12-31T14:00:00+01:00", 1_767_186_000_000_000),
            ("2025-12-31T13:00:00.5Z", 1_767_186_000_500_000),
            ("9999-12-30T22:00:00Z", 253_402_207_200_000_000),
        ] {
            assert_eq!(Date::parse(text).unwrap().0.as_micros(), micros, "{text}");
        }
        for text in [
            "",
            "now",
            "2025-12-31",
            "2025-12-31T13:00:00",
            "2025-12-31 13:00:00Z",
            "2025-13-31T13:00:00Z",
            "2025-02-30T13:00:00Z",
            "1969-12-31T23:59:59Z",
            "20251231T130000Z0000",
            "2025-12-31T13:00:00Z'; DROP TABLE rl_records; --",
        ] {
            assert_eq!(Date::parse(text).unwrap_err(), Date::EXPECTED, "{text}");
        }
        let date = Date::parse("2025-12-31T13:00:00.25Z").unwrap();
        assert_eq!(date.to_string(), "2025-12-31T13:00:00.25Z");
    }

    #[test]
    fn hours_are_written_in_one_way() {
        let hour = Hour::parse("2025-12-31-13").unwrap();
        assert_eq!(Date(hour.start).to_string(), "2025-12-31T13:00:00Z");
        assert_eq!(Date(hour.end()).to_string(), "2025-12-31T13:59:59.999999Z");
        for text in [
            "",
            "2025-12-31",
            "2025-12-31-24",
            "2025-12-31-1",
            "2025-02-30-13",
            "2025-12-31-13 ",
            "2025-12-31T13:34:46Z",
            "٢٠٢٥-12-31-13",
            "1969-12-31-13",
        ] {
            let error = Hour::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("Current date format is: {text}. ")), "{error}");
            assert!(error.contains("Please use this format: YYYY-MM-DD-HH in UTC"), "{error}");
        }
    }
}
