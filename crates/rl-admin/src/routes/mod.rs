//! The endpoints.

mod info;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json, Router};
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::{Admin, ApiError};

pub(crate) fn router(admin: Admin) -> Router {
    let (routes, document) = OpenApiRouter::new().routes(routes!(info::info)).split_for_parts();
    routes
        .route("/openapi.json", axum::routing::get(openapi))
        .layer(Extension(document))
        .fallback(async || ApiError::new(StatusCode::NOT_FOUND, "there is nothing at this path"))
        .method_not_allowed_fallback(async || {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "this path has no such method")
        })
        .layer(from_fn_with_state(admin.clone(), authenticate))
        .with_state(admin)
}

/// Puts the actor into the extensions. Nobody else comes further, whatever the path.
async fn authenticate(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    match admin.actor(&parts).await {
        Ok(actor) => {
            parts.extensions.insert(actor);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(error) => error.into_response(),
    }
}

async fn openapi(Extension(document): Extension<OpenApi>) -> Json<OpenApi> {
    Json(document)
}
