use rl_records::{CallLimits, CallPeriod, Record, RecordContent};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{CallState, Calls, Date, Limits, Name, Optional, Periods};

/// The input for a record. A limit that is left out is -1: no limit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RateLimitInput {
    /// The first instant at which it is active.
    from_date: Date,
    /// The last instant at which it is active. It may equal `from_date`.
    to_date: Date,
    /// An endpoint; for information only.
    #[serde(default)]
    #[schema(required = false)]
    api_name: Optional,
    /// A version of the API; for information only.
    #[serde(default)]
    #[schema(required = false)]
    api_version: Optional,
    /// A bank; for information only.
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
        let limits = CallLimits::UNLIMITED
            .with(CallPeriod::Second, self.per_second_call_limit.0)
            .with(CallPeriod::Minute, self.per_minute_call_limit.0)
            .with(CallPeriod::Hour, self.per_hour_call_limit.0)
            .with(CallPeriod::Day, self.per_day_call_limit.0)
            .with(CallPeriod::Week, self.per_week_call_limit.0)
            .with(CallPeriod::Month, self.per_month_call_limit.0);
        RecordContent {
            api_name: self.api_name.into_text(),
            api_version: self.api_version.into_text(),
            bank_id: self.bank_id.into_text(),
            ..RecordContent::new(consumer.as_str(), self.from_date.0, self.to_date.0, limits)
        }
    }
}

/// What a record says.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Content {
    /// Who is limited.
    consumer_id: String,
    /// The first instant at which it is active.
    from_date: Date,
    /// The last instant at which it is active.
    to_date: Date,
    /// An endpoint; for information only.
    api_name: Option<String>,
    /// A version of the API; for information only.
    api_version: Option<String>,
    /// A bank; for information only.
    bank_id: Option<String>,
    #[serde(flatten)]
    limits: Limits,
    /// Whether it blocks the consumer, whatever other records say.
    blocks: bool,
}

impl Content {
    pub(crate) fn of(content: &RecordContent) -> Self {
        let RecordContent {
            consumer_id,
            api_name,
            api_version,
            bank_id,
            limits,
            from_date,
            to_date,
            blocks,
        } = content.clone();
        let (from_date, to_date) = (Date(from_date), Date(to_date));
        let limits = Limits::of(&limits);
        Self { consumer_id, from_date, to_date, api_name, api_version, bank_id, limits, blocks }
    }
}

/// A record.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RateLimit {
    /// Its id.
    #[schema(format = "uuid")]
    rate_limiting_id: String,
    #[serde(flatten)]
    content: Content,
    /// Who created it.
    created_by: String,
    /// Who changed it last.
    updated_by: String,
    created_at: Date,
    updated_at: Date,
    /// How often it was written; the `ETag` of the answer about this record alone.
    #[schema(minimum = 1)]
    revision: i64,
    /// An effect of the change that may not be intended.
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

/// How long a consumer is blocked.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UntilInput {
    /// The last instant.
    pub(crate) until: Date,
}

/// A page of a list of records.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RateLimits {
    /// The records, by consumer and beginning.
    pub(crate) limits: Vec<RateLimit>,
    /// Where the next page begins, to be given as `after`; `null` on the last one.
    pub(crate) next: Option<String>,
}

/// The limits of a consumer, and what it has used.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CallLimitsAndState {
    #[serde(flatten)]
    pub(crate) limits: Limits,
    /// The calls in each window that is open; `null` if the counters cannot be reached.
    pub(crate) current_state: Option<Periods<Option<CallState>>>,
    /// The same, under the name that older documents give it.
    pub(crate) redis_call_limit: Option<Periods<Option<CallState>>>,
}
