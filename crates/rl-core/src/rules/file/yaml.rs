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
    const MAX: usize = MAX_LEN as usize;

    let budget = serde_saphyr::budget! { max_nodes: MAX, max_events: 2 * MAX };
    serde_saphyr::from_str_with_options(text, serde_saphyr::options! { budget: budget })
}

/// Returns the message of an error without its end ` at line …`, because the errors of files begin
/// with the place.
pub(super) fn message(error: &Error) -> String {
    let mut message = error.without_snippet().render_with_formatter(&UserMessageFormatter);
    message.truncate(message.rfind(" at line ").unwrap_or(message.len()));
    message.trim().to_owned()
}
