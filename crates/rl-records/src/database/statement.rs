use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe};

use super::connections::Runner;
use super::dialect::Dialect;
use crate::error::DatabaseError;
use crate::record::MAX_NAME;

/// A statement that is assembled from constant parts. All values are bound to placeholders, which
/// are written for the database when the statement runs.
#[derive(Debug)]
pub(super) struct Sql {
    text: String,
    values: Vec<Bound>,
}

/// A value for a placeholder.
#[derive(Clone, Debug)]
pub(super) enum Bound {
    Text(String),
    OptionalText(Option<String>),
    Number(i64),
    OptionalNumber(Option<i64>),
}

impl From<i64> for Bound {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<Option<i64>> for Bound {
    fn from(number: Option<i64>) -> Self {
        Self::OptionalNumber(number)
    }
}

impl From<String> for Bound {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Bound {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Option<String>> for Bound {
    fn from(text: Option<String>) -> Self {
        Self::OptionalText(text)
    }
}

impl Sql {
    pub(super) fn new(text: &'static str) -> Self {
        Self { text: text.to_owned(), values: Vec::new() }
    }

    /// Creates a statement with these values for its placeholders.
    pub(super) fn with<const N: usize>(text: &'static str, values: [Bound; N]) -> Self {
        let mut sql = Self::new("");
        sql.push(text, values);
        sql
    }

    /// Adds a part of the statement. Each `?` in it is the placeholder of one value.
    pub(super) fn push<const N: usize>(&mut self, part: &'static str, values: [Bound; N]) {
        debug_assert_eq!(part.matches('?').count(), N, "one value for each placeholder: {part}");
        self.text.push_str(part);
        self.values.extend(values);
    }

    /// Adds the condition that the id of the subject begins with this text.
    ///
    /// Every database answers a range from an index, but LIKE only under some collations.
    pub(super) fn push_search(&mut self, text: &str) {
        // No id is that long.
        if text.len() > MAX_NAME {
            return self.push(" AND 1 = 0", []);
        }
        let first = without_nul(text);
        if let Some(end) = end_of_prefix(&first) {
            self.push(" AND subject_id < ?", [end.into()]);
        }
        self.push(" AND subject_id >= ?", [first.into()]);
    }

    /// Adds ` IN (…)`. If `values` is empty, the condition is never true.
    pub(super) fn push_list(&mut self, values: impl IntoIterator<Item = impl AsRef<str>>) {
        self.push(" IN (NULL", []);
        for value in values {
            self.push(", ?", [without_nul(value.as_ref()).into()]);
        }
        self.push(")", []);
    }

    /// Runs the statement and returns its rows.
    pub(super) async fn on(self, runner: impl Runner) -> Result<Vec<AnyRow>, DatabaseError> {
        let query = self.query(runner.dialect());
        runner.rows(query).await
    }

    fn query(self, dialect: Dialect) -> Query<'static, Any, AnyArguments> {
        let mut text = String::with_capacity(self.text.len() + self.values.len());
        for (number, part) in self.text.split('?').enumerate() {
            if number > 0 {
                dialect.push_placeholder(&mut text, number);
            }
            text.push_str(part);
        }
        let query = sqlx::query(AssertSqlSafe(text));
        self.values.into_iter().fold(query, |query, value| match value {
            Bound::Text(text) => query.bind(text),
            Bound::OptionalText(text) => query.bind(text),
            Bound::Number(number) => query.bind(number),
            Bound::OptionalNumber(number) => query.bind(number),
        })
    }
}

/// Returns the least text after all texts that begin with `prefix`, in the order of the code points.
/// Returns `None` if there is no such text.
fn end_of_prefix(prefix: &str) -> Option<String> {
    let rest = prefix.trim_end_matches(char::MAX);
    let last = rest.chars().next_back()?;
    // The successor of a character in a range skips the surrogates.
    let next = (last..=char::MAX).nth(1)?;
    Some(format!("{}{next}", &rest[..rest.len() - last.len_utf8()]))
}

/// Replaces NUL, which PostgreSQL rejects in text. No stored text contains NUL or its replacement.
pub(super) fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_least_text_after_all_texts_that_begin_with_it() {
        let table = [
            ("shop", Some("shoq")),
            ("a%", Some("a&")),
            ("é", Some("ê")),
            ("a\u{d7ff}", Some("a\u{e000}")),
            ("a\u{10ffff}\u{10ffff}", Some("b")),
            ("\u{10ffff}", None),
            ("", None),
        ];
        for (prefix, end) in table {
            assert_eq!(end_of_prefix(prefix).as_deref(), end, "{prefix:?}");
        }
    }
}
