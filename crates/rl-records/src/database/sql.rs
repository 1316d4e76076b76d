use std::future::Future;

use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe};

use super::connections::Place;
use super::query::without_nul;
use crate::DatabaseError;

/// A statement that is put together from parts of the source code; what people gave is bound.
#[derive(Debug)]
pub(super) struct Sql {
    text: String,
    values: Vec<Bound>,
}

/// A value for a placeholder.
#[derive(Clone, Debug)]
pub(super) enum Bound {
    Text(String),
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

impl Sql {
    pub(super) fn new(text: &'static str) -> Self {
        Self { text: text.to_owned(), values: Vec::new() }
    }

    /// Adds a part; each `?` in it is the place of one value.
    pub(super) fn push<const N: usize>(&mut self, part: &'static str, values: [Bound; N]) {
        let mut values = values.into_iter();
        for piece in part.split_inclusive('?') {
            match piece.strip_suffix('?') {
                Some(before) => {
                    self.text.push_str(before);
                    self.values.push(values.next().expect("a value for each place"));
                    self.text.push('$');
                    self.text.push_str(&self.values.len().to_string());
                }
                None => self.text.push_str(piece),
            }
        }
    }

    /// Adds that the consumer has this text in its id, in large or small letters (of ASCII).
    pub(super) fn push_search(&mut self, text: &str, is_postgres: bool) {
        let text = without_nul(text).to_ascii_lowercase();
        let pattern = ['!', '%', '_']
            .iter()
            .fold(text, |text, special| text.replace(*special, &format!("!{special}")));
        // LIKE of SQLite takes large for small letters, and in half the time.
        let is_like = if is_postgres {
            " AND lower(consumer_id) LIKE ? ESCAPE '!'"
        } else {
            " AND consumer_id LIKE ? ESCAPE '!'"
        };
        self.push(is_like, [format!("%{pattern}%").into()]);
    }

    /// Adds ` IN (…)`; of no values, nothing is in it.
    pub(super) fn push_list(&mut self, values: &[String]) {
        self.push(" IN (NULL", []);
        for value in values {
            self.push(", ?", [value.as_str().into()]);
        }
        self.push(")", []);
    }

    pub(super) async fn on(self, place: impl Place) -> Result<Vec<AnyRow>, DatabaseError> {
        self.query().on(place).await
    }

    fn query(self) -> Query<'static, Any, AnyArguments> {
        let query = sqlx::query(AssertSqlSafe(self.text));
        self.values.into_iter().fold(query, |query, value| match value {
            Bound::Text(text) => query.bind(text),
            Bound::Number(number) => query.bind(number),
        })
    }
}

/// A statement, and where it runs.
pub(super) trait Statement {
    /// Runs it; tells the rows that it returns.
    fn on(
        self,
        place: impl Place,
    ) -> impl Future<Output = Result<Vec<AnyRow>, DatabaseError>> + Send;
}

impl Statement for Query<'_, Any, AnyArguments> {
    fn on(
        self,
        place: impl Place,
    ) -> impl Future<Output = Result<Vec<AnyRow>, DatabaseError>> + Send {
        place.rows(self)
    }
}
