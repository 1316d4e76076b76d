use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use rl_core::Subject;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::Refusals;
use crate::wire::all_periods;
use crate::{Admin, Backend};

/// Whether limits are enforced.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Info {
    /// The master switch.
    enabled: bool,
    /// Where the counters live: `REDIS` or `MEMORY`.
    technology: &'static str,
    /// Whether the counters can be reached now.
    service_available: bool,
    /// Whether limits are enforced now: both.
    currently_active: bool,
    /// The same, under its older name.
    is_active: bool,
}

/// Whether limits are enforced, and where their counters live
#[utoipa::path(get, path = "/management/rate-limiting", tag = "state",
    responses((status = OK, body = Info), Refusals))]
pub(super) async fn info(State(admin): State<Admin>) -> Json<Info> {
    let technology = match admin.backend() {
        Backend::Memory => "MEMORY",
        Backend::Redis { .. } => "REDIS",
    };
    let (enabled, service_available) = (admin.limiter().is_enabled(), answers(&admin).await);
    let is_active = enabled && service_available;
    Json(Info { enabled, technology, service_available, currently_active: is_active, is_active })
}

/// Whether Redis answers.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Health {
    redis_ready: bool,
    /// The host of Redis; empty if the counters are in memory.
    #[schema(example = "127.0.0.1")]
    url: String,
    /// Its port; 0 if the counters are in memory.
    #[schema(example = 6379)]
    port: u16,
}

/// Whether the counters on Redis can be read: 503 if not
#[utoipa::path(get, path = "/health/redis", tag = "state",
    responses(
        (status = OK, body = Health),
        (status = 400, body = crate::error::Problem, description = "Something that was given cannot be used"),
        (status = 401, body = crate::error::Problem, description = "It is not known who asks"),
        (status = 503, body = Health, description = "They cannot be read, or there is no Redis"),
    ))]
pub(super) async fn health(State(admin): State<Admin>) -> (StatusCode, Json<Health>) {
    let (redis_ready, url, port) = match admin.backend() {
        Backend::Memory => (false, String::new(), 0),
        Backend::Redis { host, port } => (answers(&admin).await, host.clone(), *port),
    };
    let status = if redis_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Health { redis_ready, url, port }))
}

/// Whether the store answers what it is asked in service: more than that somebody is there.
async fn answers(admin: &Admin) -> bool {
    let nobody = Subject::global();
    admin.limiter().usage_with_policy(all_periods(), &nobody).await.is_ok()
}
