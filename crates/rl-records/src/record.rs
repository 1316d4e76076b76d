use std::fmt;
use std::str::FromStr;

use rl_core::time::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::history::Stored;
use crate::{CallLimits, CallPeriod, InvalidField};

/// The last microsecond of the year 9999: what dates as text can say.
const LAST_DATE: Timestamp = Timestamp::from_micros(253_402_300_799_999_999);

/// The `rate_limiting_id` of a record: a random UUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(Uuid);

impl RecordId {
    pub(crate) fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordId({self})")
    }
}

impl FromStr for RecordId {
    type Err = InvalidRecordId;

    fn from_str(text: &str) -> Result<Self, InvalidRecordId> {
        Uuid::try_parse(text).map(Self).map_err(|_| InvalidRecordId)
    }
}

/// A text that is no [`RecordId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidRecordId;

impl fmt::Display for InvalidRecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not the id of a record: expected a UUID")
    }
}

impl std::error::Error for InvalidRecordId {}

/// What people write into a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordContent {
    /// Who is limited: 1 to 250 bytes. A record stays with its consumer.
    pub consumer_id: String,
    /// An endpoint, for information only.
    pub api_name: Option<String>,
    /// A version of the API, for information only.
    pub api_version: Option<String>,
    /// A bank, for information only.
    pub bank_id: Option<String>,
    /// The limits of the six periods.
    pub limits: CallLimits,
    /// The first instant at which it is active.
    pub from_date: Timestamp,
    /// The last instant at which it is active.
    pub to_date: Timestamp,
    /// Whether it blocks the consumer while it is active, whatever this and other records say: unlike
    /// a limit of 0, which adds nothing to the limits of others.
    pub blocks: bool,
}

impl RecordContent {
    /// A record for all that the consumer calls.
    #[must_use]
    pub fn new(consumer_id: &str, from: Timestamp, to: Timestamp, limits: CallLimits) -> Self {
        let (api_name, api_version, bank_id) = (None, None, None);
        let consumer_id = consumer_id.to_owned();
        let (from_date, to_date, blocks) = (from, to, false);
        Self { consumer_id, api_name, api_version, bank_id, limits, from_date, to_date, blocks }
    }

    /// A record that blocks the consumer.
    #[must_use]
    pub fn block(consumer_id: &str, from: Timestamp, to: Timestamp) -> Self {
        Self { blocks: true, ..Self::new(consumer_id, from, to, CallLimits::BLOCKED) }
    }

    /// Checks every field; an empty name, version or bank becomes none.
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
        for period in CallPeriod::ALL {
            let limit = self.limits.get(period);
            if let (Err(expected), crate::CallLimit::AtMost(max)) = (limit.checked(), limit) {
                return Err(InvalidField::new(period.field(), max, expected));
            }
        }
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

    /// Whether it is active at some instant from `start` to `end`, both included.
    #[must_use]
    pub fn touches(&self, start: Timestamp, end: Timestamp) -> bool {
        self.from_date <= end && self.to_date >= start
    }
}

/// A name that fits into an index, a line of text and the id of a subject.
pub(crate) fn check_name(field: &'static str, value: &str) -> Result<(), InvalidField> {
    let expected = "1 to 250 bytes of text without control characters";
    if is_name(value) { Ok(()) } else { Err(InvalidField::new(field, value, expected)) }
}

pub(crate) fn is_name(value: &str) -> bool {
    (1..=250).contains(&value.len()) && !value.chars().any(char::is_control)
}

/// A record as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// Its `rate_limiting_id`.
    pub id: RecordId,
    /// What people wrote.
    pub content: RecordContent,
    /// Who created it.
    pub created_by: String,
    /// Who changed it last.
    pub updated_by: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was changed last.
    pub updated_at: Timestamp,
    /// How often it was written, 1 at first. Who changes it says which revision they saw.
    pub revision: i64,
}

/// In the history, under the names of the columns.
impl Stored for RecordContent {
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
            // Entries of before there were blocks do not have it.
            blocks: json["blocks"].as_bool().unwrap_or_default(),
        })
    }
}
