use rl_core::time::Timestamp;
use serde_json::Value;

/// One change of a record or a resource limit, written in the same transaction as the change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change<T> {
    /// Its number. Later changes have larger ones, over all records and resources.
    pub number: i64,
    /// The `rate_limiting_id` of the record, or the name of the resource.
    pub item: String,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub by: String,
    /// How it was before; `None` if it was created.
    pub before: Option<T>,
    /// How it is since; `None` if it was deleted.
    pub after: Option<T>,
}

/// Which changes to list; the newest come first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    /// Only those of this consumer, or of the resource of this name.
    pub of: Option<String>,
    /// Only those of this record.
    pub item: Option<String>,
    /// Only those before this number: the last of the page before.
    pub before: Option<i64>,
    /// At most so many: 1 to 1 000.
    pub limit: u32,
}

impl Default for HistoryQuery {
    /// The newest 50.
    fn default() -> Self {
        Self { of: None, item: None, before: None, limit: 50 }
    }
}

/// What the history keeps, as JSON.
pub(crate) trait Stored: Sized {
    fn to_json(&self) -> Value;

    fn from_json(json: &Value) -> Option<Self>;
}
