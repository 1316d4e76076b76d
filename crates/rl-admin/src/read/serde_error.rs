use crate::error::ApiError;

/// Converts an error of serde into an error that names the field and the expected value in plain
/// words.
///
/// The messages of serde quote the value that the client sent. The result omits this value.
pub(crate) fn from_serde(path: &str, message: &str) -> ApiError {
    let quoted = |kind: &str| {
        let rest = message.strip_prefix(kind)?.strip_prefix(" field `")?;
        // The client chooses the name of an unknown field, so the name may contain the separator
        // too. The last separator is the one that serde has written.
        let (name, rest) = rest.rsplit_once("`, expected").unwrap_or((rest, ""));
        let name = if rest.is_empty() { name.split('`').next().unwrap_or_default() } else { name };
        Some(name.chars().take(80).collect::<String>())
    };
    if let Some(field) = quoted("missing") {
        return ApiError::fields(&[], &[&*field], &[]);
    }
    if let Some(field) = quoted("duplicate") {
        return ApiError::invalid(&field, "one value, found two");
    }
    let expected = expected_by(message).split(" at line ").next().unwrap_or_default();
    if let Some(field) = quoted("unknown") {
        let expected = expected.replace('`', "");
        let names: Vec<_> = expected.trim_start_matches("one of ").split(", ").collect();
        return ApiError::fields(&[&*field], &[], &names);
    }
    let field = if path == "." { "body" } else { path };
    ApiError::invalid(field, plain(expected))
}

/// Returns what a message expects. Some messages say only what they do not expect.
fn expected_by(message: &str) -> &str {
    match message.rsplit_once("expected ") {
        Some((before, expected)) if !before.ends_with("un") => expected,
        _ if message.starts_with("number out of range") => "a number between -1e308 and 1e308",
        _ if message.contains("escape") || message.contains("surrogate") => {
            "text with valid escapes"
        }
        _ => "another value",
    }
}

/// Replaces names of Rust types by plain words.
fn plain(expected: &str) -> &str {
    match expected {
        "u64" | "u32" | "u16" | "u8" => "a whole number from 0 to 9007199254740991",
        "i64" | "i32" | "i16" | "i8" => "a whole number",
        "a string" | "a borrowed string" | "string" => "text",
        "a sequence" => "a list",
        "a map" => "an object",
        "a boolean" => "true or false",
        expected if expected.starts_with("struct ") => "an object",
        expected => expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_serde_become_a_field_and_an_expected_value() {
        #[rustfmt::skip]
        let table = [
            ("a.b", "invalid type: string \"x\", expected u64 at line 1 column 9", "a.b", "a.b: expected a whole number from 0 to 9007199254740991"),
            ("day", "expected a time such as 2025", "day", "day: expected a time such as 2025"),
            (".", "missing field `to_date` at line 1 column 2", "to_date", "missing field: to_date"),
            (".", "duplicate field `to_date`", "to_date", "to_date: expected one value, found two"),
            ("x", "unknown field `x`, expected one of `a`, `b`", "x", "unknown field: x; expected one of a, b"),
            ("x", "unknown field `x`, expected `a`", "x", "unknown field: x; expected a"),
            ("x", "unknown field `y`, expected `b`, expected `a`", "y`, expected `b", "unknown field: y`, expected `b; expected a"),
            (".", "invalid type: null, expected struct Input", "body", "body: expected an object"),
            ("apps", "invalid type: null, expected a sequence", "apps", "apps: expected a list"),
            ("day", "number out of range at line 1 column 9", "day", "day: expected a number between -1e308 and 1e308"),
            ("name", "unexpected end of hex escape at line 1 column 9", "name", "name: expected text with valid escapes"),
            ("name", "lone leading surrogate in hex escape", "name", "name: expected text with valid escapes"),
            ("name", "invalid value", "name", "name: expected another value"),
        ];
        for (path, message, field, expected) in table {
            let found = from_serde(path, message);
            assert_eq!((found.field(), &*found.to_string()), (Some(field), expected), "{message}");
        }
    }
}
