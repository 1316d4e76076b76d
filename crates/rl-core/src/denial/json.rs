//! Writes JSON strings; three small objects do not justify a dependency on a JSON library.

use std::fmt::Write;

/// Appends `text` as a JSON string.
pub(crate) fn push_string(json: &mut String, text: &str) {
    json.push('"');
    push_escaped(json, text);
    json.push('"');
}

/// Appends `text` with the escapes of a JSON string, without quotes.
pub(super) fn push_escaped(json: &mut String, text: &str) {
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|b| matches!(b, b'"' | b'\\' | 0..=0x1f)) {
        let (plain, special) = rest.split_at(at);
        json.push_str(plain);
        rest = &special[1..];
        match special.as_bytes()[0] {
            quote @ (b'"' | b'\\') => json.extend(['\\', char::from(quote)]),
            control => write!(json, "\\u{control:04x}").expect("writing to a String cannot fail"),
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
