use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rl_records::{ChangeError, Tier as StoredTier, TierMember};

use super::answer::Edit;
use crate::error::{ChangeRefusals, Refusals, etag};
use crate::read::{
    Allowed, Body, IfMatch, In, Names, OfSubject, Parameters, TierName, ToCreate, ToDelete, ToGet,
    ToRead, ToSet, ToUpdate,
};
use crate::wire::{Membership, MembershipInput, Name, Tier, TierUpdate, Tiers};
use crate::{Admin, ApiError, audit};

fn answer(status: StatusCode, tier: &StoredTier) -> Response {
    (status, [(header::ETAG, etag(tier.revision))], Json(Tier::of(tier))).into_response()
}

async fn there(admin: &Admin, name: &Name) -> Result<StoredTier, ApiError> {
    let found = admin.records().tiers().read(name.as_str()).await?;
    found.ok_or_else(|| no_tier(name))
}

fn no_tier(name: &Name) -> ApiError {
    ApiError::not_found(format_args!("tier {}", name.as_str()))
}

/// The tiers, by name
#[utoipa::path(get, path = "/management/tiers", tag = "tiers", params(Names),
    responses((status = OK, body = Tiers), Refusals))]
pub(super) async fn list(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    Parameters(Names { limit, after }): Parameters<Names>,
) -> Result<Json<Tiers>, ApiError> {
    let found = admin.records().tiers().list(after.as_deref(), limit.0).await?;
    // A page that is not full is the last.
    let next = found.last().filter(|_| found.len() == limit.0 as usize);
    let next = next.map(|last| last.content.name.clone());
    Ok(Json(Tiers { tiers: found.iter().map(Tier::of).collect(), next }))
}

/// A tier
#[utoipa::path(get, path = "/management/tiers/{TIER}", tag = "tiers", params(In<TierName>),
    responses((status = OK, body = Tier, headers(("ETag" = String))), Refusals))]
pub(super) async fn read(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    In(TierName(name)): In<TierName>,
) -> Result<Response, ApiError> {
    Ok(answer(StatusCode::OK, &there(&admin, &name).await?))
}

/// Creates a tier: 409 if there is one of this name
#[utoipa::path(post, path = "/management/tiers/{TIER}", tag = "tiers", params(In<TierName>),
    request_body = TierUpdate,
    responses((status = CREATED, body = Tier, headers(("ETag" = String))), ChangeRefusals))]
pub(super) async fn create(
    State(admin): State<Admin>,
    Allowed { actor, .. }: Allowed<ToCreate>,
    In(TierName(name)): In<TierName>,
    Body(input): Body<TierUpdate>,
) -> Result<Response, ApiError> {
    let created = admin.records().tiers().create(input.into_content(&name), actor.name()).await;
    let created = created.map_err(|error| match error {
        ChangeError::Conflict { .. } => {
            let message = format!("there is a tier {} already", name.as_str());
            ApiError::new(StatusCode::CONFLICT, message)
        }
        error => error.into(),
    })?;
    audit::tier_changed(&actor, "created", name.as_str(), created.revision);
    Ok(answer(StatusCode::CREATED, &created))
}

/// Writes over a tier: it binds the next request of every member
///
/// With `If-Match`, only if nobody changed it since: 412 otherwise. If that blocks members, or unblocks
/// them, it needs the role for that, too.
#[utoipa::path(put, path = "/management/tiers/{TIER}", tag = "tiers", params(In<TierName>, IfMatch),
    request_body = TierUpdate,
    responses((status = OK, body = Tier, headers(("ETag" = String))), ChangeRefusals))]
pub(super) async fn update(
    State(admin): State<Admin>,
    Allowed { actor, asked, .. }: Allowed<ToUpdate>,
    In(TierName(name)): In<TierName>,
    if_match: IfMatch,
    Body(input): Body<TierUpdate>,
) -> Result<Response, ApiError> {
    let edit = Edit { admin: &admin, actor: &actor, asked: &asked, if_match: &if_match };
    let content = input.into_content(&name);
    let updated = admin.records().tiers().update(content, edit.expected(), edit.author()).await;
    let updated = updated.map_err(|error| edit.not_made(error, || no_tier(&name)))?;
    audit::tier_changed(&actor, "updated", name.as_str(), updated.revision);
    Ok(answer(StatusCode::OK, &updated))
}

/// Deletes a tier: 409 if it has members, who would fall to the defaults
#[utoipa::path(delete, path = "/management/tiers/{TIER}", tag = "tiers", params(In<TierName>, IfMatch),
    responses((status = NO_CONTENT), ChangeRefusals))]
pub(super) async fn delete(
    State(admin): State<Admin>,
    Allowed { actor, asked, .. }: Allowed<ToDelete>,
    In(TierName(name)): In<TierName>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    let edit = Edit { admin: &admin, actor: &actor, asked: &asked, if_match: &if_match };
    let gone = admin.records().tiers().delete(name.as_str(), edit.expected(), actor.name()).await;
    let gone = gone.map_err(|error| match error {
        ChangeError::Invalid(why) => ApiError::new(StatusCode::CONFLICT, why.to_string()),
        error => edit.not_made(error, || no_tier(&name)),
    })?;
    audit::tier_changed(&actor, "deleted", name.as_str(), gone.revision);
    Ok(StatusCode::NO_CONTENT)
}

fn in_no_tier() -> ApiError {
    ApiError::not_found("a tier of this subject")
}

/// The tier that a consumer or an API key is in: 404 if it is in none
///
/// A key is named by the 32 hexadecimal digits of its keyed hash.
#[utoipa::path(get, path = "/management/subjects/{REALM}/{SUBJECT_ID}/tier", tag = "tiers",
    params(OfSubject),
    responses((status = OK, body = Membership, headers(("ETag" = String))), Refusals))]
pub(super) async fn read_member(
    State(admin): State<Admin>,
    _: Allowed<ToRead>,
    OfSubject(subject): OfSubject,
) -> Result<Response, ApiError> {
    let member = admin.records().tiers().member(&subject).await?;
    Ok(membership(&member.ok_or_else(in_no_tier)?))
}

fn membership(member: &TierMember) -> Response {
    ([(header::ETAG, etag(member.revision))], Json(Membership::of(member))).into_response()
}

/// Puts a consumer or an API key into a tier
///
/// With `If-Match`, only if nobody moved it since: 412 otherwise. A tier that blocks it, or unblocks it,
/// needs the role for that, too.
#[utoipa::path(put, path = "/management/subjects/{REALM}/{SUBJECT_ID}/tier", tag = "tiers",
    params(OfSubject, IfMatch), request_body = MembershipInput,
    responses((status = OK, body = Membership, headers(("ETag" = String))), ChangeRefusals))]
pub(super) async fn put_member(
    State(admin): State<Admin>,
    Allowed { actor, asked, .. }: Allowed<ToSet>,
    OfSubject(subject): OfSubject,
    if_match: IfMatch,
    Body(MembershipInput { tier }): Body<MembershipInput>,
) -> Result<Response, ApiError> {
    let edit = Edit { admin: &admin, actor: &actor, asked: &asked, if_match: &if_match };
    let (tier, expected) = (Some(tier.as_str()), edit.expected());
    let put = admin.records().tiers().set_member(&subject, tier, expected, edit.author()).await;
    let put = put.map_err(|error| edit.not_made(error, in_no_tier))?;
    audit::moved(&actor, &subject, tier);
    Ok(membership(&put.ok_or_else(in_no_tier)?))
}

/// Takes a consumer or an API key out of its tier
#[utoipa::path(delete, path = "/management/subjects/{REALM}/{SUBJECT_ID}/tier", tag = "tiers",
    params(OfSubject, IfMatch),
    responses((status = NO_CONTENT), ChangeRefusals))]
pub(super) async fn delete_member(
    State(admin): State<Admin>,
    Allowed { actor, asked, .. }: Allowed<ToSet>,
    OfSubject(subject): OfSubject,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    let edit = Edit { admin: &admin, actor: &actor, asked: &asked, if_match: &if_match };
    let gone =
        admin.records().tiers().set_member(&subject, None, edit.expected(), edit.author()).await;
    gone.map_err(|error| edit.not_made(error, in_no_tier))?;
    audit::moved(&actor, &subject, None);
    Ok(StatusCode::NO_CONTENT)
}
