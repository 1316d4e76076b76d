use std::fmt;

use jiff::SignedDuration;
use jiff::civil::DateTime;
use rl_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::error::ApiError;

const HOUR_MICROS: u64 = 3_600_000_000;

/// 1970-01-01T00:00:00.
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// Returns the date and the time in UTC, or `None` after the year 9999.
///
/// `jiff::Timestamp` ends one day earlier, because it must be representable in every time zone.
pub(crate) fn civil(time: Timestamp) -> Option<DateTime> {
    let micros = i64::try_from(time.as_micros()).ok()?;
    EPOCH.checked_add(SignedDuration::from_micros(micros)).ok()
}

/// Returns the instant of a date and a time in UTC, or `None` before 1970.
pub(crate) fn instant(civil: DateTime) -> Option<Timestamp> {
    let micros = civil.duration_since(EPOCH).as_micros();
    u64::try_from(micros).ok().map(Timestamp::from_micros)
}

/// A time in RFC 3339, such as `2025-12-31T13:00:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Date(pub(crate) Timestamp);

impl Date {
    pub(crate) const EXPECTED: &'static str = "a time such as 2025-12-31T13:00:00Z or \
        2025-12-31T13:00:00+01:00, from 1970-01-01T00:00:00Z to 9999-12-31T23:59:59.999999Z";

    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        Self::read(text).ok_or(Self::EXPECTED)
    }

    /// Parses a date, a time with an optional fraction, and an offset. Names of time zones are
    /// refused. A leap second is read as the second before it.
    fn read(text: &str) -> Option<Self> {
        // The slices below are only valid for ASCII.
        let text = Some(text).filter(|text| text.is_ascii())?;
        let (time, rest) = text.split_at_checked(19)?;
        if !has_pattern(time, "0000-00-00T00:00:00") {
            return None;
        }
        let digits = rest
            .strip_prefix('.')
            .map_or(0, |fraction| 1 + fraction.bytes().take_while(u8::is_ascii_digit).count());
        let (fraction, offset) = rest.split_at_checked(digits)?;
        if !(fraction.is_empty() || (2..=10).contains(&fraction.len())) {
            return None;
        }
        let civil: DateTime = format!("{}{fraction}", time.to_ascii_uppercase()).parse().ok()?;
        let utc = civil.checked_sub(SignedDuration::from_secs(offset_seconds(offset)?)).ok()?;
        instant(utc).map(Self)
    }
}

/// Returns whether `text` has a digit wherever `like` has `0`, and the same character everywhere
/// else.
fn has_pattern(text: &str, like: &str) -> bool {
    text.len() == like.len()
        && text.bytes().zip(like.bytes()).all(|(byte, like)| match like {
            b'0' => byte.is_ascii_digit(),
            like => byte.eq_ignore_ascii_case(&like),
        })
}

/// Parses `Z`, or an offset such as `+01:00`, in seconds.
fn offset_seconds(text: &str) -> Option<i64> {
    if text.eq_ignore_ascii_case("Z") {
        return Some(0);
    }
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let rest = &text[1..];
    if !has_pattern(rest, "00:00") {
        return None;
    }
    let (hours, minutes): (i64, i64) = (rest[..2].parse().ok()?, rest[3..].parse().ok()?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))
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
        // A time after `DateTime::MAX` is clamped. Only another program can have stored it.
        write!(f, "{}Z", civil(self.0).unwrap_or(DateTime::MAX))
    }
}

impl PartialSchema for Date {
    fn schema() -> RefOr<Schema> {
        let time = ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .description(Some(
                "A time in RFC 3339, from 1970 to 9999-12-31T23:59:59.999999Z. Responses are in UTC. A leap second \
                 (`23:59:60`) is the second before it. Names of zones are refused.",
            ))
            .examples(["2025-12-31T13:00:00Z"]);
        time.into()
    }
}

impl ToSchema for Date {}

/// An hour in UTC: `2025-12-31-13`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hour {
    /// The first microsecond of the hour.
    pub(crate) start: Timestamp,
}

impl Hour {
    pub(crate) const PATTERN: &'static str = "^[0-9]{4}-[0-9]{2}-[0-9]{2}-[0-9]{2}$";

    pub(crate) fn parse(text: &str) -> Result<Self, ApiError> {
        let is_hour = has_pattern(text, "0000-00-00-00");
        let date = is_hour.then(|| format!("{}T{}:00:00Z", &text[..10], &text[11..]));
        match date.map(|date| Date::parse(&date)) {
            Some(Ok(Date(start))) => Ok(Self { start }),
            _ => Err(ApiError::invalid_hour(text)),
        }
    }

    /// Returns the last microsecond of the hour.
    pub(crate) const fn end(self) -> Timestamp {
        self.start.plus_micros(HOUR_MICROS - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_as_in_rfc_3339() {
        for (text, micros) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2025-12-31T13:00:00Z", 1_767_186_000_000_000),
            ("2025-12-31T14:00:00+01:00", 1_767_186_000_000_000),
            ("2025-12-31T13:00:00.5Z", 1_767_186_000_500_000),
            ("2025-12-31t13:00:00z", 1_767_186_000_000_000),
            ("2025-12-31T08:30:00-04:30", 1_767_186_000_000_000),
            ("2016-12-31T23:59:60Z", 1_483_228_799_000_000),
            ("9999-12-30T22:00:00Z", 253_402_207_200_000_000),
            ("9999-12-31T23:59:59Z", 253_402_300_799_000_000),
            ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999_999),
            ("9999-12-31T23:59:59.999999999Z", 253_402_300_799_999_999),
        ] {
            assert_eq!(Date::parse(text).unwrap().0.as_micros(), micros, "{text}");
        }
        for text in [
            "",
            "now",
            "2025-12-31",
            "2025-12-31T13:00:00",
            "2025-12-31 13:00:00Z",
            "2025-12-31T13:00Z",
            "2025-12-31T13:00:00Z[Europe/Berlin]",
            "2025-12-31T13:00:00+01:00[Europe/Berlin]",
            "2025-12-31T13:00:00+0100",
            "2025-12-31T13:00:00+24:00",
            "2025-12-31T13:00:00.Z",
            "2025-12-31T13:00:61Z",
            "9999-12-31T23:59:59-00:01",
            "\u{661}025-12-31T13:00:00Z",
            "2025-13-31T13:00:00Z",
            "2025-02-30T13:00:00Z",
            "1969-12-31T23:59:59Z",
            "20251231T130000Z0000",
            "2025-12-31T13:00:00Z'; DROP TABLE rl_records; --",
        ] {
            assert_eq!(Date::parse(text).unwrap_err(), Date::EXPECTED, "{text}");
        }
        for text in
            ["2025-12-31T13:00:00.25Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59.999999Z"]
        {
            assert_eq!(Date::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn hours_have_one_form() {
        let hour = Hour::parse("2025-12-31-13").unwrap();
        assert_eq!(Date(hour.start).to_string(), "2025-12-31T13:00:00Z");
        assert_eq!(Date(hour.end()).to_string(), "2025-12-31T13:59:59.999999Z");
        let last = Hour::parse("9999-12-31-23").unwrap();
        assert_eq!(Date(last.end()).to_string(), "9999-12-31T23:59:59.999999Z");
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
