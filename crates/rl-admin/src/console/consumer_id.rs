use axum::http::StatusCode;

use super::failure::Failure;

/// Checks that `id` can be the consumer id of a record.
pub(super) fn check_consumer_id(id: &str) -> Result<&str, Failure> {
    let is_valid = (1..=250).contains(&id.len()) && !id.chars().any(char::is_control);
    if is_valid {
        return Ok(id);
    }
    let message =
        "Expected the id of a consumer: 1 to 250 bytes of text without control characters.";
    Err(Failure::new(StatusCode::BAD_REQUEST, "No such consumer", message))
}
