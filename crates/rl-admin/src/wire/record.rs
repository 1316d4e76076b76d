use rl_core::Realm;
use rl_records::{Record, RecordContent};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::date::Date;
use super::limits::{Calls, LimitTexts, call_limits};
use super::name::{Name, Optional};
use super::periods::{CallState, Periods};

/// The content of a record in a request. An omitted limit is -1, which means no limit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RateLimitInput {
    /// The first instant at which the record is active.
    from_date: Date,
    /// The last instant at which the record is active. It may equal `from_date`.
    to_date: Date,
    /// An endpoint, for information only.
    #[serde(default)]
    #[schema(required = false)]
    api_name: Optional,
    /// A version of the API, for information only.
    #[serde(default)]
    #[schema(required = false)]
    api_version: Optional,
    /// A bank, for information only.
    #[serde(default)]
    #[schema(required = false)]
    bank_id: Optional,
    #[serde(default, alias = "per_second_rate_limit")]
    #[schema(required = false)]
    per_second_call_limit: Calls,
    #[serde(default, alias = "per_minute_rate_limit")]
    #[schema(required = false)]
    per_minute_call_limit: Calls,
    #[serde(default, alias = "per_hour_rate_limit")]
    #[schema(required = false)]
    per_hour_call_limit: Calls,
    #[serde(default, alias = "per_day_rate_limit")]
    #[schema(required = false)]
    per_day_call_limit: Calls,
    #[serde(default, alias = "per_week_rate_limit")]
    #[schema(required = false)]
    per_week_call_limit: Calls,
    #[serde(default, alias = "per_month_rate_limit")]
    #[schema(required = false)]
    per_month_call_limit: Calls,
}

impl RateLimitInput {
    pub(crate) fn into_content(self, consumer: &Name) -> RecordContent {
        let limits = call_limits([
            self.per_second_call_limit,
            self.per_minute_call_limit,
            self.per_hour_call_limit,
            self.per_day_call_limit,
            self.per_week_call_limit,
            self.per_month_call_limit,
        ]);
        RecordContent {
            api_name: self.api_name.into_text(),
            api_version: self.api_version.into_text(),
            bank_id: self.bank_id.into_text(),
            ..RecordContent::new(consumer.as_str(), self.from_date.0, self.to_date.0, limits)
        }
    }
}

/// The content of a record.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Content {
    /// The realm of the subject whose calls are limited.
    #[schema(example = "consumer")]
    realm: String,
    /// The id of the subject.
    #[schema(example = "abc123")]
    subject: String,
    /// The id of the subject, if it is a consumer.
    #[serde(skip_serializing_if = "Option::is_none")]
    consumer_id: Option<String>,
    /// The rule under which the record applies; `null` if it applies under every rule that takes its
    /// limits from records.
    #[schema(required = true)]
    rule: Option<String>,
    /// The first instant at which the record is active.
    from_date: Date,
    /// The last instant at which the record is active.
    to_date: Date,
    /// An endpoint, for information only.
    api_name: Option<String>,
    /// A version of the API, for information only.
    api_version: Option<String>,
    /// A bank, for information only.
    bank_id: Option<String>,
    #[serde(flatten)]
    limits: LimitTexts,
    /// Whether the record blocks the subject, whatever the other records contain.
    blocks: bool,
    /// Whether the record is a grant. Each limit of a grant is added to the limit that counts in the
    /// same window: from other records, a tier, the defaults or the service. This field never
    /// changes.
    grants: bool,
}

impl Content {
    pub(crate) fn of(content: &RecordContent) -> Self {
        let RecordContent {
            realm,
            subject_id: subject,
            rule,
            api_name,
            api_version,
            bank_id,
            limits,
            from_date,
            to_date,
            blocks,
            grants,
        } = content.clone();
        Self {
            realm: realm.as_str().to_owned(),
            consumer_id: (realm == Realm::Consumer).then(|| subject.clone()),
            subject,
            rule,
            from_date: Date(from_date),
            to_date: Date(to_date),
            api_name,
            api_version,
            bank_id,
            limits: LimitTexts::of(&limits),
            blocks,
            grants,
        }
    }
}

/// A stored record.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RateLimit {
    /// The id.
    #[schema(format = "uuid")]
    rate_limiting_id: String,
    #[serde(flatten)]
    content: Content,
    /// The name of the actor who created the record.
    created_by: String,
    /// The name of the actor who made the last change.
    updated_by: String,
    created_at: Date,
    updated_at: Date,
    /// The number of times that the record was written, which is its `ETag`.
    #[schema(minimum = 1)]
    revision: i64,
    /// A warning if the change has an effect that may not be intended.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

impl RateLimit {
    pub(crate) fn of(record: &Record) -> Self {
        Self {
            rate_limiting_id: record.id.to_string(),
            content: Content::of(&record.content),
            created_by: record.created_by.clone(),
            updated_by: record.updated_by.clone(),
            created_at: Date(record.created_at),
            updated_at: Date(record.updated_at),
            revision: record.revision,
            warning: None,
        }
    }

    /// Adds a warning about the change.
    pub(crate) fn with_warning(self, warning: Option<String>) -> Self {
        Self { warning, ..self }
    }
}

/// The end of a block in a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UntilInput {
    /// The last instant at which the consumer is blocked.
    pub(crate) until: Date,
}

/// A page of a list of records.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RateLimits {
    /// The records, ordered by subject and `from_date`.
    pub(crate) limits: Vec<RateLimit>,
    /// The value of `after` for the next page; `null` on the last page.
    pub(crate) next: Option<String>,
}

/// The limits of a consumer, and its usage.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CallLimitsAndState {
    #[serde(flatten)]
    pub(crate) limits: LimitTexts,
    /// The rule under which `current_state` counts; `null` if the limiter has no rules, or none
    /// that counts the consumer.
    #[schema(required = true)]
    pub(crate) rule: Option<String>,
    /// The calls in each open window; `null` if the counters cannot be reached.
    pub(crate) current_state: Option<Periods<Option<CallState>>>,
    /// The same value as `current_state`, under its older name.
    pub(crate) redis_call_limit: Option<Periods<Option<CallState>>>,
    /// A restriction that applies to this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}
