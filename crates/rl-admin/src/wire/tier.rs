use rl_records::{CallLimits, CallPeriod, ConsumerSummary, TierContent};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Calls, Date, Limits, Name};

/// The limits of each member of a tier. A limit that is left out is -1: no limit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TierUpdate {
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

impl TierUpdate {
    pub(crate) fn into_content(self, name: &Name) -> TierContent {
        let limits = CallLimits::UNLIMITED
            .with(CallPeriod::Second, self.per_second_call_limit.0)
            .with(CallPeriod::Minute, self.per_minute_call_limit.0)
            .with(CallPeriod::Hour, self.per_hour_call_limit.0)
            .with(CallPeriod::Day, self.per_day_call_limit.0)
            .with(CallPeriod::Week, self.per_week_call_limit.0)
            .with(CallPeriod::Month, self.per_month_call_limit.0);
        TierContent { name: name.as_str().to_owned(), limits }
    }
}

/// A tier: what holds for each of its members that has no active record of its own.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tier {
    name: String,
    #[serde(flatten)]
    limits: Limits,
    created_by: String,
    updated_by: String,
    created_at: Date,
    updated_at: Date,
    /// The `ETag` of the answer about it alone.
    revision: i64,
}

impl Tier {
    pub(crate) fn of(tier: &rl_records::Tier) -> Self {
        Self {
            name: tier.content.name.clone(),
            limits: Limits::of(&tier.content.limits),
            created_by: tier.created_by.clone(),
            updated_by: tier.updated_by.clone(),
            created_at: Date(tier.created_at),
            updated_at: Date(tier.updated_at),
            revision: tier.revision,
        }
    }
}

/// A page of a list of tiers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tiers {
    /// By name.
    pub(crate) tiers: Vec<Tier>,
    /// Where the next page begins, to be given as `after`; `null` on the last one.
    pub(crate) next: Option<String>,
}

/// Which tier to be in.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MembershipInput {
    /// The name of the tier.
    pub(crate) tier: Name,
}

/// Which tier a consumer or a key is in.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Membership {
    /// The name of the tier.
    tier: String,
    updated_by: String,
    updated_at: Date,
    /// The `ETag` of this answer.
    revision: i64,
}

impl Membership {
    pub(crate) fn of(member: &rl_records::TierMember) -> Self {
        Self {
            tier: member.tier.clone(),
            updated_by: member.updated_by.clone(),
            updated_at: Date(member.updated_at),
            revision: member.revision,
        }
    }
}

/// What there is of a consumer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Consumer {
    consumer_id: String,
    /// How many records it has.
    records: u64,
    /// How many of them are active now.
    active: u64,
    /// The tier it is in; `null` if it is in none.
    tier: Option<String>,
}

impl Consumer {
    pub(crate) fn of(summary: ConsumerSummary) -> Self {
        let ConsumerSummary { consumer_id, records, active, tier, .. } = summary;
        Self { consumer_id, records, active, tier }
    }
}

/// A page of the list of consumers that have records or a tier.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Consumers {
    /// By id.
    pub(crate) consumers: Vec<Consumer>,
    /// Where the next page begins, to be given as `after`; `null` on the last one.
    pub(crate) next: Option<String>,
}
