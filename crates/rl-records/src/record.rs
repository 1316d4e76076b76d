use rl_core::time::Timestamp;
use serde_json::{Value, json};

use crate::error::InvalidField;
use crate::history::HistoryValue;
use crate::limits::{CallLimits, CallPeriod};
use crate::record_id::RecordId;
use crate::revision::Revised;

/// The last microsecond of the year 9999, the latest time that RFC 3339 can express.
pub(crate) const LAST_DATE: Timestamp = Timestamp::from_micros(253_402_300_799_999_999);

/// The content of a record: the limits of a consumer from one date to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordContent {
    /// The consumer whose calls are limited: 1 to 250 bytes. The consumer of a record never
    /// changes.
    pub consumer_id: String,
    /// An endpoint, for information only.
    pub api_name: Option<String>,
    /// A version of the API, for information only.
    pub api_version: Option<String>,
    /// A bank, for information only.
    pub bank_id: Option<String>,
    /// The limits of the six periods.
    pub limits: CallLimits,
    /// The first instant at which the record is active.
    pub from_date: Timestamp,
    /// The last instant at which the record is active.
    pub to_date: Timestamp,
    /// Whether the record blocks the consumer while it is active. A block overrides the limits of
    /// all records, whereas a limit of 0 adds nothing to them.
    pub blocks: bool,
}

impl RecordContent {
    /// Creates the content of a record without an API name, a version or a bank.
    #[must_use]
    pub fn new(consumer_id: &str, from: Timestamp, to: Timestamp, limits: CallLimits) -> Self {
        Self {
            consumer_id: consumer_id.to_owned(),
            api_name: None,
            api_version: None,
            bank_id: None,
            limits,
            from_date: from,
            to_date: to,
            blocks: false,
        }
    }

    /// Creates the content of a record that blocks the consumer.
    #[must_use]
    pub fn block(consumer_id: &str, from: Timestamp, to: Timestamp) -> Self {
        Self { blocks: true, ..Self::new(consumer_id, from, to, CallLimits::BLOCKED) }
    }

    /// Checks every field. An empty API name, version or bank becomes `None`.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first field that cannot be stored.
    pub fn checked(mut self) -> Result<Self, InvalidField> {
        check_name("consumer_id", &self.consumer_id)?;
        for (field, value) in [
            ("api_name", &mut self.api_name),
            ("api_version", &mut self.api_version),
            ("bank_id", &mut self.bank_id),
        ] {
            *value = value.take().filter(|value| !value.is_empty());
            value.as_deref().map_or(Ok(()), |value| check_name(field, value))?;
        }
        self.limits.check()?;
        if self.to_date > LAST_DATE {
            let expected = "a time before the year 10000";
            return Err(InvalidField::new("to_date", self.to_date.as_micros(), expected));
        }
        if self.from_date > self.to_date {
            let expected = "a time that is not after to_date";
            return Err(InvalidField::new("from_date", self.from_date.as_micros(), expected));
        }
        Ok(self)
    }

    /// Returns whether the record is active at some instant from `start` to `end`, both included.
    #[must_use]
    pub fn overlaps(&self, start: Timestamp, end: Timestamp) -> bool {
        self.from_date <= end && self.to_date >= start
    }
}

/// The maximum length of an id or a name, in bytes.
pub(crate) const MAX_NAME: usize = 250;

/// Checks that `value` fits into a database index, a log line and the id of a subject.
pub(crate) fn check_name(field: &'static str, value: &str) -> Result<(), InvalidField> {
    let expected = "1 to 250 bytes of text without control characters";
    if is_name(value) { Ok(()) } else { Err(InvalidField::new(field, value, expected)) }
}

/// Returns whether [`check_name`] accepts `value`.
pub(crate) fn is_name(value: &str) -> bool {
    (1..=MAX_NAME).contains(&value.len()) && !value.chars().any(char::is_control)
}

/// A stored record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The `rate_limiting_id`.
    pub id: RecordId,
    /// The content that administrators write.
    pub content: RecordContent,
    /// The name of the author who created the record.
    pub created_by: String,
    /// The name of the author of the last change.
    pub updated_by: String,
    /// The time at which the record was created.
    pub created_at: Timestamp,
    /// The time of the last change.
    pub updated_at: Timestamp,
    /// The number of times that the record was written. A change can [expect](crate::Expected) this
    /// number.
    pub revision: i64,
}

impl Revised for Record {
    fn revision(&self) -> i64 {
        self.revision
    }

    fn updated_by(&self) -> &str {
        &self.updated_by
    }
}

/// In JSON, the fields have the names of the columns.
impl HistoryValue for RecordContent {
    fn to_json(&self) -> Value {
        let Self {
            consumer_id,
            api_name,
            api_version,
            bank_id,
            limits,
            from_date,
            to_date,
            blocks,
        } = self;
        let mut json = json!({
            "consumer_id": consumer_id, "api_name": api_name, "api_version": api_version,
            "bank_id": bank_id, "from_date": from_date.as_micros(), "to_date": to_date.as_micros(),
            "blocks": blocks,
        });
        for (period, number) in CallPeriod::ALL.into_iter().zip(limits.numbers()) {
            json[period.field()] = number.into();
        }
        json
    }

    fn from_json(json: &Value) -> Option<Self> {
        let text = |field: &str| json[field].as_str().map(ToOwned::to_owned);
        let time = |field: &str| json[field].as_u64().map(Timestamp::from_micros);
        let mut numbers = [0; 6];
        for (period, number) in CallPeriod::ALL.into_iter().zip(&mut numbers) {
            *number = json[period.field()].as_i64()?;
        }
        Some(Self {
            consumer_id: text("consumer_id")?,
            api_name: text("api_name"),
            api_version: text("api_version"),
            bank_id: text("bank_id"),
            limits: CallLimits::from_numbers(numbers).ok()?,
            from_date: time("from_date")?,
            to_date: time("to_date")?,
            // Older entries do not contain this field.
            blocks: json["blocks"].as_bool().unwrap_or_default(),
        })
    }
}
