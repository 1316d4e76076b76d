//! From the limiter's header lines to those of `http`.

use std::sync::LazyLock;

use http::{HeaderMap, HeaderName, HeaderValue};
use rl_core::headers::{HeaderLine, NAMES};

/// The names as `http` has them: it checks each when it is made.
static FIELD_NAMES: LazyLock<[HeaderName; NAMES.len()]> =
    LazyLock::new(|| NAMES.map(HeaderName::from_static));

/// Adds a line: beside those that are there if the field is a list, else in their place.
pub(crate) fn add(headers: &mut HeaderMap, line: HeaderLine<'_>) {
    let name = FIELD_NAMES[line.place()].clone();
    let value = match line.known_value() {
        Some(value) => HeaderValue::from_static(value),
        None => HeaderValue::from_str(line.value).expect("lines are visible ASCII and spaces"),
    };
    if line.is_list {
        headers.append(name, value);
    } else {
        headers.insert(name, value);
    }
}
