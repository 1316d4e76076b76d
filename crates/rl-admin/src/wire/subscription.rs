use rl_records::{SubscriptionContent, SubscriptionStatus as StoredStatus};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::date::Date;
use super::name::Name;

/// The status of a subscription.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SubscriptionStatus {
    /// The consumer has requested the subscription.
    #[default]
    Requested,
    /// The subscription gives the consumer the limits of its tier.
    Active,
    /// A payment is late. The subscription grants its limits as before.
    PastDue,
    /// The subscription grants nothing until it is active again.
    Suspended,
    /// The subscription has ended. This status is final.
    Cancelled,
}

impl SubscriptionStatus {
    const fn of(status: StoredStatus) -> Self {
        match status {
            StoredStatus::Requested => Self::Requested,
            StoredStatus::Active => Self::Active,
            StoredStatus::PastDue => Self::PastDue,
            StoredStatus::Suspended => Self::Suspended,
            StoredStatus::Cancelled => Self::Cancelled,
        }
    }
}

impl From<SubscriptionStatus> for StoredStatus {
    fn from(status: SubscriptionStatus) -> Self {
        match status {
            SubscriptionStatus::Requested => Self::Requested,
            SubscriptionStatus::Active => Self::Active,
            SubscriptionStatus::PastDue => Self::PastDue,
            SubscriptionStatus::Suspended => Self::Suspended,
            SubscriptionStatus::Cancelled => Self::Cancelled,
        }
    }
}

/// A new subscription in a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubscriptionInput {
    /// The id of the consumer.
    consumer_id: Name,
    /// The name of the tier, which is the product.
    tier: Name,
    /// `requested` or `active`.
    #[serde(default)]
    #[schema(required = false)]
    status: SubscriptionStatus,
    /// The first instant at which the subscription gives the consumer limits.
    from_date: Date,
    /// The last instant at which the subscription gives the consumer limits; without it, there is no end.
    #[serde(default)]
    to_date: Option<Date>,
    /// The day of the month, 1 to 28, on which calendar-month limits of the tier
    /// (`5000/month:clock`) start. Without it, they start on the 1st.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 28)]
    billing_day: Option<u8>,
}

impl SubscriptionInput {
    /// Returns the id of the consumer.
    pub(crate) fn consumer(&self) -> &str {
        self.consumer_id.as_str()
    }

    pub(crate) fn into_content(self) -> SubscriptionContent {
        SubscriptionContent {
            consumer_id: self.consumer_id.into(),
            tier: self.tier.into(),
            status: self.status.into(),
            from_date: self.from_date.0,
            to_date: self.to_date.map(|date| date.0),
            billing_day: self.billing_day,
        }
    }
}

/// The status of a subscription in a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatusInput {
    pub(crate) status: SubscriptionStatus,
}

/// The dates and the billing day of a subscription in a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DatesInput {
    /// The first instant at which the subscription gives the consumer limits.
    pub(crate) from_date: Date,
    /// The last instant at which the subscription gives the consumer limits; without it, there is no end.
    #[serde(default)]
    pub(crate) to_date: Option<Date>,
    /// The day of the month, 1 to 28, on which calendar-month limits of the tier start. Without it,
    /// they start on the 1st. Changing the day starts a new count.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 28)]
    pub(crate) billing_day: Option<u8>,
}

/// The content of a subscription.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SubscriptionState {
    /// The id of the consumer.
    consumer_id: String,
    /// The name of the tier, which is the product.
    tier: String,
    status: SubscriptionStatus,
    /// The first instant at which the subscription gives the consumer limits.
    from_date: Date,
    /// The last instant at which the subscription gives the consumer limits; `null` if there is no end.
    to_date: Option<Date>,
    /// The day of the month, 1 to 28, on which calendar-month limits of the tier start. `null` means
    /// the 1st.
    #[schema(minimum = 1, maximum = 28)]
    billing_day: Option<u8>,
}

impl SubscriptionState {
    pub(crate) fn of(content: &SubscriptionContent) -> Self {
        Self {
            consumer_id: content.consumer_id.clone(),
            tier: content.tier.clone(),
            status: SubscriptionStatus::of(content.status),
            from_date: Date(content.from_date),
            to_date: content.to_date.map(Date),
            billing_day: content.billing_day,
        }
    }
}

/// A stored subscription.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Subscription {
    /// The id.
    #[schema(format = "uuid")]
    subscription_id: String,
    #[serde(flatten)]
    content: SubscriptionState,
    /// The id of the record that the subscription owns; `null` if it owns none.
    rate_limiting_id: Option<String>,
    /// The name of the actor who created the subscription.
    created_by: String,
    /// The name of the actor who made the last change.
    updated_by: String,
    created_at: Date,
    updated_at: Date,
    /// The number of times that the subscription was written, which is its `ETag`.
    #[schema(minimum = 1)]
    revision: i64,
    /// A warning if the change has an effect that may not be intended.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

impl Subscription {
    pub(crate) fn of(subscription: &rl_records::Subscription) -> Self {
        Self {
            subscription_id: subscription.id.to_string(),
            content: SubscriptionState::of(&subscription.content),
            rate_limiting_id: subscription.record_id.map(|id| id.to_string()),
            created_by: subscription.created_by.clone(),
            updated_by: subscription.updated_by.clone(),
            created_at: Date(subscription.created_at),
            updated_at: Date(subscription.updated_at),
            revision: subscription.revision,
            warning: None,
        }
    }

    /// Adds a warning about the change.
    pub(crate) fn with_warning(self, warning: Option<String>) -> Self {
        Self { warning, ..self }
    }
}

/// A page of the list of subscriptions.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Subscriptions {
    /// The subscriptions, ordered by id.
    pub(crate) subscriptions: Vec<Subscription>,
    /// The value of `after` for the next page; `null` on the last page.
    pub(crate) next: Option<String>,
}
