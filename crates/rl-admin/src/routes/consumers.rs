use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use rl_records::ConsumerQuery;

use crate::context::Context;
use crate::error::ApiError;
use crate::error::ErrorResponses;
use crate::read::{Allowed, CanGetRateLimits, QueryParams, SearchNames};
use crate::wire::{Consumer, Consumers};

/// Lists the consumers with records or a tier, or those that match a search
#[utoipa::path(get, path = "/management/consumers", tag = "active limits", params(SearchNames),
    responses((status = OK, body = Consumers), ErrorResponses))]
pub(super) async fn list(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    QueryParams(SearchNames { search, limit, after, own }): QueryParams<SearchNames>,
) -> Result<Json<Consumers>, ApiError> {
    let query = ConsumerQuery {
        search: search.map(String::from),
        consumers: own,
        after,
        limit: limit.0,
        ..ConsumerQuery::default()
    };
    let page = context.records.consumers(&query, context.now()).await?;
    let consumers = page.consumers.into_iter().map(Consumer::of).collect();
    Ok(Json(Consumers { consumers, next: page.next }))
}
