use rl_core::MAX_UNITS;
use rl_records::{ResourceLimit, ResourceLimitContent};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::date::Date;
use super::name::Name;
use crate::access::Actor;

/// The limit of a new resource in a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResourceInput {
    /// The name of the resource.
    name: Name,
    /// The names of the applications that share the bucket. The resource does not limit other
    /// applications.
    #[schema(max_items = 1000)]
    apps: Vec<Name>,
    /// The capacity of the bucket in tokens. 0 blocks the applications.
    #[schema(maximum = 9007199254740991u64)]
    max_permits: u64,
    /// The number of tokens that are added each second. 0 blocks the applications.
    #[schema(maximum = 9007199254740991u64)]
    rate: u64,
}

/// The limit of an existing resource in a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResourceUpdate {
    /// The names of the applications that share the bucket.
    #[schema(max_items = 1000)]
    apps: Vec<Name>,
    /// The capacity of the bucket in tokens. 0 blocks the applications.
    #[schema(maximum = 9007199254740991u64)]
    max_permits: u64,
    /// The number of tokens that are added each second. 0 blocks the applications.
    #[schema(maximum = 9007199254740991u64)]
    rate: u64,
}

impl ResourceInput {
    /// Returns the names of the applications.
    pub(crate) fn apps(&self) -> impl Iterator<Item = &str> {
        self.apps.iter().map(Name::as_str)
    }

    pub(crate) fn into_content(self) -> ResourceLimitContent {
        let Self { name, apps, max_permits, rate } = self;
        ResourceUpdate { apps, max_permits, rate }.into_content(&name)
    }
}

impl ResourceUpdate {
    /// Returns the names of the applications.
    pub(crate) fn apps(&self) -> impl Iterator<Item = &str> {
        self.apps.iter().map(Name::as_str)
    }

    pub(crate) fn into_content(self, name: &Name) -> ResourceLimitContent {
        let Self { mut apps, max_permits, rate } = self;
        apps.sort();
        apps.dedup();
        ResourceLimitContent {
            name: name.as_str().to_owned(),
            apps: apps.into_iter().map(String::from).collect(),
            max_permits,
            rate,
        }
    }
}

// The attributes for OpenAPI above repeat this number.
const _: () = assert!(MAX_UNITS == 9_007_199_254_740_991);

/// The content of the limit of a resource.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResourceContent {
    name: String,
    apps: Vec<String>,
    max_permits: u64,
    rate: u64,
}

impl ResourceContent {
    /// Returns the content without the applications that the actor does not own.
    pub(crate) fn of(content: &ResourceLimitContent, actor: &Actor) -> Self {
        let mut own = Self::whole(content);
        own.apps.retain(|app| actor.owns([app]));
        own
    }

    /// Returns the content with all applications.
    pub(crate) fn whole(content: &ResourceLimitContent) -> Self {
        let ResourceLimitContent { name, apps, max_permits, rate } = content.clone();
        Self { name, apps, max_permits, rate }
    }
}

/// The stored limit of a resource.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Resource {
    #[serde(flatten)]
    content: ResourceContent,
    created_by: String,
    updated_by: String,
    created_at: Date,
    updated_at: Date,
    /// The revision, which is the `ETag`.
    #[schema(minimum = 1)]
    revision: i64,
}

impl Resource {
    /// Returns the limit without the applications that the actor does not own.
    pub(crate) fn of(limit: &ResourceLimit, actor: &Actor) -> Self {
        Self {
            content: ResourceContent::of(&limit.content, actor),
            created_by: limit.created_by.clone(),
            updated_by: limit.updated_by.clone(),
            created_at: Date(limit.created_at),
            updated_at: Date(limit.updated_at),
            revision: limit.revision,
        }
    }
}

/// A page of a list of limits of resources.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Resources {
    /// The limits, ordered by name.
    pub(crate) resources: Vec<Resource>,
    /// The value of `after` for the next page; `null` on the last page.
    pub(crate) next: Option<String>,
}
