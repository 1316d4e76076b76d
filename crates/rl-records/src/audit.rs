use rl_core::time::Timestamp;
use serde_json::{Value, json};

use crate::history::HistoryValue;
use crate::record::RecordContent;
use crate::resource::ResourceLimitContent;
use crate::rule::RuleContent;
use crate::subscription::SubscriptionContent;
use crate::tier::TierContent;

/// One entry of the audit history: a change, a reset of counters, or a request that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditEntry {
    /// The number of the entry. Later entries have larger numbers.
    pub number: i64,
    /// The time of the entry.
    pub at: Timestamp,
    /// The name of the actor.
    pub by: String,
    /// The event.
    pub event: AuditEvent,
}

/// The event of an [`AuditEntry`].
///
/// It names subjects in plain text, so show it only to actors who may read the history.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuditEvent {
    /// A record was created, changed or deleted.
    Record {
        /// The id of the record.
        id: String,
        /// The content before the change; `None` if the record was created.
        before: Option<RecordContent>,
        /// The content after the change; `None` if the record was deleted.
        after: Option<RecordContent>,
    },
    /// A tier was created, changed or deleted.
    Tier {
        /// The name of the tier.
        name: String,
        /// The content before the change; `None` if the tier was created.
        before: Option<TierContent>,
        /// The content after the change; `None` if the tier was deleted.
        after: Option<TierContent>,
    },
    /// The limit of a resource was created, changed or deleted.
    Resource {
        /// The name of the resource.
        name: String,
        /// The content before the change; `None` if the limit was created.
        before: Option<ResourceLimitContent>,
        /// The content after the change; `None` if the limit was deleted.
        after: Option<ResourceLimitContent>,
    },
    /// A rule was created, changed or deleted.
    Rule {
        /// The name of the rule.
        name: String,
        /// The content before the change; `None` if the rule was created.
        before: Option<RuleContent>,
        /// The content after the change; `None` if the rule was deleted.
        after: Option<RuleContent>,
    },
    /// A subscription was created, or its status or its dates were changed.
    Subscription {
        /// The id of the subscription.
        id: String,
        /// The consumer of the subscription.
        consumer: String,
        /// The content before the change; `None` if the subscription was created.
        before: Option<SubscriptionContent>,
        /// The content after the change.
        after: Option<SubscriptionContent>,
    },
    /// A consumer or an API key was put into a tier, or removed from it.
    Member {
        /// `consumer` or `key`.
        realm: String,
        /// The id of the consumer, or the keyed hash of the key.
        id: String,
        /// The tier before the change; `None` if there was none.
        before: Option<String>,
        /// The tier after the change; `None` if there is none.
        after: Option<String>,
    },
    /// Counters were reset.
    Reset {
        /// The realm of the subject.
        realm: String,
        /// The id of the subject.
        id: String,
        /// The name of the rule; `None` if the limiter has no rules.
        rule: Option<String>,
        /// The name of the limit; `None` if all were reset.
        limit: Option<String>,
    },
    /// An actor gave a reason for a change of a record, such as a block.
    Reason {
        /// The realm of the subject of the record.
        realm: String,
        /// The id of the subject.
        id: String,
        /// The reason.
        reason: String,
    },
    /// A request was refused.
    Refusal(Refusal),
}

/// A request that was refused because its actor lacks the required role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The required role.
    pub role: String,
    /// The method of the request.
    pub method: String,
    /// The path of the request, cut to 500 characters.
    pub path: String,
    /// The consumer that the request names, if any.
    pub consumer: Option<String>,
    /// The number of requests that this entry counts: this one, and earlier ones without an entry
    /// of their own.
    pub count: u64,
}

/// Selects entries of the audit history, which are listed with the newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditQuery {
    /// Selects the entries about this consumer.
    pub consumer: Option<String>,
    /// Selects the entries about these consumers.
    pub consumers: Option<Vec<String>>,
    /// Selects entries with a smaller number: the last number of the previous page, or `None` for
    /// the first page.
    pub before: Option<i64>,
    /// The largest number of entries: 1 to 1 000.
    pub limit: u32,
}

impl Default for AuditQuery {
    /// Returns a query for the newest 50 entries.
    fn default() -> Self {
        Self { consumer: None, consumers: None, before: None, limit: 50 }
    }
}

/// The stored form of a reset.
#[derive(Debug)]
pub(crate) struct StoredReset {
    pub(crate) realm: String,
    pub(crate) rule: Option<String>,
    pub(crate) limit: Option<String>,
}

impl HistoryValue for StoredReset {
    fn to_json(&self) -> Value {
        json!({ "realm": self.realm, "rule": self.rule, "limit": self.limit })
    }

    fn from_json(json: &Value) -> Option<Self> {
        let realm = json["realm"].as_str()?.to_owned();
        let text = |field: &str| json[field].as_str().map(ToOwned::to_owned);
        Some(Self { realm, rule: text("rule"), limit: text("limit") })
    }
}

impl HistoryValue for Refusal {
    fn to_json(&self) -> Value {
        let Self { role, method, path, consumer, count } = self;
        json!({
            "role": role, "method": method, "path": path, "consumer": consumer, "count": count,
        })
    }

    fn from_json(json: &Value) -> Option<Self> {
        let text = |field: &str| json[field].as_str().map(ToOwned::to_owned);
        Some(Self {
            role: text("role")?,
            method: text("method")?,
            path: text("path")?,
            consumer: text("consumer"),
            count: json["count"].as_u64()?,
        })
    }
}
