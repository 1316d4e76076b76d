use rl_core::MAX_UNITS;
use rl_records::{Limits, Permits, ResourceLimit, ResourceLimitContent};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::date::Date;
use super::limits::texts_of;
use super::name::Name;
use crate::access::Actor;
use crate::error::ApiError;

/// The limits of a new resource in a request: either `limits`, or the two numbers of a token bucket.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResourceInput {
    /// The name of the resource.
    name: Name,
    /// The names of the applications that share the limits. The resource does not limit other
    /// applications.
    #[schema(max_items = 1000)]
    apps: Vec<Name>,
    /// The limits as text. A limit of 0 blocks the applications.
    #[schema(example = json!(["10/second:token-bucket:capacity=50", "10000/day"]))]
    limits: Option<Vec<String>>,
    /// The capacity of a token bucket in tokens. 0 blocks the applications.
    #[schema(maximum = 9007199254740991u64)]
    max_permits: Option<u64>,
    /// The number of tokens that are added each second. 0 blocks the applications.
    #[schema(maximum = 9007199254740991u64)]
    rate: Option<u64>,
}

/// The limits of an existing resource in a request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResourceUpdate {
    /// The names of the applications that share the limits.
    #[schema(max_items = 1000)]
    apps: Vec<Name>,
    /// The limits as text. A limit of 0 blocks the applications.
    #[schema(example = json!(["10/second:token-bucket:capacity=50", "10000/day"]))]
    limits: Option<Vec<String>>,
    /// The capacity of a token bucket in tokens. 0 blocks the applications.
    #[schema(maximum = 9007199254740991u64)]
    max_permits: Option<u64>,
    /// The number of tokens that are added each second. 0 blocks the applications.
    #[schema(maximum = 9007199254740991u64)]
    rate: Option<u64>,
}

impl ResourceInput {
    /// Returns the names of the applications.
    pub(crate) fn apps(&self) -> impl Iterator<Item = &str> {
        self.apps.iter().map(Name::as_str)
    }

    pub(crate) fn into_content(self) -> Result<ResourceLimitContent, ApiError> {
        let Self { name, apps, limits, max_permits, rate } = self;
        ResourceUpdate { apps, limits, max_permits, rate }.into_content(&name)
    }
}

impl ResourceUpdate {
    /// Returns the names of the applications.
    pub(crate) fn apps(&self) -> impl Iterator<Item = &str> {
        self.apps.iter().map(Name::as_str)
    }

    pub(crate) fn into_content(self, name: &Name) -> Result<ResourceLimitContent, ApiError> {
        let Self { mut apps, limits, max_permits, rate } = self;
        apps.sort();
        apps.dedup();
        let limits = match (limits, max_permits, rate) {
            (Some(texts), None, None) => Limits::from_texts(texts.iter().map(String::as_str))?,
            (None, Some(max_permits), Some(rate)) => Permits { max_permits, rate }.limits()?,
            (Some(_), ..) => {
                let expected = "nothing, because max_permits or rate is set: set either";
                return Err(ApiError::invalid("limits", expected));
            }
            (None, None, None) => {
                return Err(ApiError::invalid(
                    "limits",
                    "a list of limits, or max_permits and rate",
                ));
            }
            (None, Some(_), None) => {
                return Err(ApiError::invalid("rate", "a number beside max_permits"));
            }
            (None, None, Some(_)) => {
                return Err(ApiError::invalid("max_permits", "a number beside rate"));
            }
        };
        Ok(ResourceLimitContent {
            name: name.as_str().to_owned(),
            apps: apps.into_iter().map(String::from).collect(),
            limits,
        })
    }
}

// The attributes for OpenAPI above repeat this number.
const _: () = assert!(MAX_UNITS == 9_007_199_254_740_991);

/// The limits of a resource.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResourceContent {
    name: String,
    apps: Vec<String>,
    /// All limits, the shortest period first.
    #[schema(example = json!(["10/second:token-bucket:capacity=50"]))]
    limits: Vec<String>,
    /// The capacity of the token bucket; `null` if the limits are no single token bucket that is
    /// refilled each second.
    #[schema(required = true)]
    max_permits: Option<u64>,
    /// The number of tokens that are added each second; `null` if `max_permits` is.
    #[schema(required = true)]
    rate: Option<u64>,
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
        let ResourceLimitContent { name, apps, limits } = content;
        let permits = Permits::of(limits);
        Self {
            name: name.clone(),
            apps: apps.clone(),
            limits: texts_of(limits),
            max_permits: permits.map(|permits| permits.max_permits),
            rate: permits.map(|permits| permits.rate),
        }
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
