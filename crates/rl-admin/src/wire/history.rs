use rl_records::{RecordContent, ResourceLimitContent};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Content, Date, ResourceContent};

/// What happened.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Created,
    Updated,
    Deleted,
}

impl Kind {
    const fn of<T>(change: &rl_records::Change<T>) -> Self {
        match (&change.before, &change.after) {
            (None, _) => Self::Created,
            (Some(_), Some(_)) => Self::Updated,
            (Some(_), None) => Self::Deleted,
        }
    }
}

// Twice, and not generic: the document would forget that `before` and `after` may be `null`.

/// One change of a record: who made it, when, and what was there before and after.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RecordChange {
    /// Its number; later changes have larger ones.
    number: i64,
    /// The id of the record.
    item: String,
    at: Date,
    by: String,
    kind: Kind,
    /// As it was; `null` if it was created.
    before: Option<Content>,
    /// As it is since; `null` if it was deleted.
    after: Option<Content>,
}

impl RecordChange {
    pub(crate) fn of(change: &rl_records::Change<RecordContent>) -> Self {
        Self {
            number: change.number,
            item: change.item.clone(),
            at: Date(change.at),
            by: change.by.clone(),
            kind: Kind::of(change),
            before: change.before.as_ref().map(Content::of),
            after: change.after.as_ref().map(Content::of),
        }
    }
}

/// One change of the limit of a resource.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResourceChange {
    /// Its number; later changes have larger ones.
    number: i64,
    /// The name of the resource.
    item: String,
    at: Date,
    by: String,
    kind: Kind,
    /// As it was; `null` if it was created.
    before: Option<ResourceContent>,
    /// As it is since; `null` if it was deleted.
    after: Option<ResourceContent>,
}

impl ResourceChange {
    pub(crate) fn of(change: &rl_records::Change<ResourceLimitContent>) -> Self {
        Self {
            number: change.number,
            item: change.item.clone(),
            at: Date(change.at),
            by: change.by.clone(),
            kind: Kind::of(change),
            before: change.before.as_ref().map(ResourceContent::of),
            after: change.after.as_ref().map(ResourceContent::of),
        }
    }
}

/// A page of changes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Changes<T> {
    /// The newest first.
    pub(crate) changes: Vec<T>,
    /// Where the next page begins, to be given as `before`; `null` on the last one.
    pub(crate) next: Option<i64>,
}
