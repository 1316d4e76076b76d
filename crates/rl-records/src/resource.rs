use std::collections::BTreeSet;

use rl_core::{Algorithm, Limit, MAX_UNITS, Period, Policy, Refill};
use serde_json::{Value, json};

use crate::effect::Effect;
use crate::error::InvalidField;
use crate::history::HistoryValue;
use crate::limits::Limits;
use crate::record::check_name;
use crate::revision::Revisioned;

/// The maximum number of applications that one resource lists.
const MAX_APPS: usize = 1_000;

/// The limits of a resource, which the listed applications share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceLimitContent {
    /// The name of the resource: 1 to 250 bytes, unique. The name never changes.
    pub name: String,
    /// The exact names of the applications that share the counters. The resource does not limit
    /// other applications.
    pub apps: Vec<String>,
    /// The limits. A limit of 0 blocks the applications.
    pub limits: Limits,
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
        Ok(self)
    }

    /// Returns the policy of `app`, or `None` if the resource does not list it, or has no limit.
    #[must_use]
    pub fn policy_for(&self, app: &str) -> Option<Policy> {
        if !self.apps.iter().any(|listed| listed == app) {
            return None;
        }
        match self.limits.as_slice() {
            [limit] => Policy::builder().named("resource", *limit).build().ok(),
            _ => self.limits.policy(),
        }
    }

    /// Returns the effect of a change from `before` to `after` on the listed applications.
    pub(crate) fn effect(before: Option<&Self>, after: Option<&Self>) -> Effect {
        let blocked = |content: Option<&Self>| -> BTreeSet<String> {
            let content = content.filter(|content| content.limits.has_zero());
            content.map(|content| content.apps.iter().cloned().collect()).unwrap_or_default()
        };
        let before = blocked(before);
        let after = blocked(after);
        Effect { blocks: !after.is_subset(&before), unblocks: !before.is_subset(&after) }
    }
}

/// The stored limits of a resource.
pub type ResourceLimit = Revisioned<ResourceLimitContent>;

/// The two numbers of a token bucket, in which gateways express the limit of a resource.
///
/// # Examples
///
/// ```
/// use rl_records::{Limits, Permits};
///
/// let limits = Permits { max_permits: 50, rate: 10 }.limits()?;
/// assert_eq!(limits.to_string(), "10/second:token-bucket:capacity=50");
/// assert_eq!(Permits::of(&limits), Some(Permits { max_permits: 50, rate: 10 }));
///
/// let others: Limits = "100/minute".parse()?;
/// assert_eq!(Permits::of(&others), None);
/// # Ok::<(), rl_records::InvalidField>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permits {
    /// The capacity of the bucket in tokens. A capacity of 0 blocks.
    pub max_permits: u64,
    /// The number of tokens that are added each second. A rate of 0 blocks.
    pub rate: u64,
}

impl Permits {
    /// Returns the numbers that express `limits`, or `None` if none do.
    #[must_use]
    pub fn of(limits: &Limits) -> Option<Self> {
        let [limit] = limits.as_slice() else { return None };
        let max_permits = match limit.algorithm() {
            Algorithm::TokenBucket { capacity, .. } => capacity,
            _ => 0,
        };
        let permits = Self { max_permits, rate: limit.max() };
        (permits.limit() == Some(*limit)).then_some(permits)
    }

    /// Returns the limits that these numbers express.
    ///
    /// # Errors
    ///
    /// Returns an error that names the number that is too large.
    pub fn limits(self) -> Result<Limits, InvalidField> {
        for (field, value) in [("max_permits", self.max_permits), ("rate", self.rate)] {
            if value > MAX_UNITS {
                return Err(InvalidField::new(field, value, "0 to 9007199254740991"));
            }
        }
        let expected = "at most 9007199254740991 / rate, and a bucket that fills within 50 years";
        let wrong = || InvalidField::new("max_permits", self.max_permits, expected);
        Limits::new([self.limit().ok_or_else(wrong)?])
    }

    fn limit(self) -> Option<Limit> {
        // A bucket needs a capacity. An empty one blocks like any limit of 0.
        if self.max_permits == 0 {
            return Limit::new(0, Period::SECOND).ok();
        }
        let bucket = Algorithm::TokenBucket { capacity: self.max_permits, refill: Refill::Greedy };
        Limit::new(self.rate, Period::SECOND).ok()?.with_algorithm(bucket).ok()
    }
}

impl HistoryValue for ResourceLimitContent {
    fn to_json(&self) -> Value {
        json!({ "name": self.name, "apps": self.apps, "limits": self.limits.to_json() })
    }

    /// Reads limits, or the two numbers of older entries.
    fn from_json(json: &Value) -> Option<Self> {
        let apps = json["apps"].as_array()?.iter();
        let limits = match (json["max_permits"].as_u64(), json["rate"].as_u64()) {
            (Some(max_permits), Some(rate)) => Permits { max_permits, rate }.limits().ok()?,
            _ => Limits::from_json(json)?,
        };
        Some(Self {
            name: json["name"].as_str()?.to_owned(),
            apps: apps.map(|app| app.as_str().map(ToOwned::to_owned)).collect::<Option<_>>()?,
            limits,
        })
    }
}
