use std::borrow::Cow;

use rl_core::time::Timestamp;
use rl_core::{Limit, Realm, Subject};
use serde_json::{Value, json};

use crate::call_limits::CallLimits;
use crate::error::InvalidField;
use crate::history::HistoryValue;
use crate::limits::Limits;
use crate::record_id::RecordId;
use crate::revision::Revised;

/// The last microsecond of the year 9999, the latest time that RFC 3339 can express.
pub(crate) const LAST_DATE: Timestamp = Timestamp::from_micros(253_402_300_799_999_999);

/// The content of a record: the limits of a subject, such as a consumer, from one date to another.
///
/// # Examples
///
/// ```
/// use rl_core::Realm;
/// use rl_core::time::Timestamp;
/// use rl_records::{Limits, RecordContent};
///
/// let limits: Limits = "5/minute".parse()?;
/// let (from, to) = (Timestamp::EPOCH, Timestamp::from_secs(60));
/// let login = RecordContent {
///     realm: Realm::Ip,
///     rule: Some("login".into()),
///     ..RecordContent::new("192.0.2.7", from, to, limits)
/// };
/// assert!(login.applies_under(Some("login")) && !login.applies_under(Some("search")));
/// # Ok::<(), rl_records::InvalidField>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordContent {
    /// The realm of the subject whose calls are limited. It never changes.
    pub realm: Realm,
    /// The id of the subject: 1 to 250 bytes. It never changes.
    ///
    /// It is the id under which requests are counted: an address as
    /// [`Subject::ip`](rl_core::Subject::ip) writes it, or the network if networks are counted; the
    /// keyed hash of a key as 32 hexadecimal digits; `-` for the one subject of [`Realm::Global`]
    /// and of [`Realm::Unknown`].
    pub subject_id: String,
    /// The rule under which the record applies; `None` for every rule that takes its limits from
    /// records, and for a limiter without rules. It never changes.
    pub rule: Option<String>,
    /// An endpoint, for information only.
    pub api_name: Option<String>,
    /// A version of the API, for information only.
    pub api_version: Option<String>,
    /// A bank, for information only.
    pub bank_id: Option<String>,
    /// The limits. They are added to those of other records that are active at the same time.
    pub limits: Limits,
    /// Whether the record is a grant. Each limit of a grant is added to the limit with the same
    /// state that applies without the grant: from records, a tier, defaults or another source. This
    /// field never changes.
    ///
    /// A grant creates no limit, and adds nothing to a limit of 0. Unlike other records, it does not
    /// replace the tier and the defaults.
    pub grants: bool,
    /// The first instant at which the record is active.
    pub from_date: Timestamp,
    /// The last instant at which the record is active.
    pub to_date: Timestamp,
    /// Whether the record blocks the subject while it is active. A block overrides the limits of
    /// all records, whereas a limit of 0 adds nothing to them.
    pub blocks: bool,
}

impl RecordContent {
    /// Creates the content of a record of a consumer, without a rule, an API name, a version or a
    /// bank.
    #[must_use]
    pub fn new(
        consumer_id: &str,
        from: Timestamp,
        to: Timestamp,
        limits: impl Into<Limits>,
    ) -> Self {
        Self {
            realm: Realm::Consumer,
            subject_id: consumer_id.to_owned(),
            rule: None,
            api_name: None,
            api_version: None,
            bank_id: None,
            limits: limits.into(),
            grants: false,
            from_date: from,
            to_date: to,
            blocks: false,
        }
    }

    /// Creates the content of a record of any subject, without a rule, an API name, a version or a
    /// bank.
    ///
    /// # Errors
    ///
    /// Returns an error if the subject can have no records: a key that is not counted by its keyed
    /// hash, and any other subject without a textual id of 1 to 250 bytes.
    pub fn of_subject(
        subject: &Subject,
        from: Timestamp,
        to: Timestamp,
        limits: impl Into<Limits>,
    ) -> Result<Self, InvalidField> {
        let Some(id) = record_id(subject) else {
            let expected = "an id of 1 to 250 bytes of text, or the keyed hash of a key";
            return Err(InvalidField::new("subject", subject.id(), expected));
        };
        Ok(Self { realm: subject.realm().clone(), ..Self::new(&id, from, to, limits) })
    }

    /// Creates the content of a record that blocks the consumer.
    #[must_use]
    pub fn block(consumer_id: &str, from: Timestamp, to: Timestamp) -> Self {
        Self { blocks: true, ..Self::new(consumer_id, from, to, CallLimits::BLOCKED) }
    }

    /// Creates the content of a record that [grants](Self::grants) the consumer more.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::time::{Clock, SystemClock};
    /// use rl_records::{Limits, RecordContent, Records, TierContent};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let records = Records::connect("sqlite::memory:").await?;
    /// let free = TierContent { name: "free".into(), limits: "10/second, 20000/month".parse()? };
    /// records.tiers().create(free, "alice").await?;
    /// let consumer = rl_core::Subject::consumer("abc123");
    /// records.tiers().set_member(&consumer, Some("free"), 0, "alice").await?;
    ///
    /// let now = SystemClock.now();
    /// let more: Limits = "5000/month".parse()?;
    /// let grant = RecordContent::grant("abc123", now, now.plus_micros(86_400_000_000), more);
    /// records.create(grant, "alice").await?;
    /// let active = records.active_limits("abc123", now).await?;
    /// assert_eq!(active.limits().to_string(), "10/second, 25000/month");
    /// assert_eq!(active.tier(), Some("free"));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn grant(
        consumer_id: &str,
        from: Timestamp,
        to: Timestamp,
        limits: impl Into<Limits>,
    ) -> Self {
        Self { grants: true, ..Self::new(consumer_id, from, to, limits) }
    }

    /// Checks every field. An empty API name, version or bank becomes `None`.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first field that cannot be stored.
    pub fn checked(mut self) -> Result<Self, InvalidField> {
        self.check_subject()?;
        for (field, value) in [
            ("api_name", &mut self.api_name),
            ("api_version", &mut self.api_version),
            ("bank_id", &mut self.bank_id),
        ] {
            *value = value.take().filter(|value| !value.is_empty());
            value.as_deref().map_or(Ok(()), |value| check_name(field, value))?;
        }
        if self.grants && self.blocks {
            return Err(InvalidField::new("blocks", true, "false, because a grant cannot block"));
        }
        let adds = |limit: &Limit| limit.max() > 0;
        if self.grants && !self.limits.as_slice().iter().any(adds) {
            let expected = "at least one limit above 0, because the record is a grant";
            return Err(InvalidField::new("limits", &self.limits, expected));
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

    fn check_subject(&self) -> Result<(), InvalidField> {
        let id = &*self.subject_id;
        match self.realm {
            Realm::Consumer => check_name("consumer_id", id)?,
            _ => check_name("subject", id)?,
        }
        if record_id(&self.subject()).as_deref() != Some(id) {
            let expected = match self.realm {
                Realm::Key => "the keyed hash of a key: 32 hexadecimal digits in lower case",
                _ => "\"-\", because the realm has one subject",
            };
            return Err(InvalidField::new("subject", id, expected));
        }
        let is_rule = |rule: &String| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
            (1..=64).contains(&rule.len()) && rule.bytes().all(fits)
        };
        match &self.rule {
            Some(rule) if !is_rule(rule) => {
                let expected = "the name of a rule: 1 to 64 characters of A-Z a-z 0-9 _ . -";
                Err(InvalidField::new("rule", rule, expected))
            }
            _ => Ok(()),
        }
    }

    /// Returns the subject whose calls are limited.
    #[must_use]
    pub fn subject(&self) -> Subject {
        match self.realm {
            Realm::Key => Subject::displayed_key(&self.subject_id),
            Realm::Global | Realm::Unknown => Subject::new(self.realm.clone(), ""),
            _ => Subject::new(self.realm.clone(), &self.subject_id),
        }
    }

    /// Returns an error if this content does not belong to the subject and the rule of `before`.
    pub(crate) fn check_owner(&self, before: &Self) -> Result<(), InvalidField> {
        if (&self.realm, &self.subject_id) != (&before.realm, &before.subject_id) {
            let field = if self.realm == Realm::Consumer { "consumer_id" } else { "subject" };
            let expected = "the subject that the record belongs to";
            return Err(InvalidField::new(field, &self.subject_id, expected));
        }
        if self.rule != before.rule {
            let rule = self.rule.as_deref().unwrap_or_default();
            return Err(InvalidField::new("rule", rule, "the rule that the record belongs to"));
        }
        if self.grants != before.grants {
            return Err(InvalidField::new(
                "grants",
                self.grants,
                "the present value, because it never changes",
            ));
        }
        Ok(())
    }

    /// Checks that the limits can be added up with those of all `others`, which are active at the
    /// same time under the same rule.
    pub(crate) fn check_sum<'a>(
        &'a self,
        others: impl Iterator<Item = &'a Self> + Clone,
    ) -> Result<(), InvalidField> {
        self.limits.check_additions(others.clone().map(|other| &other.limits))?;
        match self.grants {
            true => Ok(()),
            false => {
                let others = others.filter(|other| !other.grants);
                self.limits.check_sum(others.map(|other| &other.limits))
            }
        }
    }

    /// Returns whether the record applies under this rule. `None` is a limiter without rules.
    #[must_use]
    pub fn applies_under(&self, rule: Option<&str>) -> bool {
        self.rule.is_none() || self.rule.as_deref() == rule
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

/// Returns the id by which tables identify a subject, or `None` if it can have no records.
///
/// A key needs the digest that `KeySecret` creates, and every other subject a textual id. So no two
/// subjects of a realm have the same id.
pub(crate) fn record_id(subject: &Subject) -> Option<Cow<'_, str>> {
    // A subject that includes a route has the records of its owner.
    let owner = subject.owner().id();
    match (subject.realm(), owner.as_text()) {
        (Realm::Key, None) if !owner.is_of_long_text() => Some(owner.to_string().into()),
        (Realm::Key, _) => None,
        (Realm::Global | Realm::Unknown, Some("")) => Some("-".into()),
        (_, Some(id)) => is_name(id).then_some(id.into()),
        (_, None) => None,
    }
}

/// Returns the realm of this name.
pub(crate) fn realm_named(name: &str) -> Option<Realm> {
    let known =
        [Realm::Ip, Realm::Key, Realm::Consumer, Realm::User, Realm::Global, Realm::Unknown];
    let known = known.into_iter().find(|realm| realm.as_str() == name);
    known.or_else(|| Realm::custom(name).ok())
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

impl Record {
    /// Creates the first revision of a record.
    pub(crate) fn new(id: RecordId, content: RecordContent, by: &str, at: Timestamp) -> Self {
        Self {
            id,
            content,
            created_by: by.to_owned(),
            updated_by: by.to_owned(),
            created_at: at,
            updated_at: at,
            revision: 1,
        }
    }
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
            realm,
            subject_id,
            rule,
            api_name,
            api_version,
            bank_id,
            limits,
            grants,
            from_date,
            to_date,
            blocks,
        } = self;
        json!({
            "realm": realm.as_str(), "subject_id": subject_id, "rule": rule, "api_name": api_name,
            "api_version": api_version, "bank_id": bank_id, "limits": limits.to_json(),
            "grants": grants, "from_date": from_date.as_micros(), "to_date": to_date.as_micros(),
            "blocks": blocks,
        })
    }

    fn from_json(json: &Value) -> Option<Self> {
        let text = |field: &str| json[field].as_str().map(ToOwned::to_owned);
        let time = |field: &str| json[field].as_u64().map(Timestamp::from_micros);
        Some(Self {
            // Older entries are about consumers.
            realm: realm_named(json["realm"].as_str().unwrap_or("consumer"))?,
            subject_id: text("subject_id").or_else(|| text("consumer_id"))?,
            rule: text("rule"),
            api_name: text("api_name"),
            api_version: text("api_version"),
            bank_id: text("bank_id"),
            limits: Limits::from_json(json)?,
            // Older entries do not contain this field.
            grants: json["grants"].as_bool().unwrap_or_default(),
            from_date: time("from_date")?,
            to_date: time("to_date")?,
            // Older entries do not contain this field.
            blocks: json["blocks"].as_bool().unwrap_or_default(),
        })
    }
}
