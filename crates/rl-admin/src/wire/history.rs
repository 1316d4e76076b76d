use rl_core::time::Timestamp;
use rl_records::{
    AuditEntry, AuditEvent, Change, RecordContent, Refusal, ResourceLimitContent, RuleContent,
    SubscriptionContent, TierContent,
};
use serde::Serialize;
use utoipa::ToSchema;

use super::date::Date;
use super::limits::LimitTexts;
use super::record::Content;
use super::resource::ResourceContent;
use super::rule::RuleState;
use super::subscription::SubscriptionState;
use crate::access::Actor;

/// The kind of an event.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum EventKind {
    Created,
    Updated,
    Deleted,
    /// Counters were reset.
    Reset,
    /// A request was refused.
    Refused,
}

impl EventKind {
    const fn of_change<T>(change: &rl_records::Change<T>) -> Self {
        Self::of_sides(change.before.is_some(), change.after.is_some())
    }

    const fn of_sides(existed: bool, exists: bool) -> Self {
        match (existed, exists) {
            (false, _) => Self::Created,
            (true, true) => Self::Updated,
            (true, false) => Self::Deleted,
        }
    }
}

/// One entry of the history: an actor, a time and an action.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HistoryEntry {
    /// The number of the entry. Later entries have larger numbers.
    number: i64,
    at: Date,
    by: String,
    /// The kind of object that was changed.
    about: About,
    kind: EventKind,
    /// The id of the record or the subscription, the name of the tier, the missing role, or the subject of the
    /// membership or the counters.
    item: String,
    /// The subject of the entry as realm and id, if the entry is about a subject.
    #[schema(example = "consumer/abc123")]
    subject: Option<String>,
    /// The state before the change; `null` if there was none.
    before: Option<HistoryState>,
    /// The state after the change; `null` if there is none.
    after: Option<HistoryState>,
}

/// The kind of object that an entry of the history describes.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum About {
    /// A record of a subject.
    Record,
    /// A tier.
    Tier,
    /// The limit of a resource.
    Resource,
    /// A rule.
    Rule,
    /// A subscription of a consumer.
    Subscription,
    /// The tier that a consumer or a key is in.
    TierMember,
    /// Counters of a subject.
    Counters,
    /// The reason for a change of a record.
    Reason,
    /// A request without the required role.
    Request,
}

/// The state of an object before or after a change.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum HistoryState {
    Record(Content),
    Tier(TierState),
    Resource(ResourceContent),
    Rule(RuleState),
    Subscription(SubscriptionState),
    Member(MemberState),
    Reset(ResetState),
    Reason(ReasonState),
    Request(RequestState),
}

/// The content of a tier.
#[derive(Debug, Serialize, ToSchema)]
struct TierState {
    name: String,
    #[serde(flatten)]
    limits: LimitTexts,
}

/// The tier to which a subject belongs.
#[derive(Debug, Serialize, ToSchema)]
// The schema has no other field. Otherwise the state of a subscription would match it too.
#[serde(deny_unknown_fields)]
struct MemberState {
    tier: String,
}

/// The counters that were reset.
#[derive(Debug, Serialize, ToSchema)]
struct ResetState {
    /// The name of the rule; `null` if the limiter has no rules.
    #[schema(required = true)]
    rule: Option<String>,
    /// The name of the limit; `null` if all were reset.
    // The schema requires this field. Otherwise every other state would match this schema too.
    #[schema(required = true)]
    limit: Option<String>,
}

/// The reason for a change of a record.
#[derive(Debug, Serialize, ToSchema)]
struct ReasonState {
    reason: String,
}

/// A request that was refused.
#[derive(Debug, Serialize, ToSchema)]
struct RequestState {
    method: String,
    path: String,
    /// The number of refusals that this entry counts. Only a few entries are written in a minute.
    count: u64,
}

impl HistoryEntry {
    pub(crate) fn of(entry: AuditEntry) -> Self {
        let AuditEntry { number, at, by, event, .. } = entry;
        Self::of_event(number, at, by, event)
    }

    fn of_event(number: i64, at: Timestamp, by: String, event: AuditEvent) -> Self {
        let tier = |tier: TierContent| {
            HistoryState::Tier(TierState { name: tier.name, limits: LimitTexts::of(&tier.limits) })
        };
        let member = |tier| HistoryState::Member(MemberState { tier });
        let (about, kind, item, subject, before, after) = match event {
            AuditEvent::Record { id, before, after } => {
                let subject = after.as_ref().or(before.as_ref()).map(subject_of);
                let record = |content: &RecordContent| HistoryState::Record(Content::of(content));
                let (before, after) = (before.as_ref().map(record), after.as_ref().map(record));
                let kind = EventKind::of_sides(before.is_some(), after.is_some());
                (About::Record, kind, id, subject, before, after)
            }
            AuditEvent::Tier { name, before, after } => {
                let kind = EventKind::of_sides(before.is_some(), after.is_some());
                (About::Tier, kind, name, None, before.map(tier), after.map(tier))
            }
            AuditEvent::Subscription { id, consumer, before, after } => {
                let state = |content: &SubscriptionContent| {
                    HistoryState::Subscription(SubscriptionState::of(content))
                };
                let (before, after) = (before.as_ref().map(state), after.as_ref().map(state));
                let kind = EventKind::of_sides(before.is_some(), after.is_some());
                (About::Subscription, kind, id, Some(format!("consumer/{consumer}")), before, after)
            }
            AuditEvent::Member { realm, id, before, after } => {
                let kind = EventKind::of_sides(before.is_some(), after.is_some());
                let subject = format!("{realm}/{id}");
                let (before, after) = (before.map(member), after.map(member));
                (About::TierMember, kind, subject.clone(), Some(subject), before, after)
            }
            AuditEvent::Resource { name, before, after } => {
                let kind = EventKind::of_sides(before.is_some(), after.is_some());
                // Actors of some applications get entries about consumers only.
                let state = |content: &ResourceLimitContent| {
                    HistoryState::Resource(ResourceContent::whole(content))
                };
                let (before, after) = (before.as_ref().map(state), after.as_ref().map(state));
                (About::Resource, kind, name, None, before, after)
            }
            AuditEvent::Rule { name, before, after } => {
                let kind = EventKind::of_sides(before.is_some(), after.is_some());
                let state = |content: RuleContent| HistoryState::Rule(RuleState::of(content));
                (About::Rule, kind, name, None, before.map(state), after.map(state))
            }
            AuditEvent::Reset { realm, id, rule, limit } => {
                let subject = format!("{realm}/{id}");
                let after = Some(HistoryState::Reset(ResetState { rule, limit }));
                (About::Counters, EventKind::Reset, subject.clone(), Some(subject), None, after)
            }
            AuditEvent::Reason { realm, id, reason } => {
                let subject = format!("{realm}/{id}");
                let after = Some(HistoryState::Reason(ReasonState { reason }));
                (About::Reason, EventKind::Created, subject.clone(), Some(subject), None, after)
            }
            AuditEvent::Refusal(Refusal { role, method, path, consumer, count }) => {
                let subject = consumer.map(|consumer| format!("consumer/{consumer}"));
                let after = Some(HistoryState::Request(RequestState { method, path, count }));
                (About::Request, EventKind::Refused, role, subject, None, after)
            }
            // A kind of event that is newer than this API.
            _ => (About::Request, EventKind::Updated, String::new(), None, None, None),
        };
        Self { number, at: Date(at), by, about, kind, item, subject, before, after }
    }

    /// Creates the entry of one change of a record.
    pub(crate) fn of_record(change: rl_records::Change<RecordContent>) -> Self {
        let record = |content: &RecordContent| HistoryState::Record(Content::of(content));
        let content = change.after.as_ref().or(change.before.as_ref());
        Self {
            number: change.number,
            at: Date(change.at),
            kind: EventKind::of_change(&change),
            about: About::Record,
            subject: content.map(subject_of),
            before: change.before.as_ref().map(record),
            after: change.after.as_ref().map(record),
            by: change.by,
            item: change.item,
        }
    }

    /// Creates the entry of one change of a subscription.
    pub(crate) fn of_subscription(change: rl_records::Change<SubscriptionContent>) -> Self {
        let Change { number, item, at, by, before, after, .. } = change;
        let content = after.as_ref().or(before.as_ref());
        let consumer = content.map(|content| content.consumer_id.clone()).unwrap_or_default();
        let event = AuditEvent::Subscription { id: item, consumer, before, after };
        Self::of_event(number, at, by, event)
    }
}

/// Returns the subject of a record as realm and id.
fn subject_of(content: &RecordContent) -> String {
    format!("{}/{}", content.realm.as_str(), content.subject_id)
}

/// One change of the limit of a resource.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResourceChange {
    /// The number of the change. Later changes have larger numbers.
    number: i64,
    /// The name of the resource.
    item: String,
    at: Date,
    by: String,
    kind: EventKind,
    /// The content before the change; `null` if the limit was created.
    before: Option<ResourceContent>,
    /// The content after the change; `null` if the limit was deleted.
    after: Option<ResourceContent>,
}

impl ResourceChange {
    /// Returns a change without the applications that the actor does not own. A limit that lists
    /// none of its own is left out; so is a change of such limits, for which this returns `None`.
    pub(crate) fn of(
        change: &rl_records::Change<ResourceLimitContent>,
        actor: &Actor,
    ) -> Option<Self> {
        let seen = |side: &Option<ResourceLimitContent>| {
            let seen = side.as_ref().filter(|content| actor.sees_resource_of(&content.apps));
            seen.map(|content| ResourceContent::of(content, actor))
        };
        let (before, after) = (seen(&change.before), seen(&change.after));
        let is_seen = before.is_some() || after.is_some();
        is_seen.then(|| Self {
            number: change.number,
            item: change.item.clone(),
            at: Date(change.at),
            by: change.by.clone(),
            kind: EventKind::of_change(change),
            before,
            after,
        })
    }
}

/// A page of changes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Changes<T> {
    /// The changes, the newest first.
    pub(crate) changes: Vec<T>,
    /// The value of `before` for the next page; `null` on the last page.
    pub(crate) next: Option<i64>,
}
