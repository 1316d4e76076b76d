use serde::Serialize;
use utoipa::ToSchema;

use super::Date;

/// One change: who made it, when, and what was there before and after.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Change<T> {
    /// Its number; later changes have larger ones.
    number: i64,
    /// The id of the record, or the name of the resource.
    item: String,
    at: Date,
    by: String,
    kind: Kind,
    /// As it was; `null` if it was created.
    before: Option<T>,
    /// As it is since; `null` if it was deleted.
    after: Option<T>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Created,
    Updated,
    Deleted,
}

impl<T> Change<T> {
    pub(crate) fn of<S>(change: &rl_records::Change<S>, content: impl Fn(&S) -> T) -> Self {
        let kind = match (&change.before, &change.after) {
            (None, _) => Kind::Created,
            (Some(_), Some(_)) => Kind::Updated,
            (Some(_), None) => Kind::Deleted,
        };
        Self {
            number: change.number,
            item: change.item.clone(),
            at: Date(change.at),
            by: change.by.clone(),
            kind,
            before: change.before.as_ref().map(&content),
            after: change.after.as_ref().map(&content),
        }
    }
}

/// A page of changes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Changes<T> {
    /// The newest first.
    pub(crate) changes: Vec<Change<T>>,
    /// Where the next page begins, to be given as `before`; `null` on the last one.
    pub(crate) next: Option<i64>,
}
