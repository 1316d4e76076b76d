//! Reads YAML, of which JSON is a part, and TOML, with the place of each error.

use std::fmt;
use std::path::Path;

use rl_serve::read_regular_file;
use serde::de::DeserializeOwned;
use serde_saphyr::{Error, Location, UserMessageFormatter};

/// The maximum length of a file, in bytes.
pub const MAX_LEN: usize = 8 * 1024 * 1024;

/// An error at a place of a text.
#[derive(Debug)]
pub struct TextError {
    place: Option<(u64, u64)>,
    reason: String,
}

impl TextError {
    /// Creates an error at a place.
    #[must_use]
    pub fn new(place: Location, reason: String) -> Self {
        Self { place: Some((place.line(), place.column())), reason }
    }

    /// Creates an error without a place.
    #[must_use]
    pub const fn without_place(reason: String) -> Self {
        Self { place: None, reason }
    }

    /// Creates an error at the line and column of the byte at `offset`.
    #[must_use]
    pub fn at_offset(text: &str, offset: Option<usize>, reason: String) -> Self {
        let before = offset.and_then(|offset| text.get(..offset));
        let place = before.map(|before| {
            let line = before.rsplit('\n').next().unwrap_or_default();
            (before.matches('\n').count() as u64 + 1, line.chars().count() as u64 + 1)
        });
        Self { place, reason }
    }

    /// Returns the text of the error in a file with this name.
    #[must_use]
    pub fn in_file(&self, file: &str) -> String {
        let Self { place, reason } = self;
        match place {
            Some((line, column)) => format!("{file}:{line}:{column}: {reason}"),
            None => format!("{file}: {reason}"),
        }
    }
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.place {
            write!(f, "line {line}, column {column}: ")?;
        }
        f.write_str(&self.reason)
    }
}

/// Returns whether a file is TOML, by the end of its name. Any other is YAML.
#[must_use]
pub fn is_toml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}

/// Reads the text of a regular file of at most [`MAX_LEN`] bytes.
///
/// # Errors
///
/// Returns the reason, with the path, for which it cannot be read.
pub fn read_text(path: &Path) -> Result<String, String> {
    let path_and = |reason: &dyn fmt::Display| format!("{}: {reason}", path.display());
    let bytes = read_regular_file(path, MAX_LEN).map_err(|error| path_and(&error))?;
    String::from_utf8(bytes).map_err(|_| path_and(&"expected UTF-8"))
}

/// Reads the text of a file.
///
/// # Errors
///
/// Returns the reason, with its line and column, for which the text has another structure than `T`.
pub fn read_as<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, String> {
    let read = if is_toml(path) {
        toml::from_str(text).map_err(|error| {
            let offset = error.span().map(|span| span.start);
            TextError::at_offset(text, offset, error.message().trim().to_owned())
        })
    } else {
        from_yaml(text)
    };
    read.map_err(|error| error.to_string())
}

/// Reads a text of at most [`MAX_LEN`] bytes.
///
/// # Errors
///
/// Returns an error if the text has another structure than `T`.
pub fn from_yaml<T: DeserializeOwned>(text: &str) -> Result<T, TextError> {
    // The length alone bounds the number of values. The default of the parser would refuse a file
    // of 10 000 rules.
    let budget = serde_saphyr::budget! { max_nodes: MAX_LEN, max_events: 2 * MAX_LEN };
    let options = serde_saphyr::options! { budget: budget };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let place = error.location().map(|place| (place.line(), place.column()));
        TextError { place, reason: message(&error) }
    })
}

/// Returns the message of an error without its end ` at line …`, because errors show the place.
fn message(error: &Error) -> String {
    let mut message = error.without_snippet().render_with_formatter(&UserMessageFormatter);
    message.truncate(message.rfind(" at line ").unwrap_or(message.len()));
    message.trim().to_owned()
}
