//! Variables of the environment, and secrets in files of their own.

use std::env;
use std::fs;

/// Replaces each `${NAME}` with the value of the environment variable. `${NAME:-text}` is replaced
/// with `text` if the variable is unset or empty. `$$` is one `$`.
///
/// # Errors
///
/// Returns an error if a variable is not set. The error contains no value of a variable.
pub(super) fn expanded(text: &str) -> Result<String, String> {
    expand(text, &|name| env::var(name).ok().filter(|value| !value.is_empty()))
}

fn expand(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        result.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            result.push('$');
            rest = after;
            continue;
        }
        let inside = after.strip_prefix('{').and_then(|after| after.split_once('}'));
        let Some((inside, after)) = inside else {
            return Err(format!("{text:?}: expected ${{VARIABLE}}, or $$ for a dollar sign"));
        };
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        match variable(name).or_else(|| default.map(str::to_owned)) {
            Some(value) => result.push_str(&value),
            None => {
                return Err(format!(
                    "variable ${{{name}}} is not set: expected it in the environment"
                ));
            }
        }
        rest = after;
    }
    result.push_str(rest);
    Ok(result)
}

/// Returns the content of the file if `text` is `file:PATH`, without the line break at its end.
/// Otherwise returns `text` with its variables replaced.
///
/// # Errors
///
/// Returns an error if the file cannot be read, or a variable is not set. The error contains no
/// secret.
pub(super) fn expanded_secret(text: &str) -> Result<String, String> {
    let Some(path) = text.strip_prefix("file:") else { return expanded(text) };
    let path = expanded(path)?;
    let content = fs::read_to_string(&path).map_err(|error| format!("file:{path}: {error}"))?;
    Ok(content.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced() {
        let variable = |name: &str| (name == "A").then(|| "1".to_owned());
        let expand = |text| expand(text, &variable);
        for (text, expected) in [
            ("", ""),
            ("x", "x"),
            ("${A}", "1"),
            ("<${A}${A}>", "<11>"),
            ("${B:-2}/${A:-2}", "2/1"),
            ("${B:-}", ""),
            ("a$$b$${A}", "a$b${A}"),
        ] {
            assert_eq!(expand(text).unwrap(), expected, "{text}");
        }
        assert_eq!(
            expand("x${B}").unwrap_err(),
            "variable ${B} is not set: expected it in the environment"
        );
        for text in ["$", "$A", "${A", "a${"] {
            let error = expand(text).unwrap_err();
            assert!(error.ends_with("expected ${VARIABLE}, or $$ for a dollar sign"), "{error}");
        }
    }
}
