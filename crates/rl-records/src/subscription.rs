use rl_core::time::Timestamp;
use serde_json::{Value, json};

use crate::error::InvalidField;
use crate::history::HistoryValue;
use crate::limits::Limits;
use crate::record::{LAST_DATE, RecordContent, check_name};
use crate::record_id::{RecordId, SubscriptionId};
use crate::revision::Revised;

/// The status of a subscription.
///
/// | status | record of the subscription | next statuses |
/// |---|---|---|
/// | `requested` | none | `active`, `cancelled` |
/// | `active` | the limits of the tier, the dates of the subscription | `past_due`, `suspended`, `cancelled` |
/// | `past_due` | as in `active` | `active`, `suspended`, `cancelled` |
/// | `suspended` | ended | `active`, `cancelled` |
/// | `cancelled` | deleted | none |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubscriptionStatus {
    /// The consumer has requested the subscription.
    Requested,
    /// The subscription grants the limits of its tier.
    Active,
    /// A payment is late. The subscription grants its limits as before.
    PastDue,
    /// The subscription grants nothing until it is active again.
    Suspended,
    /// The subscription has ended. This status is final.
    Cancelled,
}

impl SubscriptionStatus {
    /// All statuses.
    pub const ALL: [Self; 5] =
        [Self::Requested, Self::Active, Self::PastDue, Self::Suspended, Self::Cancelled];

    /// Returns the name, such as `past_due`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Active => "active",
            Self::PastDue => "past_due",
            Self::Suspended => "suspended",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns the status of this name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }

    /// Returns the statuses that can follow this one.
    #[must_use]
    pub const fn next(self) -> &'static [Self] {
        match self {
            Self::Requested => &[Self::Active, Self::Cancelled],
            Self::Active => &[Self::PastDue, Self::Suspended, Self::Cancelled],
            Self::PastDue => &[Self::Active, Self::Suspended, Self::Cancelled],
            Self::Suspended => &[Self::Active, Self::Cancelled],
            Self::Cancelled => &[],
        }
    }

    /// Returns an error if `next` is neither this status nor one that can follow it.
    pub(crate) fn check_next(self, next: Self) -> Result<(), InvalidField> {
        if next == self || self.next().contains(&next) {
            return Ok(());
        }
        let expected = match self {
            Self::Requested => "active or cancelled, because the status is requested",
            Self::Active => "past_due, suspended or cancelled, because the status is active",
            Self::PastDue => "active, suspended or cancelled, because the status is past_due",
            Self::Suspended => "active or cancelled, because the status is suspended",
            Self::Cancelled => "no change, because the status is cancelled, which is final",
        };
        Err(InvalidField::new("status", next.as_str(), expected))
    }

    /// Returns whether a subscription with this status owns a record.
    pub(crate) const fn has_record(self) -> bool {
        matches!(self, Self::Active | Self::PastDue | Self::Suspended)
    }
}

/// The content of a subscription: a consumer has the limits of a tier from one date to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionContent {
    /// The consumer: 1 to 250 bytes. It never changes.
    pub consumer_id: String,
    /// The name of the tier, which is the product. It never changes.
    pub tier: String,
    /// The status.
    pub status: SubscriptionStatus,
    /// The first instant at which the subscription gives the consumer limits.
    pub from_date: Timestamp,
    /// The last instant at which the subscription gives the consumer limits; `None` if it has no end.
    pub to_date: Option<Timestamp>,
    /// The day of the month, 1 to 28, on which calendar-month limits of the tier
    /// (`5000/month:clock`) start. `None` means the 1st. Changing the day starts a new count.
    pub billing_day: Option<u8>,
}

impl SubscriptionContent {
    /// Creates the content of a requested subscription without an end.
    #[must_use]
    pub fn new(consumer_id: &str, tier: &str, from: Timestamp) -> Self {
        Self {
            consumer_id: consumer_id.to_owned(),
            tier: tier.to_owned(),
            status: SubscriptionStatus::Requested,
            from_date: from,
            to_date: None,
            billing_day: None,
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first field that cannot be stored.
    pub fn checked(self) -> Result<Self, InvalidField> {
        check_name("tier", &self.tier)?;
        if let Some(day) = self.billing_day.filter(|day| !(1..=28).contains(day)) {
            let expected = "a day of the month from 1 to 28";
            return Err(InvalidField::new("billing_day", day, expected));
        }
        // The consumer and the dates have to fit into a record, too.
        self.active_record(&Limits::UNLIMITED).checked()?;
        Ok(self)
    }

    /// Returns the content of the record that the subscription owns while it is active, with the
    /// limits of its tier.
    #[must_use]
    pub fn active_record(&self, limits: &Limits) -> RecordContent {
        let to = self.to_date.unwrap_or(LAST_DATE);
        let limits = limits.billed_on(self.billing_day);
        RecordContent::new(&self.consumer_id, self.from_date, to, limits)
    }

    /// Returns the record with which the subscription gives no limits from `now` on.
    ///
    /// The record ends just before `now`. Limits of 0 would do harm. Where another record has no
    /// limit, they would reject all calls. With [`ZeroMeans::Unlimited`](crate::ZeroMeans), a
    /// consumer without another record would have no limit at all.
    pub(crate) fn ended(&self, limits: &Limits, now: Timestamp) -> RecordContent {
        let last = Timestamp::from_micros(now.as_micros().saturating_sub(1));
        let content = self.active_record(limits);
        let (from, to) = (content.from_date.min(last), content.to_date.min(last));
        RecordContent { from_date: from, to_date: to, ..content }
    }
}

/// A stored subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subscription {
    /// The id.
    pub id: SubscriptionId,
    /// The content that administrators and billing systems write.
    pub content: SubscriptionContent,
    /// The id of the record that the subscription owns, if it owns one.
    pub record_id: Option<RecordId>,
    /// The name of the author who created the subscription.
    pub created_by: String,
    /// The name of the author of the last change.
    pub updated_by: String,
    /// The time at which the subscription was created.
    pub created_at: Timestamp,
    /// The time of the last change.
    pub updated_at: Timestamp,
    /// The number of times that the subscription was written. A change can
    /// [expect](crate::Expected) this number.
    pub revision: i64,
}

impl Revised for Subscription {
    fn revision(&self) -> i64 {
        self.revision
    }

    fn updated_by(&self) -> &str {
        &self.updated_by
    }
}

/// In JSON, the fields have the names of the columns.
impl HistoryValue for SubscriptionContent {
    fn to_json(&self) -> Value {
        let Self { consumer_id, tier, status, from_date, to_date, billing_day } = self;
        json!({
            "consumer_id": consumer_id, "tier": tier, "status": status.as_str(),
            "from_date": from_date.as_micros(), "to_date": to_date.map(Timestamp::as_micros),
            "billing_day": billing_day,
        })
    }

    fn from_json(json: &Value) -> Option<Self> {
        let text = |field: &str| json[field].as_str().map(ToOwned::to_owned);
        let time = |field: &str| json[field].as_u64().map(Timestamp::from_micros);
        Some(Self {
            consumer_id: text("consumer_id")?,
            tier: text("tier")?,
            status: SubscriptionStatus::from_name(json["status"].as_str()?)?,
            from_date: time("from_date")?,
            to_date: time("to_date"),
            // Older entries do not contain this field.
            billing_day: json["billing_day"].as_u64().and_then(|day| day.try_into().ok()),
        })
    }
}
