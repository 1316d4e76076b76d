use rl_core::time::Timestamp;
use rl_core::{Realm, Subject};
use serde_json::{Value, json};

use crate::history::Stored;
use crate::record::check_name;
use crate::{CallLimit, CallLimits, CallPeriod, InvalidField};

/// The limits of a tier, such as `gold`: what holds for each of its consumers and keys that has no
/// active record of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierContent {
    /// Its name: 1 to 250 bytes, unique. A tier keeps its name.
    pub name: String,
    /// What each of its members may call. They share no counter.
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
        for period in CallPeriod::ALL {
            let limit = self.limits.get(period);
            if let (Err(expected), CallLimit::AtMost(max)) = (limit.checked(), limit) {
                return Err(InvalidField::new(period.field(), max, expected));
            }
        }
        Ok(self)
    }
}

/// A tier as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tier {
    /// What people wrote.
    pub content: TierContent,
    /// Who created it.
    pub created_by: String,
    /// Who changed it last.
    pub updated_by: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was changed last.
    pub updated_at: Timestamp,
    /// The number of the change that wrote it. Who changes it says which revision they saw.
    pub revision: i64,
}

/// Which tier a consumer or a key is in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierMember {
    /// The name of the tier.
    pub tier: String,
    /// Who said so.
    pub updated_by: String,
    /// When.
    pub updated_at: Timestamp,
    /// The number of the change that wrote it. Who changes it says which revision they saw.
    pub revision: i64,
}

/// Under which realm and id a subject is in the table of members; `None` if it can have no tier.
///
/// A consumer has a text, a key the digest that `KeySecret` makes: one of each realm and kind, so
/// that no two subjects are the same line.
pub(crate) fn member_key(who: &Subject) -> Option<(&'static str, String)> {
    // Who is counted together with a route is in the tier of who it is.
    let owner = who.owner().id();
    match (who.realm(), owner.as_text()) {
        (Realm::Consumer, Some(id)) => Some(("consumer", id.to_owned())),
        (Realm::Key, None) if !owner.is_of_long_text() => Some(("key", owner.to_string())),
        _ => None,
    }
}

impl Stored for TierContent {
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

/// The name of the tier a member is in.
impl Stored for String {
    fn to_json(&self) -> Value {
        self.as_str().into()
    }

    fn from_json(json: &Value) -> Option<Self> {
        json.as_str().map(ToOwned::to_owned)
    }
}
