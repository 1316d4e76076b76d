//! JSON, as much as two small objects need.

use std::fmt::Write;

/// Appends `text` as a JSON string.
pub(super) fn push_string(json: &mut String, text: &str) {
    json.push('"');
    push_escaped(json, text);
    json.push('"');
}

/// Appends `text` as it stands inside of a JSON string.
pub(super) fn push_escaped(json: &mut String, text: &str) {
    let mut rest = text;
    // Nearly always there is nothing to escape.
    while let Some(at) = rest.bytes().position(|b| matches!(b, b'"' | b'\\' | 0..=0x1f)) {
        let (plain, special) = rest.split_at(at);
        json.push_str(plain);
        rest = &special[1..];
        match special.as_bytes()[0] {
            quote @ (b'"' | b'\\') => json.extend(['\\', char::from(quote)]),
            control => write!(json, "\\u{control:04x}").expect("a String takes all text"),
        }
    }
    json.push_str(rest);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_a_string(text in any::<String>()) {
            let mut json = String::new();
            push_string(&mut json, &text);
            prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }
    }
}
