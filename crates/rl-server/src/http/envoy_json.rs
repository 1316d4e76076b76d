//! `/json`: the call of Envoy's rate limit service, as proto3 JSON.

use std::fmt;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use prost_types::value::Kind;
use prost_types::{Duration, Struct, Value as ProtoValue};
use rl_core::store::Mode;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::decide::status_of;
use super::json_body::{self, require_json};
use super::problem::Problem;
use super::settings::HttpState;
use crate::grpc::messages::{
    Code, DescriptorStatus, Entry, HeaderValue, RateLimitDescriptor, RateLimitOverride,
    RateLimitRequest, RateLimitResponse, Unit,
};
use crate::grpc::response;
use crate::request::{Descriptors, GatewayRequest};

/// The names of periods in JSON.
const UNITS: [(&str, Unit); 8] = [
    ("UNKNOWN", Unit::Unknown),
    ("SECOND", Unit::Second),
    ("MINUTE", Unit::Minute),
    ("HOUR", Unit::Hour),
    ("DAY", Unit::Day),
    ("MONTH", Unit::Month),
    ("YEAR", Unit::Year),
    ("WEEK", Unit::Week),
];

/// Decides the request of Envoy's rate limit service in its JSON form
///
/// The names of fields may be in camelCase or snake_case. The response is that of
/// `ShouldRateLimit`.
#[utoipa::path(post, path = "/json", tag = "gateways",
    request_body(content = Object, description = "An envoy.service.ratelimit.v3.RateLimitRequest"),
    responses(
        (status = 200, body = Object, description = "An envoy.service.ratelimit.v3.RateLimitResponse: within the limits"),
        (status = 429, body = Object, description = "An envoy.service.ratelimit.v3.RateLimitResponse: over a limit"),
        (status = 503, body = Object, description = "Not decided, and rejected then"),
        (status = 400, body = Problem, description = "A value is not valid"),
        (status = 401, body = Problem, description = "The token is missing or wrong"),
        (status = 403, body = Problem, description = "There is no token, and the caller is neither a gateway nor on this machine"),
    ))]
pub(super) async fn decide_json(
    State(state): State<Arc<HttpState>>,
    request: Request,
) -> Result<(StatusCode, Json<Value>), Problem> {
    // A page of another site could otherwise use the browser of an administrator.
    if request.headers().contains_key(header::ORIGIN) {
        require_json(request.headers())?;
    }
    let request: RequestJson = json_body::read(request.into_body()).await?;
    let request = RateLimitRequest::from(request);
    let count = request.descriptors.len();
    let descriptors = Descriptors::try_from(request)
        .map_err(|status| Problem::invalid("descriptors", status.message()))?;
    let request = GatewayRequest::with_descriptors(descriptors);
    let reply = state.service.decide_descriptors(&request, Mode::Check).await;
    let status = reply.denial.as_ref().map_or(StatusCode::OK, status_of);
    Ok((status, Json(to_json(&response(reply, count)))))
}

/// The JSON form of a [`RateLimitRequest`].
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct RequestJson {
    #[serde(deserialize_with = "or_default")]
    domain: String,
    #[serde(deserialize_with = "or_default")]
    descriptors: Vec<DescriptorJson>,
    #[serde(alias = "hits_addend", deserialize_with = "uint32")]
    hits_addend: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct DescriptorJson {
    #[serde(deserialize_with = "or_default")]
    entries: Vec<EntryJson>,
    limit: Option<OverrideJson>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Uint64Json>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct EntryJson {
    #[serde(deserialize_with = "or_default")]
    key: String,
    #[serde(deserialize_with = "or_default")]
    value: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct OverrideJson {
    #[serde(alias = "requests_per_unit", deserialize_with = "uint32")]
    requests_per_unit: u32,
    #[serde(deserialize_with = "unit")]
    unit: i32,
}

/// A number, or a text with its digits.
#[derive(Clone, Copy, Debug)]
struct Uint64Json(u64);

impl From<RequestJson> for RateLimitRequest {
    fn from(request: RequestJson) -> Self {
        let entry = |EntryJson { key, value }| Entry::new(&key, &value);
        let descriptors = request.descriptors.into_iter().map(|descriptor| RateLimitDescriptor {
            is_negative_hits: false,
            entries: descriptor.entries.into_iter().map(entry).collect(),
            limit: descriptor.limit.map(|limit| RateLimitOverride {
                requests_per_unit: limit.requests_per_unit,
                unit: limit.unit,
            }),
            hits_addend: descriptor.hits_addend.map(|Uint64Json(hits)| hits),
        });
        Self {
            domain: request.domain,
            descriptors: descriptors.collect(),
            hits_addend: request.hits_addend,
        }
    }
}

impl<'de> Deserialize<'de> for Uint64Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberVisitor;

        impl Visitor<'_> for NumberVisitor {
            type Value = Uint64Json;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number that is not negative")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Uint64Json, E> {
                Ok(Uint64Json(number))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Uint64Json, E> {
                let invalid = |_| E::invalid_value(Unexpected::Str(text), &self);
                text.parse().map(Uint64Json).map_err(invalid)
            }
        }

        deserializer.deserialize_any(NumberVisitor)
    }
}

/// Reads a value for which `null` is the default, as for all fields of proto3.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn uint32<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let Some(Uint64Json(number)) = Option::deserialize(deserializer)? else { return Ok(0) };
    let expected = &"a whole number from 0 to 4294967295";
    number.try_into().map_err(|_| D::Error::invalid_value(Unexpected::Unsigned(number), expected))
}

fn unit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    struct UnitVisitor;

    impl Visitor<'_> for UnitVisitor {
        type Value = i32;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR")
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<i32, E> {
            let invalid = |_| E::invalid_value(Unexpected::Unsigned(number), &self);
            number.try_into().map_err(invalid)
        }

        fn visit_str<E: Error>(self, name: &str) -> Result<i32, E> {
            let known = UNITS.iter().find(|(known, _)| *known == name);
            let invalid = || E::invalid_value(Unexpected::Str(name), &self);
            known.map(|(_, unit)| *unit as i32).ok_or_else(invalid)
        }

        fn visit_unit<E: Error>(self) -> Result<i32, E> {
            Ok(Unit::Unknown as i32)
        }
    }

    deserializer.deserialize_any(UnitVisitor)
}

/// Returns the JSON form of a response. Fields with their default value are left out.
fn to_json(response: &RateLimitResponse) -> Value {
    let mut object = Map::new();
    object.insert("overallCode".into(), code(response.overall_code()).into());
    let statuses: Vec<Value> = response.statuses.iter().map(status).collect();
    let mut insert = |name: &str, list: Vec<Value>| {
        if !list.is_empty() {
            object.insert(name.into(), list.into());
        }
    };
    insert("statuses", statuses);
    insert("responseHeadersToAdd", headers(&response.response_headers_to_add));
    insert("requestHeadersToAdd", headers(&response.request_headers_to_add));
    if !response.raw_body.is_empty() {
        object.insert("rawBody".into(), BASE64_STANDARD.encode(&response.raw_body).into());
    }
    if let Some(metadata) = &response.dynamic_metadata {
        object.insert("dynamicMetadata".into(), fields(metadata));
    }
    object.into()
}

const fn code(code: Code) -> &'static str {
    match code {
        Code::Unknown => "UNKNOWN",
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}

fn status(status: &DescriptorStatus) -> Value {
    let mut object = Map::new();
    object.insert("code".into(), code(status.code()).into());
    if let Some(limit) = &status.current_limit {
        let unit = UNITS.iter().find(|(_, unit)| *unit == limit.unit());
        let unit = unit.map_or("UNKNOWN", |(name, _)| name);
        let mut current = json!({ "requestsPerUnit": limit.requests_per_unit, "unit": unit });
        if !limit.name.is_empty() {
            current["name"] = limit.name.as_str().into();
        }
        object.insert("currentLimit".into(), current);
    }
    if status.limit_remaining > 0 {
        object.insert("limitRemaining".into(), status.limit_remaining.into());
    }
    if let Some(reset) = &status.duration_until_reset {
        object.insert("durationUntilReset".into(), duration(reset).into());
    }
    object.into()
}

/// Returns a duration in seconds, with 0, 3, 6 or 9 digits after the point.
fn duration(time: &Duration) -> String {
    let (seconds, nanos) = (time.seconds, time.nanos);
    match nanos {
        0 => format!("{seconds}s"),
        _ if nanos % 1_000_000 == 0 => format!("{seconds}.{:03}s", nanos / 1_000_000),
        _ if nanos % 1_000 == 0 => format!("{seconds}.{:06}s", nanos / 1_000),
        _ => format!("{seconds}.{nanos:09}s"),
    }
}

fn headers(headers: &[HeaderValue]) -> Vec<Value> {
    let headers = headers.iter();
    headers.map(|header| json!({ "key": header.key, "value": header.value })).collect()
}

fn fields(object: &Struct) -> Value {
    let fields = object.fields.iter().map(|(name, field)| (name.clone(), value(field)));
    Value::Object(fields.collect())
}

fn value(of: &ProtoValue) -> Value {
    match &of.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => (*number).into(),
        Some(Kind::StringValue(text)) => text.as_str().into(),
        Some(Kind::BoolValue(flag)) => (*flag).into(),
        Some(Kind::StructValue(object)) => fields(object),
        Some(Kind::ListValue(list)) => list.values.iter().map(value).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_digits_of_proto3_json() {
        for (seconds, nanos, expected) in [
            (60, 0, "60s"),
            (1, 500_000_000, "1.500s"),
            (0, 1_000, "0.000001s"),
            (3, 7, "3.000000007s"),
        ] {
            assert_eq!(duration(&Duration { seconds, nanos }), expected);
        }
    }
}
