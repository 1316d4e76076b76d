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
    expand(text, &variable).map_err(|error| match error {
        ExpandError::Syntax => {
            format!("{text:?}: expected ${{VARIABLE}}, or $$ for a dollar sign")
        }
        ExpandError::NotSet(error) => error,
    })
}

/// Returns the value of a variable of the environment, unless it is unset or empty.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The reason why the variables of a text cannot be replaced.
#[derive(Debug, PartialEq, Eq)]
enum ExpandError {
    /// A dollar sign begins no variable.
    Syntax,
    /// A variable is not set. Contains the message, which names the variable.
    NotSet(String),
}

fn expand(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, ExpandError> {
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
            return Err(ExpandError::Syntax);
        };
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        match variable(name).or_else(|| default.map(str::to_owned)) {
            Some(value) => result.push_str(&value),
            None => {
                return Err(ExpandError::NotSet(format!(
                    "variable ${{{name}}} is not set: expected it in the environment"
                )));
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
    let Some(path) = text.strip_prefix("file:") else {
        return expand(text, &variable).map_err(|error| match error {
            // The text may be the secret itself.
            ExpandError::Syntax => {
                "a dollar sign: expected ${VARIABLE}, or $$ for a dollar sign".to_owned()
            }
            ExpandError::NotSet(error) => error,
        });
    };
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
        let not_set = "variable ${B} is not set: expected it in the environment";
        assert_eq!(expand("x${B}"), Err(ExpandError::NotSet(not_set.to_owned())));
        for text in ["$", "$A", "${A", "a${"] {
            assert_eq!(expand(text), Err(ExpandError::Syntax), "{text}");
        }
        let expected = "expected ${VARIABLE}, or $$ for a dollar sign";
        assert_eq!(expanded("a$"), Err(format!("\"a$\": {expected}")));
        assert_eq!(expanded_secret("a$"), Err(format!("a dollar sign: {expected}")));
    }
}
