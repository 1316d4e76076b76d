use rl_records::{
    AuditEntry, AuditEvent, RecordContent, Refusal, ResourceLimitContent, TierContent,
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Content, Date, Limits, ResourceContent};

/// What happened.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Created,
    Updated,
    Deleted,
    /// Counters were reset.
    Reset,
    /// A request was refused.
    Refused,
}

impl Kind {
    const fn of<T>(change: &rl_records::Change<T>) -> Self {
        Self::of_sides(change.before.is_some(), change.after.is_some())
    }

    const fn of_sides(was_there: bool, is_there: bool) -> Self {
        match (was_there, is_there) {
            (false, _) => Self::Created,
            (true, true) => Self::Updated,
            (true, false) => Self::Deleted,
        }
    }
}

/// One entry of the history: an actor, a time and an action.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HistoryEntry {
    /// Its number; later entries have larger ones.
    number: i64,
    at: Date,
    by: String,
    /// The kind of object that it is about.
    about: About,
    kind: Kind,
    /// The id of the record, the name of the tier, or the role that was missing; of a member of a tier
    /// and of counters, the subject.
    item: String,
    /// The subject that it is about, as realm and id; `null` if it is about none.
    #[schema(example = "consumer/abc123")]
    subject: Option<String>,
    /// As it was; `null` if there was nothing.
    before: Option<State>,
    /// As it is since; `null` if there is nothing.
    after: Option<State>,
}

/// The kind of object that an entry of the history is about.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum About {
    /// A record of a consumer.
    Record,
    /// A tier.
    Tier,
    /// The tier that a consumer or a key is in.
    TierMember,
    /// Counters of a subject.
    Counters,
    /// A request for which the role was missing.
    Request,
}

/// One side of a change.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum State {
    Record(Content),
    Tier(TierState),
    Member(MemberState),
    Reset(ResetState),
    Request(RequestState),
}

/// The content of a tier.
#[derive(Debug, Serialize, ToSchema)]
struct TierState {
    name: String,
    #[serde(flatten)]
    limits: Limits,
}

/// The tier that a subject is in.
#[derive(Debug, Serialize, ToSchema)]
struct MemberState {
    tier: String,
}

/// The counters that were reset.
#[derive(Debug, Serialize, ToSchema)]
struct ResetState {
    /// The name of the limit; `null` if all were reset.
    // Required in the schema, so that no other state matches it.
    #[schema(required = true)]
    limit: Option<String>,
}

/// A request that was refused.
#[derive(Debug, Serialize, ToSchema)]
struct RequestState {
    method: String,
    path: String,
    /// The refusals that the entry stands for: only a few in a minute are written.
    count: u64,
}

impl HistoryEntry {
    pub(crate) fn of(entry: AuditEntry) -> Self {
        let AuditEntry { number, at, by, event, .. } = entry;
        let tier = |tier: TierContent| {
            State::Tier(TierState { name: tier.name, limits: Limits::of(&tier.limits) })
        };
        let member = |tier| State::Member(MemberState { tier });
        let (about, kind, item, subject, before, after) = match event {
            AuditEvent::Record { id, consumer, before, after } => {
                let record = |content: &RecordContent| State::Record(Content::of(content));
                let (before, after) = (before.as_ref().map(record), after.as_ref().map(record));
                let kind = Kind::of_sides(before.is_some(), after.is_some());
                (About::Record, kind, id, Some(format!("consumer/{consumer}")), before, after)
            }
            AuditEvent::Tier { name, before, after } => {
                let kind = Kind::of_sides(before.is_some(), after.is_some());
                (About::Tier, kind, name, None, before.map(tier), after.map(tier))
            }
            AuditEvent::Member { realm, id, before, after } => {
                let kind = Kind::of_sides(before.is_some(), after.is_some());
                let subject = format!("{realm}/{id}");
                let (before, after) = (before.map(member), after.map(member));
                (About::TierMember, kind, subject.clone(), Some(subject), before, after)
            }
            AuditEvent::Reset { realm, id, limit } => {
                let subject = format!("{realm}/{id}");
                let after = Some(State::Reset(ResetState { limit }));
                (About::Counters, Kind::Reset, subject.clone(), Some(subject), None, after)
            }
            AuditEvent::Refusal(Refusal { role, method, path, consumer, count }) => {
                let subject = consumer.map(|consumer| format!("consumer/{consumer}"));
                let after = Some(State::Request(RequestState { method, path, count }));
                (About::Request, Kind::Refused, role, subject, None, after)
            }
            // A kind of event that this API does not know yet.
            _ => (About::Request, Kind::Updated, String::new(), None, None, None),
        };
        Self { number, at: Date(at), by, about, kind, item, subject, before, after }
    }

    /// Makes the entry for one change of a record.
    pub(crate) fn of_record(change: rl_records::Change<RecordContent>) -> Self {
        let record = |content: &RecordContent| State::Record(Content::of(content));
        let content = change.after.as_ref().or(change.before.as_ref());
        Self {
            number: change.number,
            at: Date(change.at),
            kind: Kind::of(&change),
            about: About::Record,
            subject: content.map(|content| format!("consumer/{}", content.consumer_id)),
            before: change.before.as_ref().map(record),
            after: change.after.as_ref().map(record),
            by: change.by,
            item: change.item,
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
