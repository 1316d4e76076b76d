use rl_core::time::Timestamp;
use rl_records::{ActiveLimits, CallPeriod};
use serde::Serialize;
use utoipa::ToSchema;

use super::date::Date;
use super::limits::{numbers_of, texts_of};

/// The combined limits of the records of a consumer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ActiveRateLimits {
    /// The ids of the records, ordered by `from_date`.
    considered_rate_limit_ids: Vec<String>,
    /// The time of the request, or the beginning of the requested hour.
    active_at_date: Date,
    /// Calls per second. -1 means no limit, and 0 blocks.
    #[schema(minimum = -1)]
    active_per_second_rate_limit: i64,
    #[schema(minimum = -1)]
    active_per_minute_rate_limit: i64,
    #[schema(minimum = -1)]
    active_per_hour_rate_limit: i64,
    #[schema(minimum = -1)]
    active_per_day_rate_limit: i64,
    #[schema(minimum = -1)]
    active_per_week_rate_limit: i64,
    #[schema(minimum = -1)]
    active_per_month_rate_limit: i64,
    /// All active limits, the shortest period first. If six numbers cannot express them, the numbers
    /// above are -1.
    #[schema(example = json!(["10/second", "10000/minute:unit=tokens"]))]
    active_limits: Vec<String>,
    /// The rules that get the limits of the consumer from a source, such as these records. `null`
    /// if the limiter has no rules.
    #[schema(required = true)]
    applied_by: Option<Vec<String>>,
    /// A restriction that applies to this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl ActiveRateLimits {
    pub(crate) fn of(
        active: &ActiveLimits,
        at: Timestamp,
        applied_by: Option<Vec<String>>,
        note: Option<String>,
    ) -> Self {
        let numbers = numbers_of(active.limits());
        let number = |period| numbers.get(period).as_number();
        Self {
            considered_rate_limit_ids: active.considered_ids().map(|id| id.to_string()).collect(),
            active_at_date: Date(at),
            active_per_second_rate_limit: number(CallPeriod::Second),
            active_per_minute_rate_limit: number(CallPeriod::Minute),
            active_per_hour_rate_limit: number(CallPeriod::Hour),
            active_per_day_rate_limit: number(CallPeriod::Day),
            active_per_week_rate_limit: number(CallPeriod::Week),
            active_per_month_rate_limit: number(CallPeriod::Month),
            active_limits: texts_of(active.limits()),
            applied_by,
            note,
        }
    }
}
