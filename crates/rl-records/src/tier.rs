use rl_core::time::Timestamp;
use rl_core::{Realm, Subject};
use serde_json::{Value, json};

use crate::error::InvalidField;
use crate::history::HistoryValue;
use crate::limits::{CallLimits, CallPeriod};
use crate::record::check_name;
use crate::revision::{Revised, Revisioned};

/// The content of a tier, such as `gold`. Its limits apply to each member that has no active
/// record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierContent {
    /// The name: 1 to 250 bytes, unique. The name of a tier never changes.
    pub name: String,
    /// The limits of each member. Each member has its own counters.
    pub limits: CallLimits,
}

impl TierContent {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first field that cannot be stored.
    pub fn checked(self) -> Result<Self, InvalidField> {
        check_name("name", &self.name)?;
        self.limits.check()?;
        Ok(self)
    }
}

/// A stored tier.
pub type Tier = Revisioned<TierContent>;

/// The membership of a consumer or a key in a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierMember {
    /// The name of the tier.
    pub tier: String,
    /// The name of the author of the last change.
    pub updated_by: String,
    /// The time of the last change.
    pub updated_at: Timestamp,
    /// The number of the change that wrote the membership. A change can [expect](crate::Expected)
    /// this number.
    pub revision: i64,
}

impl Revised for TierMember {
    fn revision(&self) -> i64 {
        self.revision
    }

    fn updated_by(&self) -> &str {
        &self.updated_by
    }
}

/// Returns the realm and the id by which the table of members identifies a subject.
///
/// Returns `None` if the subject cannot have a tier. A consumer needs a textual id, and a key needs
/// the digest that `KeySecret` creates. So no two subjects have the same row.
pub(crate) fn member_key(subject: &Subject) -> Option<(&'static str, String)> {
    // A subject that includes a route has the tier of its owner.
    let owner = subject.owner().id();
    match (subject.realm(), owner.as_text()) {
        (Realm::Consumer, Some(id)) => Some(("consumer", id.to_owned())),
        (Realm::Key, None) if !owner.is_of_long_text() => Some(("key", owner.to_string())),
        _ => None,
    }
}

impl HistoryValue for TierContent {
    fn to_json(&self) -> Value {
        let mut json = json!({ "name": self.name });
        for (period, number) in CallPeriod::ALL.into_iter().zip(self.limits.numbers()) {
            json[period.field()] = number.into();
        }
        json
    }

    fn from_json(json: &Value) -> Option<Self> {
        let mut numbers = [0; 6];
        for (period, number) in CallPeriod::ALL.into_iter().zip(&mut numbers) {
            *number = json[period.field()].as_i64()?;
        }
        let name = json["name"].as_str()?.to_owned();
        Some(Self { name, limits: CallLimits::from_numbers(numbers).ok()? })
    }
}

/// The history of a membership stores the name of its tier.
impl HistoryValue for String {
    fn to_json(&self) -> Value {
        self.as_str().into()
    }

    fn from_json(json: &Value) -> Option<Self> {
        json.as_str().map(ToOwned::to_owned)
    }
}
