use rl_core::time::Timestamp;
use serde_json::Value;

/// A change of an object. It is stored in the transaction that makes the change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change<T> {
    /// The number of the change. Later changes of any object have larger numbers.
    pub number: i64,
    /// The `rate_limiting_id` of the record, the name of the tier or resource, or the id of the
    /// member.
    pub item: String,
    /// The time of the change.
    pub at: Timestamp,
    /// The name of the author.
    pub by: String,
    /// The content before the change; `None` if the object was created.
    pub before: Option<T>,
    /// The content after the change; `None` if the object was deleted.
    pub after: Option<T>,
}

/// Selects changes, which are listed with the newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Selects the changes of this consumer, or of the tier or resource of this name; `None`
    /// selects the changes of all.
    pub owner: Option<String>,
    /// Selects the changes of this record.
    pub item: Option<String>,
    /// Selects changes with a smaller number: the last number of the previous page, or `None` for
    /// the first page.
    pub before: Option<i64>,
    /// The maximum number of changes on a page: 1 to 1 000.
    pub limit: u32,
}

impl Default for HistoryQuery {
    /// Returns a query for the newest 50 changes.
    fn default() -> Self {
        Self { owner: None, item: None, before: None, limit: 50 }
    }
}

/// A value that the history stores as JSON.
pub(crate) trait HistoryValue: Sized {
    fn to_json(&self) -> Value;

    fn from_json(json: &Value) -> Option<Self>;
}
