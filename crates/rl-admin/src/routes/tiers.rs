use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rl_records::{ChangeError, Tier as StoredTier, TierMember};

use super::responses::ChangeRequest;
use crate::audit;
use crate::context::Context;
use crate::error::ApiError;
use crate::error::{ChangeErrorResponses, ErrorResponses, etag};
use crate::read::{
    Allowed, Body, CanCreateRateLimits, CanDeleteRateLimits, CanGetRateLimits, CanReadCallLimits,
    CanSetCallLimits, CanUpdateRateLimits, IfMatch, Names, PathParam, QueryParams, SubjectParams,
    TierName,
};
use crate::wire::{Membership, MembershipInput, Name, Tier, TierUpdate, Tiers};

fn respond(status: StatusCode, tier: &StoredTier) -> Response {
    (status, [(header::ETAG, etag(tier.revision))], Json(Tier::of(tier))).into_response()
}

async fn find(context: &Context, name: &Name) -> Result<StoredTier, ApiError> {
    let found = context.records.tiers().read(name.as_str()).await?;
    found.ok_or_else(|| no_tier(name))
}

fn no_tier(name: &Name) -> ApiError {
    ApiError::not_found(format_args!("tier {}", name.as_str()))
}

/// Lists tiers by name
#[utoipa::path(get, path = "/management/tiers", tag = "tiers", params(Names),
    responses((status = OK, body = Tiers), ErrorResponses))]
pub(super) async fn list(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    QueryParams(Names { limit, after, own }): QueryParams<Names>,
) -> Result<Json<Tiers>, ApiError> {
    let (tiers, after) = (context.records.tiers(), after.as_deref());
    let found = match &own {
        None => tiers.list(after, limit.0).await?,
        Some(own) => tiers.list_for_consumers(own, None, after, limit.0).await?,
    };
    // Only a full page has a next page.
    let next = found.last().filter(|_| found.len() == limit.0 as usize);
    let next = next.map(|last| last.content.name.clone());
    Ok(Json(Tiers { tiers: found.iter().map(Tier::of).collect(), next }))
}

/// Returns a tier
#[utoipa::path(get, path = "/management/tiers/{TIER}", tag = "tiers", params(PathParam<TierName>),
    responses((status = OK, body = Tier, headers(("ETag" = String))), ErrorResponses))]
pub(super) async fn read(
    State(context): State<Arc<Context>>,
    _: Allowed<CanGetRateLimits>,
    PathParam(TierName(name)): PathParam<TierName>,
) -> Result<Response, ApiError> {
    Ok(respond(StatusCode::OK, &find(&context, &name).await?))
}

/// Creates a tier, or responds with 409 if its name is taken
#[utoipa::path(post, path = "/management/tiers/{TIER}", tag = "tiers", params(PathParam<TierName>),
    request_body = TierUpdate,
    responses((status = CREATED, body = Tier, headers(("ETag" = String))), ChangeErrorResponses))]
pub(super) async fn create(
    State(context): State<Arc<Context>>,
    Allowed { actor, .. }: Allowed<CanCreateRateLimits>,
    PathParam(TierName(name)): PathParam<TierName>,
    Body(input): Body<TierUpdate>,
) -> Result<Response, ApiError> {
    let content = input.into_content(&name)?;
    let created = context.records.tiers().create(content, actor.name()).await;
    let created = created.map_err(|error| match error {
        ChangeError::Conflict { .. } => {
            let message = format!("the tier {} exists already", name.as_str());
            ApiError::new(StatusCode::CONFLICT, message)
        }
        error => error.into(),
    })?;
    audit::tier_changed(&actor, "created", name.as_str(), created.revision);
    Ok(respond(StatusCode::CREATED, &created))
}

/// Replaces the limits of a tier
///
/// The limits apply to the next request of every member and of every subscriber. With `If-Match`, the response is 412
/// unless the tier has the given revision. A change that blocks or unblocks members also requires
/// the role for that.
#[utoipa::path(put, path = "/management/tiers/{TIER}", tag = "tiers", params(PathParam<TierName>, IfMatch),
    request_body = TierUpdate,
    responses((status = OK, body = Tier, headers(("ETag" = String))), ChangeErrorResponses))]
pub(super) async fn update(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanUpdateRateLimits>,
    PathParam(TierName(name)): PathParam<TierName>,
    if_match: IfMatch,
    Body(input): Body<TierUpdate>,
) -> Result<Response, ApiError> {
    let change =
        ChangeRequest { context: &context, actor: &actor, request: &request, if_match: &if_match };
    let content = input.into_content(&name)?;
    let updated = context.records.tiers().update(content, change.expected(), change.author()).await;
    let updated = updated.map_err(|error| change.error(error, || no_tier(&name)))?;
    audit::tier_changed(&actor, "updated", name.as_str(), updated.revision);
    Ok(respond(StatusCode::OK, &updated))
}

/// Deletes a tier, or responds with 409 if it has members or subscriptions
///
/// Cancelled subscriptions do not count.
#[utoipa::path(delete, path = "/management/tiers/{TIER}", tag = "tiers", params(PathParam<TierName>, IfMatch),
    responses((status = NO_CONTENT), ChangeErrorResponses))]
pub(super) async fn delete(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanDeleteRateLimits>,
    PathParam(TierName(name)): PathParam<TierName>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    let change =
        ChangeRequest { context: &context, actor: &actor, request: &request, if_match: &if_match };
    let gone = context.records.tiers().delete(name.as_str(), change.expected(), actor.name()).await;
    let gone = gone.map_err(|error| match error {
        ChangeError::Invalid(why) => ApiError::new(StatusCode::CONFLICT, why.to_string()),
        error => change.error(error, || no_tier(&name)),
    })?;
    audit::tier_changed(&actor, "deleted", name.as_str(), gone.revision);
    Ok(StatusCode::NO_CONTENT)
}

fn no_membership() -> ApiError {
    ApiError::not_found("a tier of this subject")
}

/// Returns the tier of a consumer or an API key, or 404 if it is in none
///
/// A key is identified by the 32 hexadecimal digits of its keyed hash.
#[utoipa::path(get, path = "/management/subjects/{REALM}/{SUBJECT_ID}/tier", tag = "tiers",
    params(SubjectParams),
    responses((status = OK, body = Membership, headers(("ETag" = String))), ErrorResponses))]
pub(super) async fn read_member(
    State(context): State<Arc<Context>>,
    _: Allowed<CanReadCallLimits>,
    SubjectParams(subject): SubjectParams,
) -> Result<Response, ApiError> {
    let member = context.records.tiers().member(&subject).await?;
    Ok(membership(&member.ok_or_else(no_membership)?))
}

fn membership(member: &TierMember) -> Response {
    ([(header::ETAG, etag(member.revision))], Json(Membership::of(member))).into_response()
}

/// Puts a consumer or an API key into a tier
///
/// With `If-Match`, the response is 412 unless the membership has the given revision. A change that
/// blocks or unblocks the subject also requires the role for that.
#[utoipa::path(put, path = "/management/subjects/{REALM}/{SUBJECT_ID}/tier", tag = "tiers",
    params(SubjectParams, IfMatch), request_body = MembershipInput,
    responses((status = OK, body = Membership, headers(("ETag" = String))), ChangeErrorResponses))]
pub(super) async fn put_member(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanSetCallLimits>,
    SubjectParams(subject): SubjectParams,
    if_match: IfMatch,
    Body(MembershipInput { tier }): Body<MembershipInput>,
) -> Result<Response, ApiError> {
    let change =
        ChangeRequest { context: &context, actor: &actor, request: &request, if_match: &if_match };
    let tier = Some(tier.as_str());
    let expected = change.expected();
    let put = context.records.tiers().set_member(&subject, tier, expected, change.author()).await;
    let put = put.map_err(|error| change.error(error, no_membership))?;
    audit::tier_member_changed(&actor, &subject, tier);
    Ok(membership(&put.ok_or_else(no_membership)?))
}

/// Removes a consumer or an API key from its tier
#[utoipa::path(delete, path = "/management/subjects/{REALM}/{SUBJECT_ID}/tier", tag = "tiers",
    params(SubjectParams, IfMatch),
    responses((status = NO_CONTENT), ChangeErrorResponses))]
pub(super) async fn delete_member(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanSetCallLimits>,
    SubjectParams(subject): SubjectParams,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    let change =
        ChangeRequest { context: &context, actor: &actor, request: &request, if_match: &if_match };
    let gone = context
        .records
        .tiers()
        .set_member(&subject, None, change.expected(), change.author())
        .await;
    gone.map_err(|error| change.error(error, no_membership))?;
    audit::tier_member_changed(&actor, &subject, None);
    Ok(StatusCode::NO_CONTENT)
}
