use rl_records::{CallLimits, ConsumerSummary, Limits, TierContent};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::date::Date;
use super::limits::{Calls, LimitTexts, call_limits};
use super::name::Name;
use crate::error::ApiError;

/// The limits of a tier in a request: either `limits`, or six numbers. An omitted number is -1, which
/// means no limit.
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
    /// The limits as text.
    #[schema(example = json!(["10/second", "10000/minute:unit=tokens"]))]
    limits: Option<Vec<String>>,
}

impl TierUpdate {
    pub(crate) fn into_content(self, name: &Name) -> Result<TierContent, ApiError> {
        let numbers = call_limits([
            self.per_second_call_limit,
            self.per_minute_call_limit,
            self.per_hour_call_limit,
            self.per_day_call_limit,
            self.per_week_call_limit,
            self.per_month_call_limit,
        ]);
        let limits = match self.limits {
            None => numbers.into(),
            Some(_) if numbers != CallLimits::UNLIMITED => {
                let expected = "nothing, because the six numbers are set: set either";
                return Err(ApiError::invalid("limits", expected));
            }
            Some(texts) => Limits::from_texts(texts.iter().map(String::as_str))?,
        };
        Ok(TierContent { name: name.as_str().to_owned(), limits })
    }
}

/// A tier. Its limits apply to each member that has no active record.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tier {
    name: String,
    #[serde(flatten)]
    limits: LimitTexts,
    created_by: String,
    updated_by: String,
    created_at: Date,
    updated_at: Date,
    /// The revision, which is the `ETag`.
    revision: i64,
}

impl Tier {
    pub(crate) fn of(tier: &rl_records::Tier) -> Self {
        Self {
            name: tier.content.name.clone(),
            limits: LimitTexts::of(&tier.content.limits),
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
    /// The tiers, ordered by name.
    pub(crate) tiers: Vec<Tier>,
    /// The value of `after` for the next page; `null` on the last page.
    pub(crate) next: Option<String>,
}

/// A membership in a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MembershipInput {
    /// The name of the tier.
    pub(crate) tier: Name,
}

/// The membership of a consumer or a key in a tier.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Membership {
    /// The name of the tier.
    tier: String,
    updated_by: String,
    updated_at: Date,
    /// The revision, which is the `ETag`.
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

/// A consumer in a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Consumer {
    consumer_id: String,
    /// The number of its records.
    records: u64,
    /// The number of its records that are active now.
    active: u64,
    /// The name of its tier; `null` if it has none.
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
    /// The consumers, ordered by id.
    pub(crate) consumers: Vec<Consumer>,
    /// The value of `after` for the next page; `null` on the last page.
    pub(crate) next: Option<String>,
}
