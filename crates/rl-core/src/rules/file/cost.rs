//! The cost of a rule as a text: a number, or a header of the response.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::scalars::{FromText, Text, Units};
use crate::client_ip::header_name;
use crate::headers::ResponseInfo;
use crate::model::Cost;

/// The units that a request costs: `20`, or `{ response_header: x-cost, estimate: 20 }`.
#[derive(Clone, Debug)]
pub(super) struct CostText {
    /// The units charged when the request arrives: the cost, or an estimate if there is a `header`.
    /// `None` means the cost of the layer.
    pub(super) units: Option<u64>,
    /// The header in which the response contains the final number of units.
    pub(super) header: Option<HeaderName>,
}

/// The name of a header, in lower case.
#[derive(Clone, Debug)]
pub(super) struct HeaderName(String);

impl HeaderName {
    /// Returns the units in the header of a response. Returns `None` unless the header has one line
    /// with a whole number.
    pub(super) fn units(&self, response: &dyn ResponseInfo) -> Option<Cost> {
        let mut lines = Vec::new();
        response.header_lines(&self.0, &mut |line| lines.push(line));
        let [line] = *lines else { return None };
        let units = std::str::from_utf8(line).ok()?.trim().parse().ok()?;
        Some(Cost::new(units))
    }
}

impl FromText for HeaderName {
    const EXPECTED: &'static str = "the name of a header";

    fn from_text(text: &str) -> Result<Self, String> {
        let invalid = |_| format!("header {text:?}: expected {}", Self::EXPECTED);
        header_name(text).map_err(invalid)?;
        Ok(Self(text.to_ascii_lowercase()))
    }
}

struct CostVisitor;

impl<'de> Visitor<'de> for CostVisitor {
    type Value = CostText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number that is not negative, or { response_header: x-cost }")
    }

    fn visit_u64<E: Error>(self, units: u64) -> Result<CostText, E> {
        Ok(CostText { units: Some(units), header: None })
    }

    fn visit_i64<E: Error>(self, units: i64) -> Result<CostText, E> {
        let unexpected = serde::de::Unexpected::Signed(units);
        let units = u64::try_from(units).map_err(|_| E::invalid_value(unexpected, &self))?;
        self.visit_u64(units)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<CostText, A::Error> {
        let (mut header, mut units) = (None, None);
        while let Some(key) = map.next_key::<String>()? {
            match &*key {
                "response_header" => header = Some(map.next_value::<Text<HeaderName>>()?.0),
                "estimate" => units = Some(map.next_value::<Units>()?.0),
                key => {
                    let error = A::Error::unknown_field(key, &["response_header", "estimate"]);
                    let _ = map.next_value::<IgnoredAny>();
                    return Err(error);
                }
            }
        }
        let header = header.ok_or_else(|| A::Error::missing_field("response_header"))?;
        Ok(CostText { units, header: Some(header) })
    }
}

impl<'de> Deserialize<'de> for CostText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CostVisitor)
    }
}

impl JsonSchema for CostText {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "cost".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let units = Units::json_schema(generator);
        json_schema!({
            "anyOf": [
                units,
                {
                    "type": "object",
                    "properties": {
                        "response_header": HeaderName::schema(),
                        "estimate": units,
                    },
                    "required": ["response_header"],
                    "additionalProperties": false,
                },
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A response with these lines of the header `x-cost`.
    struct Lines(&'static [&'static [u8]]);

    impl ResponseInfo for Lines {
        fn status(&self) -> u16 {
            200
        }

        fn header_lines<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
            if name == "x-cost" {
                self.0.iter().for_each(|line| each(line));
            }
        }
    }

    #[test]
    fn a_response_has_a_cost_if_its_header_has_one_line_with_a_number() {
        let header = HeaderName::from_text("X-Cost").unwrap();
        let units = |lines| header.units(&Lines(lines)).map(Cost::units);
        assert_eq!(units(&[b"150"]), Some(150));
        assert_eq!(units(&[b" 0 "]), Some(0));
        let invalid: [&'static [&'static [u8]]; 6] =
            [&[], &[b""], &[b"-1"], &[b"1.5"], &[b"\xff"], &[b"1", b"2"]];
        for lines in invalid {
            assert_eq!(units(lines), None, "{lines:?}");
        }
        assert!(HeaderName::from_text("x cost").is_err());
    }
}
