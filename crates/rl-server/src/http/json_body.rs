//! Reads the JSON body of a call.

use std::error::Error;
use std::time::Duration;

use axum::body::{Body, HttpBody, to_bytes};
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::LengthLimitError;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::problem::Problem;

/// The size limit of a body, in bytes.
pub(super) const MAX_BODY: usize = 64 * 1_024;

/// The time limit for a whole body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of characters of a value in an error.
const MAX_SHOWN: usize = 120;

/// Reads a body.
///
/// # Errors
///
/// Returns 400 for a body that is not the expected JSON, 408 if it takes too long, and 413 if it is
/// too long.
pub(super) async fn read<T: DeserializeOwned>(body: Body) -> Result<T, Problem> {
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(too_long());
    }
    match timeout(BODY_TIMEOUT, to_bytes(body, MAX_BODY)).await {
        Ok(Ok(bytes)) => parse(&bytes),
        Ok(Err(error)) if is_too_long(&error) => Err(too_long()),
        Ok(Err(_)) => Err(Problem::invalid("body", "body: expected the whole body")),
        Err(_) => {
            let message =
                format!("body: expected to arrive within {} seconds", BODY_TIMEOUT.as_secs());
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, message))
        }
    }
}

/// Requires the media type of JSON, which a page of another site cannot send to a server on the
/// machine of a browser.
pub(super) fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let media = headers.get(header::CONTENT_TYPE).and_then(|media| media.to_str().ok());
    let media = media.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if media.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let message = "Content-Type: expected application/json";
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

fn too_long() -> Problem {
    let message = format!("body: expected at most {MAX_BODY} bytes");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}

fn is_too_long(error: &axum::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Parses a value.
///
/// # Errors
///
/// Returns a 400 that names the field, the value and what is expected.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        invalid(&path, error.inner())
    })?;
    json.end().map_err(|error| invalid(".", &error))?;
    Ok(parsed)
}

fn invalid(path: &str, error: &serde_json::Error) -> Problem {
    let field = if path == "." { "body" } else { path };
    let message = error.to_string();
    let (line, column) = (error.line(), error.column());
    let message = message.strip_suffix(&format!(" at line {line} column {column}"));
    let message = message.map_or_else(|| error.to_string(), ToOwned::to_owned);
    if !error.is_data() {
        let message = format!("body: not JSON: {message} at line {line}, column {column}");
        return Problem::invalid("body", message);
    }
    let message = match message.rsplit_once(", expected ") {
        Some((given, expected)) => format!("{}, expected {}", shortened(given), plain(expected)),
        None => shortened(&message),
    };
    Problem::invalid(field, format!("{field}: {message}"))
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Replaces names of Rust types by plain words.
fn plain(expected: &str) -> &str {
    match expected {
        "u64" => "a whole number from 0 to 9007199254740991",
        "a string" => "text",
        "a sequence" => "a list",
        "a map" => "an object",
        "a boolean" => "true or false",
        expected if expected.starts_with("struct ") => "an object",
        expected => expected,
    }
}
