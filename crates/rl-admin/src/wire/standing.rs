use std::time::Duration;

use rl_core::{LimitReport, RetryAfter};
use rl_records::Contribution;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Date, Limits};

/// Whole seconds, rounded up: a window that is open never ends in 0.
pub(crate) fn whole_seconds(left: Duration) -> u64 {
    left.as_secs() + u64::from(left.subsec_nanos() > 0)
}

/// Where a subject stands under one limit.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Standing {
    /// The name of the limit in its policy.
    #[schema(example = "minute")]
    name: String,
    /// The limit as text.
    #[schema(example = "100/minute")]
    limit: String,
    /// The most that can be used at once.
    max: u64,
    /// What is used.
    used: u64,
    /// What is left.
    remaining: u64,
    /// The seconds until it is as if never used, rounded up.
    reset_in_seconds: u64,
    /// Whether this limit denies what was asked for.
    denies: bool,
    /// The seconds after which it would not, rounded up; 0 if it does not deny, `null` if waiting does
    /// not help.
    retry_in_seconds: Option<u64>,
    /// Whether it is only tried out: it denies nothing.
    is_shadow: bool,
}

impl Standing {
    pub(crate) fn of(limit: LimitReport<'_>) -> Self {
        Self {
            name: limit.name().to_owned(),
            limit: limit.limit().to_string(),
            max: limit.max(),
            used: limit.used(),
            remaining: limit.remaining(),
            reset_in_seconds: whole_seconds(limit.reset_after()),
            denies: limit.is_over() && !limit.limit().is_shadow(),
            retry_in_seconds: seconds_of(limit.retry_after()),
            is_shadow: limit.limit().is_shadow(),
        }
    }
}

/// How long to wait; `None` is for ever.
pub(crate) fn seconds_of(wait: RetryAfter) -> Option<u64> {
    match wait {
        RetryAfter::Now => Some(0),
        RetryAfter::In(wait) => Some(whole_seconds(wait)),
        RetryAfter::Never => None,
    }
}

/// A record that has to do with the limits that hold.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Considered {
    #[schema(format = "uuid")]
    rate_limiting_id: String,
    from_date: Date,
    to_date: Date,
    #[serde(flatten)]
    limits: Limits,
    /// Whether it blocks, whatever the others say.
    blocks: bool,
}

impl Considered {
    pub(crate) fn of(record: &Contribution) -> Self {
        Self {
            rate_limiting_id: record.id.to_string(),
            from_date: Date(record.from_date),
            to_date: Date(record.to_date),
            limits: Limits::of(&record.limits),
            blocks: record.blocks,
        }
    }
}
