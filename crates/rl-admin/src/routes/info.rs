use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use rl_core::Subject;
use serde::Serialize;
use utoipa::ToSchema;

use crate::backend::Backend;
use crate::context::Context;
use crate::error::ErrorResponses;
use crate::shadow::Shadow;
use crate::wire::all_periods;

/// The state of the limiter.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Info {
    /// Whether the limiter is switched on; `null` if this server is not the service.
    #[schema(required = true)]
    enabled: Option<bool>,
    /// Where the counters are stored: `REDIS` or `MEMORY`; `null` if this server is not the service
    /// and has no Redis.
    #[schema(required = true)]
    technology: Option<&'static str>,
    /// Whether the counters can be reached now.
    service_available: bool,
    /// Whether limits are enforced now: the limiter is enabled, not every limit is in shadow, and
    /// the counters can be reached. `null` if this server is not the service.
    #[schema(required = true)]
    currently_active: Option<bool>,
    /// The same value as `currently_active`, under its older name.
    #[schema(required = true)]
    is_active: Option<bool>,
    /// A restriction that applies to this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// The note of a server that is not the service.
const NO_SERVICE: &str =
    "This server decides no requests. Whether services enforce limits is set in their programs.";

/// Reports whether limits are enforced, and where their counters are stored
#[utoipa::path(get, path = "/management/rate-limiting", tag = "state",
    responses((status = OK, body = Info), ErrorResponses))]
pub(super) async fn info(State(context): State<Arc<Context>>) -> Json<Info> {
    let technology = match &context.backend {
        Backend::Memory if context.is_stand_alone => None,
        Backend::Memory => Some("MEMORY"),
        Backend::Redis { .. } => Some("REDIS"),
    };
    let service_available = is_available(&context).await;
    let shadow = Shadow::of(&context.limiter);
    let of_service = |value: bool| (!context.is_stand_alone).then_some(value);
    let is_enabled = context.limiter.is_enabled();
    let currently_active = of_service(is_enabled && service_available && shadow != Shadow::All);
    let note = match (context.is_stand_alone, shadow) {
        (true, _) => Some(NO_SERVICE.to_owned()),
        (false, Shadow::None) => None,
        (false, Shadow::Rules(rules)) => {
            Some(format!("Rules in shadow, which deny nothing: {}.", rules.join(", ")))
        }
        (false, Shadow::All) => Some("Every limit is in shadow, and denies nothing.".to_owned()),
    };
    Json(Info {
        enabled: of_service(is_enabled),
        technology,
        service_available,
        currently_active,
        is_active: currently_active,
        note,
    })
}

/// The state of Redis.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Health {
    redis_ready: bool,
    /// The host of Redis; empty if the counters are in memory.
    #[schema(example = "127.0.0.1")]
    url: String,
    /// The port of Redis; 0 if the counters are in memory.
    #[schema(example = 6379)]
    port: u16,
}

/// Reports whether the counters on Redis can be read, with 503 if not
#[utoipa::path(get, path = "/health/redis", tag = "state",
    responses(
        (status = OK, body = Health),
        (status = 400, body = crate::error::Problem, description = "A value is invalid"),
        (status = 401, body = crate::error::Problem, description = "The credentials are missing or wrong"),
        (status = 503, body = Health, description = "The counters cannot be read, or there is no Redis"),
    ))]
pub(super) async fn health(State(context): State<Arc<Context>>) -> (StatusCode, Json<Health>) {
    let (redis_ready, url, port) = match &context.backend {
        Backend::Memory => (false, String::new(), 0),
        Backend::Redis { host, port } => (is_available(&context).await, host.clone(), *port),
    };
    let status = if redis_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Health { redis_ready, url, port }))
}

/// Returns whether the store can read counters, which proves more than an open connection.
async fn is_available(context: &Context) -> bool {
    let subject = Subject::global();
    context.limiter.request(&subject).policy(all_periods()).usage().await.is_ok()
}
