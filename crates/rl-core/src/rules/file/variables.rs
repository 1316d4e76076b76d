//! Variables of the environment, and secrets in files of their own.

use std::path::PathBuf;
use std::sync::Arc;

use super::disk::read_regular;

/// The maximum length of a file with a secret, in bytes.
const MAX_SECRET_LEN: u64 = 64 * 1024;

/// Replaces each `${NAME}` with the value of the environment variable. `${NAME:-text}` is replaced
/// with `text` if the variable is unset or empty. `$$` is one `$`.
///
/// # Errors
///
/// Returns an error if a variable is not set. The error contains no value of a variable.
pub(super) fn expanded(text: &str) -> Result<String, String> {
    expand(text, &variable).map_err(|error| match error {
        ExpandError::Syntax => format!("{:?}: {SYNTAX}", clipped(text)),
        ExpandError::NotSet(name) => not_set(&name),
    })
}

/// Returns at most 80 characters of a text for an error.
pub(super) fn clipped(text: &str) -> String {
    text.chars().take(80).collect()
}

/// The error for a dollar sign that begins no variable. Without quotes, YAML ends a text inside
/// `{ }` at the brace of a variable.
const SYNTAX: &str =
    "expected ${VARIABLE}, inside { } in quotes: \"${VARIABLE}\"; or $$ for a dollar sign";

fn not_set(name: &str) -> String {
    format!("variable ${{{name}}} is not set: expected it in the environment")
}

/// Returns the value of a variable of the environment, unless it is unset or empty.
fn variable(name: &str) -> Option<String> {
    #[cfg(test)]
    if let Some(value) = tests::variable(name) {
        return Some(value);
    }
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The reason why the variables of a text cannot be replaced.
#[derive(Debug, PartialEq, Eq)]
enum ExpandError {
    /// A dollar sign begins no variable.
    Syntax,
    /// The variable with this name is not set.
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
        if !is_name(name) {
            return Err(ExpandError::Syntax);
        }
        match variable(name).or_else(|| default.map(str::to_owned)) {
            Some(value) => result.push_str(&value),
            None => return Err(ExpandError::NotSet(name.to_owned())),
        }
        rest = after;
    }
    result.push_str(rest);
    Ok(result)
}

/// Returns whether a text may be the name of a variable.
fn is_name(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    !text.is_empty() && text.bytes().all(fits) && !text.starts_with(|c: char| c.is_ascii_digit())
}

/// Returns whether a text is one variable and nothing else.
fn is_variable(text: &str) -> bool {
    let name = text.strip_prefix("${").and_then(|text| text.strip_suffix('}'));
    name.is_some_and(is_name)
}

/// A file that has a secret as its content.
#[derive(Clone)]
pub(super) struct SecretFile {
    pub(super) path: PathBuf,
    pub(super) bytes: Arc<[u8]>,
}

/// Returns the content of the file if `text` is `file:PATH`, without the line break at its end, and
/// the file. Otherwise returns `text` with its variables replaced.
///
/// # Errors
///
/// Returns an error if the file cannot be read, or a variable is not set. The error contains no
/// secret: neither the text, which may be the secret itself, nor the value of a variable.
pub(super) fn expanded_secret(text: &str) -> Result<(String, Option<SecretFile>), String> {
    let Some(path) = text.strip_prefix("file:") else {
        let text = expand(text, &variable).map_err(|error| match error {
            ExpandError::Syntax => format!("a dollar sign: {SYNTAX}"),
            ExpandError::NotSet(name) => not_set(&name),
        });
        return text.map(|text| (text, None));
    };
    let shown = if is_variable(path) { text } else { "file:…" };
    let path = expand(path, &variable).map_err(|error| match error {
        ExpandError::Syntax => format!("{shown}: a dollar sign: {SYNTAX}"),
        ExpandError::NotSet(_) => {
            format!("{shown}: a variable is not set: expected it in the environment")
        }
    })?;
    let path = PathBuf::from(path);
    let content = read_regular(&path, MAX_SECRET_LEN);
    let bytes = content.map_err(|error| format!("{shown}: {error}"))?.bytes;
    let text = std::str::from_utf8(&bytes);
    let text = text.map_err(|_| format!("{shown}: the content of the file is not UTF-8"))?;
    let text = text.trim_end_matches(['\r', '\n']).to_owned();
    Ok((text, Some(SecretFile { path, bytes })))
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        static VARIABLES: RefCell<Vec<(String, String)>> = const { RefCell::new(Vec::new()) };
    }

    /// Sets a variable for the rest of a test, on this thread only.
    pub(in crate::rules::file) fn set_variable(name: &str, value: &str) {
        VARIABLES.with_borrow_mut(|all| all.insert(0, (name.to_owned(), value.to_owned())));
    }

    pub(super) fn variable(name: &str) -> Option<String> {
        let named = |(known, _): &&(String, String)| known == name;
        VARIABLES.with_borrow(|all| all.iter().find(named).map(|(_, value)| value.clone()))
    }

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
        assert_eq!(expand("x${B}"), Err(ExpandError::NotSet("B".to_owned())));
        for text in ["$", "$A", "${A", "a${", "${}", "${a b}", "${1}", "${a$b}"] {
            assert_eq!(expand(text), Err(ExpandError::Syntax), "{text}");
        }
        assert_eq!(expanded("a$"), Err(format!("\"a$\": {SYNTAX}")));
        assert_eq!(expanded_secret("a$").err(), Some(format!("a dollar sign: {SYNTAX}")));
    }

    #[test]
    fn an_error_shows_the_text_after_file_only_if_it_is_a_variable() {
        set_variable("SECRET", "/hunter2");
        for (text, expected) in [
            ("file:${SECRET}", "file:${SECRET}: No such file or directory (os error 2)"),
            ("file:/hunter2", "file:…: No such file or directory (os error 2)"),
            ("file:${SECRET}/a", "file:…: No such file or directory (os error 2)"),
            ("file:${RL_UNSET}", "file:${RL_UNSET}: a variable is not set"),
            ("file:/hunter2/${RL_UNSET}", "file:…: a variable is not set"),
            ("file:/hunter2$", "file:…: a dollar sign: expected"),
            ("file:/", "file:…: a directory: expected a regular file"),
            ("file:/dev/zero", "file:…: a pipe, socket or device: expected a regular file"),
        ] {
            let error = expanded_secret(text).err().unwrap();
            assert!(error.starts_with(expected) && !error.contains("hunter2"), "{error}");
        }
    }
}
