//! The endpoints, in the order of the document.

mod active;
mod block;
mod call_limits;
mod consumers;
mod counters;
mod explain;
mod history;
mod info;
mod limits;
mod rate_limits;
mod resources;
mod responses;
mod rules;
mod subscriptions;
mod tiers;
mod top_subjects;
mod usage;
mod usage_history;

use std::sync::Arc;

pub(crate) use explain::{Explanation, RuleExplanation, explain};

use axum::extract::{NestedPath, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, InfoBuilder, OpenApi, OpenApiBuilder, SecurityRequirement, Server,
};
use utoipa::{PartialSchema, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::context::Context;
use crate::error::ApiError;
use crate::error::Problem;
use crate::failure::DependencyFailure;

/// The path of the OpenAPI document.
const DOCUMENT: &str = "/openapi.json";

/// Builds the router of the API.
pub(crate) fn router(context: Arc<Context>) -> Router {
    let (routes, document) = described().split_for_parts();
    let document = Arc::new(document);
    let openapi = async move |request: Request| {
        Json(document_at(&document, request.extensions().get::<NestedPath>()))
    };
    routes
        .route(DOCUMENT, axum::routing::get(openapi))
        .fallback(async || ApiError::new(StatusCode::NOT_FOUND, "there is nothing at this path"))
        .method_not_allowed_fallback(async || {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "this path has no such method")
        })
        .layer(from_fn_with_state(context.clone(), authenticate))
        .with_state(context)
}

fn described() -> OpenApiRouter<Arc<Context>> {
    OpenApiRouter::with_openapi(about())
        .routes(routes!(info::info))
        .routes(routes!(info::health))
        .routes(routes!(call_limits::read, call_limits::put))
        .routes(routes!(rate_limits::list, rate_limits::create))
        .routes(routes!(rate_limits::read, rate_limits::update, rate_limits::delete))
        .routes(routes!(rate_limits::search))
        .routes(routes!(limits::list, limits::create))
        .routes(routes!(limits::read, limits::update, limits::delete))
        .routes(routes!(history::of_limits))
        .routes(routes!(active::now))
        .routes(routes!(active::hour))
        .routes(routes!(counters::read, counters::reset))
        .routes(routes!(counters::reset_period))
        .routes(routes!(counters::overview))
        .routes(routes!(consumers::list))
        .routes(routes!(block::read, block::put, block::delete))
        .routes(routes!(usage::read, usage::reset))
        .routes(routes!(usage::reset_limit))
        .routes(routes!(usage_history::days))
        .routes(routes!(usage_history::month))
        .routes(routes!(top_subjects::list))
        .routes(routes!(explain::consumer))
        .routes(routes!(explain::subject))
        .routes(routes!(history::of_all))
        .routes(routes!(history::of_consumer))
        .routes(routes!(history::of_record))
        .routes(routes!(resources::list, resources::create))
        .routes(routes!(resources::read, resources::update, resources::delete))
        .routes(routes!(resources::usage))
        .routes(routes!(resources::of_application))
        .routes(routes!(history::of_resource))
        .routes(routes!(rules::list))
        .routes(routes!(rules::read, rules::create, rules::update, rules::delete))
        .routes(routes!(tiers::list))
        .routes(routes!(tiers::read, tiers::create, tiers::update, tiers::delete))
        .routes(routes!(subscriptions::list, subscriptions::create))
        .routes(routes!(subscriptions::read))
        .routes(routes!(subscriptions::set_status))
        .routes(routes!(subscriptions::set_dates))
        .routes(routes!(history::of_subscription))
        .routes(routes!(tiers::read_member, tiers::put_member, tiers::delete_member))
}

fn about() -> OpenApi {
    let info = InfoBuilder::new()
        .title("Management of rate limits")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("Limits of consumers and resources, and their usage."));
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
    let components = ComponentsBuilder::new()
        .schema(Problem::name(), Problem::schema())
        .security_scheme("bearer", SecurityScheme::Http(bearer));
    OpenApiBuilder::new()
        .info(info)
        .components(Some(components.build()))
        .security(Some([SecurityRequirement::new::<_, [&str; 0], &str>("bearer", [])]))
        .build()
}

/// Returns a copy of the OpenAPI document whose server is the path under which the routes are
/// nested.
fn document_at(document: &OpenApi, nested: Option<&NestedPath>) -> OpenApi {
    let mut document = document.clone();
    document.servers = nested.map(|path| vec![Server::new(path.as_str())]);
    document
}

/// Authenticates a request, and puts its actor into the extensions.
///
/// Authentication precedes routing, so that an unauthenticated client learns nothing about paths.
async fn authenticate(
    State(context): State<Arc<Context>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let is_document = context.has_public_document && parts.uri.path() == DOCUMENT;
    let mut response = match context.actor(&parts).await {
        Ok(actor) => {
            parts.extensions.insert(actor);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(_) if is_document => next.run(Request::from_parts(parts, body)).await,
        Err(error) => error.into_response(),
    };
    if let Some(failure) = response.extensions_mut().remove::<DependencyFailure>() {
        context.outages.note(&failure);
    }
    let headers = response.headers_mut();
    // Responses depend on the time and on the actor, so caches must not store them.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
