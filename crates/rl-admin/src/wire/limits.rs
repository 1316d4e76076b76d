use std::fmt;

use rl_core::{Limit, MAX_UNITS};
use rl_records::{CallLimit, CallLimits, CallPeriod, Limits};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::{ObjectBuilder, OneOfBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// A limit in a request: a number, or a text that contains it. −1 means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calls(pub(crate) CallLimit);

impl Calls {
    const EXPECTED: &'static str = "-1 (no limit), or 0 to 9007199254740991 calls";

    fn of(number: i64) -> Option<Self> {
        CallLimit::from_number("", number).ok().map(Self)
    }

    fn parse(text: &str) -> Option<Self> {
        // Only the canonical text of a number is accepted, without leading zeros or a plus sign.
        let number = text.parse::<i64>().ok().filter(|number| number.to_string() == text);
        number.and_then(Self::of)
    }
}

impl Default for Calls {
    /// Returns the value of an omitted field: unlimited.
    fn default() -> Self {
        Self(CallLimit::Unlimited)
    }
}

impl<'de> Deserialize<'de> for Calls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberVisitor;

        impl Visitor<'_> for NumberVisitor {
            type Value = Calls;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(Calls::EXPECTED)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Calls, E> {
                let wrong = || E::invalid_value(de::Unexpected::Signed(number), &self);
                Calls::of(number).ok_or_else(wrong)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Calls, E> {
                let wrong = || E::invalid_value(de::Unexpected::Unsigned(number), &self);
                i64::try_from(number).ok().and_then(Calls::of).ok_or_else(wrong)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Calls, E> {
                Calls::parse(text)
                    .ok_or_else(|| E::custom(format_args!("expected {}", Calls::EXPECTED)))
            }
        }

        deserializer.deserialize_any(NumberVisitor)
    }
}

impl PartialSchema for Calls {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some("^(-1|0|[1-9][0-9]{0,14})$"))
            .examples(["100"]);
        let number = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(-1_i64))
            .maximum(Some(MAX_UNITS.cast_signed()));
        let either = OneOfBuilder::new().item(text).item(number);
        either
            .description(Some(
                "-1 (no limit, also if it is left out), or 0 to 9007199254740991 calls.",
            ))
            .into()
    }
}

impl ToSchema for Calls {}

/// Returns the limits of six numbers in a request, the shortest period first.
pub(crate) fn call_limits(numbers: [Calls; 6]) -> CallLimits {
    let numbers = CallPeriod::ALL.into_iter().zip(numbers);
    numbers.fold(CallLimits::UNLIMITED, |limits, (period, calls)| limits.with(period, calls.0))
}

/// Limits as text, and the limits of the six periods as numbers in a text.
///
/// The numbers are -1 if they cannot express all limits.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct LimitTexts {
    /// Calls per second; -1 means no limit, or that `limits` cannot be expressed by six numbers.
    #[schema(example = "10")]
    per_second_call_limit: String,
    /// Calls per minute.
    #[schema(example = "100")]
    per_minute_call_limit: String,
    /// Calls per hour.
    #[schema(example = "1000")]
    per_hour_call_limit: String,
    /// Calls per day.
    #[schema(example = "10000")]
    per_day_call_limit: String,
    /// Calls per week.
    #[schema(example = "-1")]
    per_week_call_limit: String,
    /// Calls per month, of 30 days.
    #[schema(example = "-1")]
    per_month_call_limit: String,
    /// All limits, the shortest period first.
    #[schema(example = json!(["10/second", "10000/minute:unit=tokens"]))]
    limits: Vec<String>,
}

impl LimitTexts {
    pub(crate) fn of(limits: &Limits) -> Self {
        let numbers = numbers_of(limits);
        let text = |period| numbers.get(period).as_number().to_string();
        Self {
            per_second_call_limit: text(CallPeriod::Second),
            per_minute_call_limit: text(CallPeriod::Minute),
            per_hour_call_limit: text(CallPeriod::Hour),
            per_day_call_limit: text(CallPeriod::Day),
            per_week_call_limit: text(CallPeriod::Week),
            per_month_call_limit: text(CallPeriod::Month),
            limits: texts_of(limits),
        }
    }
}

/// Returns the six numbers, which are all -1 if they cannot express the limits.
pub(crate) fn numbers_of(limits: &Limits) -> CallLimits {
    limits.call_limits().unwrap_or(CallLimits::UNLIMITED)
}

/// Returns the text form of each limit.
pub(crate) fn texts_of(limits: &Limits) -> Vec<String> {
    limits.as_slice().iter().map(Limit::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_or_its_text() {
        for (json, number) in [("\"-1\"", -1), ("-1", -1), ("\"0\"", 0), ("0", 0), ("\"100\"", 100)]
        {
            let read: Calls = serde_json::from_str(json).unwrap();
            assert_eq!(read.0.as_number(), number, "{json}");
        }
        for json in [
            "\"\"",
            "\"ten\"",
            "\"-2\"",
            "-2",
            "1.5",
            "\"1.0\"",
            "\"+1\"",
            "\"007\"",
            "\" 1\"",
            "\"-0\"",
            "9007199254740992",
            "\"9007199254740992\"",
            "18446744073709551616",
            "null",
            "true",
            "[]",
            "{}",
            "\"1 OR 1=1\"",
            "1e3",
        ] {
            let error = serde_json::from_str::<Calls>(json).unwrap_err().to_string();
            assert!(
                error.contains("expected -1 (no limit), or 0 to 9007199254740991"),
                "{json}: {error}"
            );
        }
    }
}
