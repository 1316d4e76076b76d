/// The field that serde complains of, and what it expected.
///
/// What the client sent, which its sentences quote, is left out.
pub(crate) fn field_and_expected(path: &str, message: &str) -> (String, String) {
    let quoted = |kind: &str| {
        let rest = message.strip_prefix(kind)?.strip_prefix(" field `")?;
        // The name of a field that is not known may have anything in it.
        let (name, rest) = rest.rsplit_once("`, expected").unwrap_or((rest, ""));
        let name = if rest.is_empty() { name.split('`').next().unwrap_or_default() } else { name };
        Some(name.chars().take(80).collect::<String>())
    };
    if let Some(field) = quoted("missing") {
        return (field, "a value: it is missing".to_owned());
    }
    if let Some(field) = quoted("duplicate") {
        return (field, "one value: it is there twice".to_owned());
    }
    let expected = message.rsplit_once("expected ").map_or("something else", |(_, text)| text);
    let expected = expected.split(" at line ").next().unwrap_or_default();
    if let Some(field) = quoted("unknown") {
        // Of the names in the list, those that are taken for others are not told.
        let names = expected.trim_start_matches("one of ").split(", ");
        let names: Vec<_> = names.filter(|name| !name.ends_with("_rate_limit`")).collect();
        return (
            field,
            format!("one of {}: there is no such field", names.join(", ").replace('`', "")),
        );
    }
    let field = if path == "." { "body" } else { path };
    (field.to_owned(), expected.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_of_serde_become_a_field_and_what_was_expected() {
        #[rustfmt::skip]
        let table = [
            ("a.b", "invalid type: string \"x\", expected u64 at line 1 column 9", "a.b", "u64"),
            ("day", "expected a time such as 2025", "day", "a time such as 2025"),
            (".", "missing field `to_date` at line 1 column 2", "to_date", "a value: it is missing"),
            (".", "duplicate field `to_date`", "to_date", "one value: it is there twice"),
            ("x", "unknown field `x`, expected one of `a`, `b`", "x", "one of a, b: there is no such field"),
            ("x", "unknown field `y`, expected `b`, expected `a`", "y`, expected `b", "one of a: there is no such field"),
            (".", "invalid type: null, expected struct Input", "body", "struct Input"),
        ];
        for (path, message, field, expected) in table {
            let found = field_and_expected(path, message);
            assert_eq!((&*found.0, &*found.1), (field, expected), "{message}");
        }
    }
}
