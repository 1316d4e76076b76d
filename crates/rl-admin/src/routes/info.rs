use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{Admin, Backend};

/// Whether limits are enforced.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Info {
    /// The master switch.
    enabled: bool,
    /// Where the counters live: `REDIS` or `MEMORY`.
    technology: &'static str,
}

/// Whether limits are enforced, and where their counters live.
#[utoipa::path(get, path = "/management/rate-limiting", responses((status = OK, body = Info)))]
pub(super) async fn info(State(admin): State<Admin>) -> Json<Info> {
    let technology = match admin.backend() {
        Backend::Memory => "MEMORY",
        Backend::Redis { .. } => "REDIS",
    };
    Json(Info { enabled: admin.limiter().is_enabled(), technology })
}
