//! Reads YAML, of which JSON is a part.

use serde::de::DeserializeOwned;
use serde_saphyr::{Error, UserMessageFormatter};

use super::disk::MAX_LEN;

/// Reads a text of at most [`MAX_LEN`] bytes.
///
/// The length alone bounds the number of values. The default of the parser would refuse a file of
/// keys with a sixth of that length.
///
/// # Errors
///
/// Returns an error if the text has another structure than `T`.
pub(super) fn from_yaml<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    from_yaml_of(text, MAX_LEN as usize)
}

/// Reads a text with at most this number of values, also if its aliases repeat them.
///
/// # Errors
///
/// Returns an error if the text has more values, or another structure than `T`.
pub(super) fn from_yaml_of<T: DeserializeOwned>(text: &str, max_values: usize) -> Result<T, Error> {
    let budget = serde_saphyr::budget! { max_nodes: max_values, max_events: 2 * max_values };
    serde_saphyr::from_str_with_options(text, serde_saphyr::options! { budget: budget })
}

/// Returns the message of an error without its end ` at line …`, because the errors of files begin
/// with the place.
pub(super) fn message(error: &Error) -> String {
    let mut message = error.without_snippet().render_with_formatter(&UserMessageFormatter);
    message.truncate(message.rfind(" at line ").unwrap_or(message.len()));
    message.trim().to_owned()
}
