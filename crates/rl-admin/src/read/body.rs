use std::fmt;
use std::time::Duration;

use axum::body::HttpBody;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};

use super::scope::actor_of;
use super::serde_error::from_serde;
use crate::access::Actor;
use crate::audit;
use crate::error::ApiError;

/// The time limit for reading a whole body.
///
/// `RequestBodyTimeoutLayer` of tower-http limits only the time between two frames, so it would
/// never stop a client that sends one byte at a time.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A type that can be the body of a request.
pub(crate) trait Input: DeserializeOwned {
    /// The required fields.
    const REQUIRED: &'static [&'static str];

    /// The optional fields, and the aliases of fields.
    const OPTIONAL: &'static [&'static str] = &[];

    /// The size limit in bytes, which differs between operations. It is not left to axum's
    /// body-limit layer, which would respond with plain text instead of JSON.
    const MAX_BYTES: usize = 16 * 1_024;

    /// Returns whether the body names only objects that the actor may change.
    fn is_within(&self, actor: &Actor) -> bool;
}

/// The JSON body of a request.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Sync, T: Input> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let actor = actor_of(&parts)?;
        let media = parts.headers.get(header::CONTENT_TYPE);
        let media = media.and_then(|media| media.to_str().ok()).unwrap_or_default();
        let media = media.split(';').next().unwrap_or_default().trim();
        if !media.eq_ignore_ascii_case("application/json") {
            let message = "Content-Type: expected application/json";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        // A `Content-Length` above the limit is rejected without reading the body.
        if body.size_hint().lower() > T::MAX_BYTES as u64 {
            return Err(too_long(T::MAX_BYTES));
        }
        let read = axum::body::to_bytes(body, T::MAX_BYTES);
        match tokio::time::timeout(BODY_TIMEOUT, read).await {
            Ok(Ok(bytes)) => check(parse(&bytes)?, actor).map(Self),
            Ok(Err(error)) if is_too_long(&error) => Err(too_long(T::MAX_BYTES)),
            Ok(Err(_)) => Err(ApiError::invalid("body", "all of it")),
            Err(_) => {
                let message = "body: expected within 10 seconds";
                Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message))
            }
        }
    }
}

fn check<T: Input>(body: T, actor: &Actor) -> Result<T, ApiError> {
    if body.is_within(actor) {
        return Ok(body);
    }
    audit::not_owned(actor);
    Err(ApiError::not_owned("no application of other users in the body, and at least one"))
}

fn too_long(max: usize) -> ApiError {
    let message = format!("body: expected at most {max} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}

fn is_too_long(error: &axum::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Parses a JSON object.
///
/// An error names the first fault in this order: invalid JSON with its position, JSON that is not
/// an object, all unknown and missing fields together, the first invalid value.
fn parse<T: Input>(bytes: &[u8]) -> Result<T, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let place = error.valid_up_to();
        ApiError::invalid_as("body", "JSON", format!("body: not JSON: not UTF-8 at byte {place}"))
    })?;
    let found = match text.trim_ascii_start().bytes().next() {
        None => return Err(not_an_object("nothing")),
        Some(byte) => byte,
    };
    if let Err(error) = serde_json::from_str::<IgnoredAny>(text) {
        let reason = error.to_string();
        let reason = reason.split(" at line ").next().unwrap_or_default();
        let (line, column) = (error.line(), error.column());
        let message = format!("body: not JSON: {reason} at line {line}, column {column}");
        return Err(ApiError::invalid_as("body", "JSON", message));
    }
    match found {
        b'{' => {}
        b'[' => return Err(not_an_object("a list")),
        b'"' => return Err(not_an_object("text")),
        b't' | b'f' => return Err(not_an_object("a Boolean")),
        b'n' => return Err(not_an_object("null")),
        _ => return Err(not_an_object("a number")),
    }
    let Keys(keys) = serde_json::from_str(text).map_err(|_| not_an_object("something else"))?;
    let is_known =
        |key: &String| T::REQUIRED.contains(&key.as_str()) || T::OPTIONAL.contains(&key.as_str());
    let unknown: Vec<&str> = keys.iter().filter(|key| !is_known(key)).map(String::as_str).collect();
    let missing = T::REQUIRED.iter().filter(|field| !keys.iter().any(|key| key == *field));
    let missing: Vec<&str> = missing.copied().collect();
    if !unknown.is_empty() || !missing.is_empty() {
        return Err(ApiError::fields(&unknown, &missing, &field_names::<T>()));
    }
    let mut json = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        from_serde(&path, &error.into_inner().to_string())
    })
}

/// Returns the field names for error messages, without the aliases `…_rate_limit`.
fn field_names<T: Input>() -> Vec<&'static str> {
    let all = T::REQUIRED.iter().chain(T::OPTIONAL);
    all.copied().filter(|name| !name.ends_with("_rate_limit")).collect()
}

fn not_an_object(found: &str) -> ApiError {
    let message = format!("body: expected a JSON object, found {found}");
    ApiError::invalid_as("body", "a JSON object", message)
}

/// The names of an object's fields, in order.
struct Keys(Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;

        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Keys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, IgnoredAny)) = map.next_entry()? {
                    keys.push(key);
                }
                Ok(Keys(keys))
            }
        }

        deserializer.deserialize_map(FieldsVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{
        DatesInput, LimitsInput, LimitsUpdate, MembershipInput, RateLimitInput, ResourceInput,
        ResourceUpdate, RuleUpdate, StatusInput, SubscriptionInput, TierUpdate, UntilInput,
    };

    fn problem(json: &[u8]) -> String {
        parse::<UntilInput>(json).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_fault_of_a_body_and_its_position() {
        #[rustfmt::skip]
        let table: [(&[u8], &str); 16] = [
            (b"",                      "body: expected a JSON object, found nothing"),
            (b" \n",                   "body: expected a JSON object, found nothing"),
            (b"[]",                    "body: expected a JSON object, found a list"),
            (b"null",                  "body: expected a JSON object, found null"),
            (b"\"x\"",                 "body: expected a JSON object, found text"),
            (b"-1",                    "body: expected a JSON object, found a number"),
            (b"true",                  "body: expected a JSON object, found a Boolean"),
            (b"{\"until\":\n NaN}",    "body: not JSON: expected value at line 2, column 2"),
            (b"{\"until\":",           "body: not JSON: EOF while parsing a value at line 1, column 9"),
            (b"{} {}",                 "body: not JSON: trailing characters at line 1, column 4"),
            (b"\xef\xbb\xbf{}",        "body: not JSON: expected value at line 1, column 1"),
            (b"{\"until\": \"\xff\"}", "body: not JSON: not UTF-8 at byte 11"),
            (b"{}",                    "missing field: until"),
            (b"{\"x\": 1, \"y\": 2}",  "unknown fields: x, y; missing field: until"),
            (b"{\"until\": {}}",       "until: expected text"),
            (b"{\"until\": \"2030-01-01T00:00:00Z\", \"until\": 1}", "until: expected one value, found two"),
        ];
        for (json, expected) in table {
            assert_eq!(problem(json), expected, "{}", String::from_utf8_lossy(json));
        }
    }

    #[test]
    fn all_missing_fields_are_named_at_once() {
        let error = parse::<RateLimitInput>(b"{}").map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), "missing fields: from_date, to_date");
        assert_eq!(error.field(), Some("from_date"));
        let error = parse::<ResourceInput>(b"{\"rate\": 1}").map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), "missing fields: name, apps");
    }

    #[test]
    fn the_listed_fields_match_the_structs() {
        fn check<T: Input>() {
            let error =
                serde_json::from_str::<T>("{\"no such field\": 1}").map(|_| ()).unwrap_err();
            let error = error.to_string();
            let listed = error.rsplit_once("expected ").unwrap().1;
            let listed = listed.split(" at line").next().unwrap().trim_start_matches("one of ");
            // serde separates two fields by `or`, and more by commas.
            let listed = listed.replace(" or ", ", ");
            let mut listed: Vec<_> =
                listed.split(", ").map(|name| name.trim_matches('`')).collect();
            let mut known: Vec<_> = T::REQUIRED.iter().chain(T::OPTIONAL).copied().collect();
            listed.sort_unstable();
            known.sort_unstable();
            assert_eq!(listed, known, "{}", std::any::type_name::<T>());
        }
        check::<RateLimitInput>();
        check::<LimitsInput>();
        check::<LimitsUpdate>();
        check::<SubscriptionInput>();
        check::<StatusInput>();
        check::<DatesInput>();
        check::<TierUpdate>();
        check::<MembershipInput>();
        check::<ResourceInput>();
        check::<ResourceUpdate>();
        check::<RuleUpdate>();
        check::<UntilInput>();
    }
}
