use std::future::Future;

use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe};

use super::connections::Runner;
use crate::error::DatabaseError;

/// A statement that is assembled from constant parts. All values are bound to placeholders.
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
}

impl From<i64> for Bound {
    fn from(number: i64) -> Self {
        Self::Number(number)
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

    /// Adds a part of the statement. Each `?` in it is the placeholder of one value.
    pub(super) fn push<const N: usize>(&mut self, part: &'static str, values: [Bound; N]) {
        let mut values = values.into_iter();
        for piece in part.split_inclusive('?') {
            match piece.strip_suffix('?') {
                Some(before) => {
                    self.text.push_str(before);
                    self.push_value(values.next().expect("one value for each placeholder"));
                }
                None => self.text.push_str(piece),
            }
        }
    }

    /// Adds a placeholder with its value.
    pub(super) fn push_value(&mut self, value: Bound) {
        self.values.push(value);
        self.text.push('$');
        self.text.push_str(&self.values.len().to_string());
    }

    /// Adds the condition that the id of the consumer contains this text, regardless of the case of
    /// ASCII letters.
    pub(super) fn push_search(&mut self, text: &str, is_postgres: bool) {
        let text = without_nul(text).to_ascii_lowercase();
        let pattern = ['!', '%', '_']
            .iter()
            .fold(text, |text, special| text.replace(*special, &format!("!{special}")));
        // On SQLite, LIKE ignores the case of ASCII letters, and takes half the time of `lower`.
        let is_like = if is_postgres {
            " AND lower(consumer_id) LIKE ? ESCAPE '!'"
        } else {
            " AND consumer_id LIKE ? ESCAPE '!'"
        };
        self.push(is_like, [format!("%{pattern}%").into()]);
    }

    /// Adds ` IN (…)`. If `values` is empty, the condition is never true.
    pub(super) fn push_list(&mut self, values: &[String]) {
        self.push(" IN (NULL", []);
        for value in values {
            self.push(", ?", [value.as_str().into()]);
        }
        self.push(")", []);
    }

    /// Runs the statement and returns its rows.
    pub(super) async fn on(self, runner: impl Runner) -> Result<Vec<AnyRow>, DatabaseError> {
        self.query().on(runner).await
    }

    fn query(self) -> Query<'static, Any, AnyArguments> {
        let query = sqlx::query(AssertSqlSafe(self.text));
        self.values.into_iter().fold(query, |query, value| match value {
            Bound::Text(text) => query.bind(text),
            Bound::OptionalText(text) => query.bind(text),
            Bound::Number(number) => query.bind(number),
        })
    }
}

/// A statement that a [`Runner`] can run.
pub(super) trait Statement {
    /// Runs the statement and returns its rows.
    fn on(
        self,
        runner: impl Runner,
    ) -> impl Future<Output = Result<Vec<AnyRow>, DatabaseError>> + Send;
}

impl Statement for Query<'_, Any, AnyArguments> {
    fn on(
        self,
        runner: impl Runner,
    ) -> impl Future<Output = Result<Vec<AnyRow>, DatabaseError>> + Send {
        runner.rows(self)
    }
}

/// Replaces NUL, which PostgreSQL rejects in text. No stored text contains NUL or its replacement.
pub(super) fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{1}")
}
