use std::collections::BTreeSet;

use rl_core::{Algorithm, Limit, MAX_UNITS, Period, Policy, Refill};
use serde_json::{Value, json};

use crate::effect::Effect;
use crate::error::InvalidField;
use crate::history::HistoryValue;
use crate::record::check_name;
use crate::revision::Revisioned;

/// The maximum number of applications that one resource lists.
const MAX_APPS: usize = 1_000;

/// The limit of a resource: a token bucket that the listed applications share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceLimitContent {
    /// The name of the resource: 1 to 250 bytes, unique. The name of a limit never changes.
    pub name: String,
    /// The exact names of the applications that share the bucket. The resource does not limit other
    /// applications.
    pub apps: Vec<String>,
    /// The capacity of the bucket in tokens. A capacity of 0 blocks the applications.
    pub max_permits: u64,
    /// The number of tokens that are added each second. A rate of 0 blocks the applications.
    pub rate: u64,
}

impl ResourceLimitContent {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first field that cannot be stored.
    pub fn checked(self) -> Result<Self, InvalidField> {
        check_name("name", &self.name)?;
        if self.apps.len() > MAX_APPS {
            let expected = "at most 1000 applications";
            return Err(InvalidField::new("apps", self.apps.len(), expected));
        }
        self.apps.iter().try_for_each(|app| check_name("apps", app))?;
        for (field, value) in [("max_permits", self.max_permits), ("rate", self.rate)] {
            if value > MAX_UNITS {
                return Err(InvalidField::new(field, value, "0 to 9007199254740991"));
            }
        }
        if self.limit().is_none() {
            let expected =
                "at most 9007199254740991 / rate, and a bucket that fills within 50 years";
            return Err(InvalidField::new("max_permits", self.max_permits, expected));
        }
        Ok(self)
    }

    fn limit(&self) -> Option<Limit> {
        if self.max_permits == 0 {
            return Limit::new(0, Period::SECOND).ok();
        }
        let bucket = Algorithm::TokenBucket { capacity: self.max_permits, refill: Refill::Greedy };
        Limit::new(self.rate, Period::SECOND).ok()?.with_algorithm(bucket).ok()
    }

    /// Returns the policy of `app`, or `None` if the resource does not list it.
    #[must_use]
    pub fn policy_for(&self, app: &str) -> Option<Policy> {
        let is_listed = self.apps.iter().any(|listed| listed == app);
        let limit = is_listed.then(|| self.limit()).flatten()?;
        Policy::builder().named("resource", limit).build().ok()
    }

    /// Returns the effect of a change from `before` to `after` on the listed applications.
    pub(crate) fn effect(before: Option<&Self>, after: Option<&Self>) -> Effect {
        let blocked = |content: Option<&Self>| -> BTreeSet<String> {
            let content = content.filter(|content| content.is_blocking());
            content.map(|content| content.apps.iter().cloned().collect()).unwrap_or_default()
        };
        let before = blocked(before);
        let after = blocked(after);
        Effect { blocks: !after.is_subset(&before), unblocks: !before.is_subset(&after) }
    }

    /// Returns whether the bucket can never contain a token, or is never refilled.
    const fn is_blocking(&self) -> bool {
        self.max_permits == 0 || self.rate == 0
    }
}

/// The stored limit of a resource.
pub type ResourceLimit = Revisioned<ResourceLimitContent>;

impl HistoryValue for ResourceLimitContent {
    fn to_json(&self) -> Value {
        let Self { name, apps, max_permits, rate } = self;
        json!({ "name": name, "apps": apps, "max_permits": max_permits, "rate": rate })
    }

    fn from_json(json: &Value) -> Option<Self> {
        let apps = json["apps"].as_array()?.iter();
        Some(Self {
            name: json["name"].as_str()?.to_owned(),
            apps: apps.map(|app| app.as_str().map(ToOwned::to_owned)).collect::<Option<_>>()?,
            max_permits: json["max_permits"].as_u64()?,
            rate: json["rate"].as_u64()?,
        })
    }
}
