use axum::Json;
use axum::extract::State;
use rl_records::ConsumerQuery;

use crate::error::Refusals;
use crate::read::{Allowed, Parameters, SearchNames, ToGet};
use crate::wire::{Consumer, Consumers};
use crate::{Admin, ApiError};

/// The consumers that have records or a tier, or those of them that are looked for
#[utoipa::path(get, path = "/management/consumers", tag = "active limits", params(SearchNames),
    responses((status = OK, body = Consumers), Refusals))]
pub(super) async fn list(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    Parameters(SearchNames { search, limit, after }): Parameters<SearchNames>,
) -> Result<Json<Consumers>, ApiError> {
    let query = ConsumerQuery { search: search.map(String::from), after, limit: limit.0 };
    let page = admin.records().consumers(&query, admin.now()).await?;
    let consumers = page.consumers.into_iter().map(Consumer::of).collect();
    Ok(Json(Consumers { consumers, next: page.next }))
}
