//! `/healthz` and `/readyz`.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::settings::HttpState;

/// Whether the server is ready.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReadyAnswer {
    ready: bool,
    /// Why the server is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    reason: Option<Cow<'static, str>>,
    /// Whether the store answers.
    store_reachable: bool,
}

/// Reports that the server runs
#[utoipa::path(get, path = "/healthz", tag = "state",
    responses((status = OK, body = str, description = "The server runs")))]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Reports whether the server decides requests
///
/// It does once the store has answered. A later outage of the store changes nothing, because the
/// failure policy decides then; without the server, the gateways could not apply it.
#[utoipa::path(get, path = "/readyz", tag = "state",
    responses(
        (status = OK, body = ReadyAnswer, description = "The server is ready"),
        (status = 503, body = ReadyAnswer, description = "The server is not ready"),
    ))]
pub(super) async fn readyz(State(state): State<Arc<HttpState>>) -> (StatusCode, Json<ReadyAnswer>) {
    let store_reachable = state.store.is_reachable(state.service.limiter()).await;
    let reason = match state.settings.readiness.reason() {
        None if !state.store.has_answered() => {
            Some("the store has not answered since the start".into())
        }
        reason => reason,
    };
    let ready = reason.is_none();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(ReadyAnswer { ready, reason, store_reachable }))
}
