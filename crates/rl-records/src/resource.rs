use rl_core::time::Timestamp;
use rl_core::{Algorithm, Limit, MAX_UNITS, Period, Policy, Refill};
use serde_json::{Value, json};

use crate::InvalidField;
use crate::history::Stored;
use crate::record::check_name;

/// The most applications one resource lists.
const MAX_APPS: usize = 1_000;

/// The limit of a resource, for the applications that may use it: a token bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceLimitContent {
    /// The resource: 1 to 250 bytes, unique. A limit keeps its name.
    pub name: String,
    /// The applications that are under it, by their exact names. For others it is not configured.
    pub apps: Vec<String>,
    /// The most tokens the bucket holds. 0 blocks.
    pub max_permits: u64,
    /// The tokens that are added each second. 0 blocks.
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
            let expected = "at most 9007199254740991 / rate, and what is full within 50 years";
            return Err(InvalidField::new("max_permits", self.max_permits, expected));
        }
        Ok(self)
    }

    fn limit(&self) -> Option<Limit> {
        if self.max_permits == 0 {
            return Limit::new(0, Period::SECOND).ok();
        }
        let bucket = Algorithm::TokenBucket { capacity: self.max_permits, refill: Refill::Greedy };
        Limit::new(self.rate, Period::SECOND).ok()?.counted_by(bucket).ok()
    }

    /// The policy `app` is under; `None` if the resource is not configured for it.
    #[must_use]
    pub fn policy_for(&self, app: &str) -> Option<Policy> {
        let is_listed = self.apps.iter().any(|listed| listed == app);
        let limit = is_listed.then(|| self.limit()).flatten()?;
        Policy::builder().named("resource", limit).build().ok()
    }
}

/// The limit of a resource as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResourceLimit {
    /// What people wrote.
    pub content: ResourceLimitContent,
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

impl Stored for ResourceLimitContent {
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
