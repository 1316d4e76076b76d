use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rl_records::{ChangeError, RuleDefinition};

use super::responses::ChangeRequest;
use crate::audit;
use crate::context::Context;
use crate::error::ApiError;
use crate::error::{ChangeErrorResponses, ErrorResponses, etag};
use crate::read::{
    Allowed, Body, CanCreateRateLimits, CanDeleteRateLimits, CanGetRateLimits, CanUpdateRateLimits,
    FewRules, IfMatch, PathParam, QueryParams, RuleName,
};
use crate::stored_rules::{StoredRules, checked};
use crate::wire::{Name, Rule, RuleUpdate, Rules};

fn respond(stored: &StoredRules<'_>, status: StatusCode, rule: RuleDefinition) -> Response {
    let tag = [(header::ETAG, etag(rule.revision))];
    let problem = stored.problem(&rule.content.name);
    (status, tag, Json(Rule::of(rule, problem))).into_response()
}

fn no_rule(name: &Name) -> ApiError {
    ApiError::not_found(format_args!("a rule {} in the database", name.as_str()))
}

/// Lists the rules of the database by name
///
/// Rules of the service's program or file are not in the list.
#[utoipa::path(get, path = "/management/rules", tag = "rules", params(FewRules),
    responses((status = OK, body = Rules), ErrorResponses))]
pub(super) async fn list(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    QueryParams(FewRules { limit, after }): QueryParams<FewRules>,
) -> Result<Json<Rules>, ApiError> {
    let stored = StoredRules::of(&context)?;
    let found = context.records.rules().list(after.as_deref(), limit.0).await?;
    // Only a full page has a next page.
    let next = found.last().filter(|_| found.len() == limit.0 as usize);
    let next = next.map(|last| last.content.name.clone());
    let rules = found.into_iter().map(|rule| {
        let problem = stored.problem(&rule.content.name);
        Rule::of(rule, problem)
    });
    Ok(Json(Rules { rules: rules.collect(), next }))
}

/// Returns a rule of the database
#[utoipa::path(get, path = "/management/rules/{RULE}", tag = "rules", params(PathParam<RuleName>),
    responses((status = OK, body = Rule, headers(("ETag" = String))), ErrorResponses))]
pub(super) async fn read(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    PathParam(RuleName(name)): PathParam<RuleName>,
) -> Result<Response, ApiError> {
    let stored = StoredRules::of(&context)?;
    let found = context.records.rules().read(name.as_str()).await?;
    Ok(respond(&stored, StatusCode::OK, found.ok_or_else(|| no_rule(&name))?))
}

/// Creates a rule, or responds with 409 if its name is taken
///
/// The rule applies to the next request. It must be valid beside the other rules of the service.
#[utoipa::path(post, path = "/management/rules/{RULE}", tag = "rules", params(PathParam<RuleName>),
    request_body = RuleUpdate,
    responses((status = CREATED, body = Rule, headers(("ETag" = String))), ChangeErrorResponses))]
pub(super) async fn create(
    State(context): State<Arc<Context>>,
    Allowed { actor, .. }: Allowed<CanCreateRateLimits>,
    PathParam(RuleName(name)): PathParam<RuleName>,
    Body(input): Body<RuleUpdate>,
) -> Result<Response, ApiError> {
    let stored = StoredRules::of(&context)?;
    let taken =
        || ApiError::new(StatusCode::CONFLICT, format!("rule {} exists already", name.as_str()));
    if context
        .limiter
        .rule_names()
        .is_some_and(|names| names.iter().any(|one| one == name.as_str()))
    {
        return Err(taken());
    }
    let content = checked(&stored, input.into_content(name.as_str())).await?;
    let created = context.records.rules().create(content, actor.author()).await;
    let created = created.map_err(|error| match error {
        ChangeError::Conflict { .. } => taken(),
        error => error.into(),
    })?;
    audit::rule_changed(&actor, "created", &created);
    Ok(respond(&stored, StatusCode::CREATED, created))
}

/// Replaces a rule
///
/// The rule applies to the next request. It keeps the counters of the limits that it still has.
/// With `If-Match`, the response is 412 unless the rule has the given revision.
#[utoipa::path(put, path = "/management/rules/{RULE}", tag = "rules", params(PathParam<RuleName>, IfMatch),
    request_body = RuleUpdate,
    responses((status = OK, body = Rule, headers(("ETag" = String))), ChangeErrorResponses))]
pub(super) async fn update(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanUpdateRateLimits>,
    PathParam(RuleName(name)): PathParam<RuleName>,
    if_match: IfMatch,
    Body(input): Body<RuleUpdate>,
) -> Result<Response, ApiError> {
    let stored = StoredRules::of(&context)?;
    let change =
        ChangeRequest { context: &context, actor: &actor, request: &request, if_match: &if_match };
    if context.records.rules().read(name.as_str()).await?.is_none() {
        return Err(change.not_found(no_rule(&name)));
    }
    let content = checked(&stored, input.into_content(name.as_str())).await?;
    let updated = context.records.rules().update(content, change.expected(), change.author()).await;
    let updated = updated.map_err(|error| change.error(error, || no_rule(&name)))?;
    audit::rule_changed(&actor, "updated", &updated);
    Ok(respond(&stored, StatusCode::OK, updated))
}

/// Deletes a rule
///
/// The next request is not counted under it. With `If-Match`, the response is 412 unless the rule has
/// the given revision.
#[utoipa::path(delete, path = "/management/rules/{RULE}", tag = "rules",
    params(PathParam<RuleName>, IfMatch), responses((status = NO_CONTENT), ChangeErrorResponses))]
pub(super) async fn delete(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanDeleteRateLimits>,
    PathParam(RuleName(name)): PathParam<RuleName>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    StoredRules::of(&context)?;
    let change =
        ChangeRequest { context: &context, actor: &actor, request: &request, if_match: &if_match };
    let rules = context.records.rules();
    let gone = rules.delete(name.as_str(), change.expected(), change.author()).await;
    let gone = gone.map_err(|error| change.error(error, || no_rule(&name)))?;
    audit::rule_changed(&actor, "deleted", &gone);
    Ok(StatusCode::NO_CONTENT)
}
