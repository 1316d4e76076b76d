use rl_core::time::Timestamp;
use rl_core::{Realm, Subject};
use serde_json::{Value, json};

use crate::error::InvalidField;
use crate::history::HistoryValue;
use crate::limits::Limits;
use crate::record::{check_name, record_id};
use crate::revision::{Revised, Revisioned};

/// The content of a tier, such as `gold`. Its limits apply to each member that has no active
/// record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierContent {
    /// The name: 1 to 250 bytes, unique. The name of a tier never changes.
    pub name: String,
    /// The limits of each member. Each member has its own counters.
    pub limits: Limits,
}

impl TierContent {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first field that cannot be stored.
    pub fn checked(self) -> Result<Self, InvalidField> {
        check_name("name", &self.name)?;
        Ok(self)
    }
}

/// A stored tier.
pub type Tier = Revisioned<TierContent>;

/// The numbers of subjects whose limits a change of a tier changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierUses {
    /// The consumers and keys in the tier. Those with an active record have its limits instead.
    pub members: u64,
    /// The subscriptions that are active, past due or suspended.
    pub subscriptions: u64,
}

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
/// Returns `None` if the subject cannot have a tier, because it is neither a consumer nor a key, or
/// can have no records.
pub(crate) fn member_key(subject: &Subject) -> Option<(&'static str, String)> {
    let realm = match subject.realm() {
        Realm::Consumer => "consumer",
        Realm::Key => "key",
        _ => return None,
    };
    Some((realm, record_id(subject)?.into_owned()))
}

impl HistoryValue for TierContent {
    fn to_json(&self) -> Value {
        json!({ "name": self.name, "limits": self.limits.to_json() })
    }

    fn from_json(json: &Value) -> Option<Self> {
        Some(Self { name: json["name"].as_str()?.to_owned(), limits: Limits::from_json(json)? })
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
