use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use rl_core::{Realm, Subject};
use rl_records::{ChangeError, Expected, ResourceLimit, ResourceLimitContent};
use serde::Serialize;
use utoipa::ToSchema;

use super::responses::{ChangeRequest, change_error, resource};
use crate::access::Actor;
use crate::audit;
use crate::context::Context;
use crate::error::ApiError;
use crate::error::{ChangeErrorResponses, ErrorResponses};
use crate::read::{
    Allowed, ApplicationName, Body, CanCreateRateLimits, CanDeleteRateLimits, CanGetRateLimits,
    CanUpdateRateLimits, FewNames, IfMatch, PathParam, QueryParams, ResourceName,
};
use crate::wire::{LimitUsage, Name, Resource, ResourceInput, ResourceUpdate, Resources};

/// Lists limits of resources by name
#[utoipa::path(get, path = "/management/resources", tag = "resources", params(FewNames),
    responses((status = OK, body = Resources), ErrorResponses))]
pub(super) async fn list(
    State(context): State<Arc<Context>>,
    Allowed { actor, .. }: Allowed<CanGetRateLimits>,
    QueryParams(FewNames { limit, after, own }): QueryParams<FewNames>,
) -> Result<Json<Resources>, ApiError> {
    let (resources, after) = (context.records.resources(), after.as_deref());
    let found = match &own {
        None => resources.list(after, limit.0).await?,
        Some(own) => resources.list_for_applications(own, after, limit.0).await?,
    };
    Ok(page(&actor, &found, limit.0))
}

/// Lists the limits of resources that name an application
#[utoipa::path(get, path = "/management/applications/{APPLICATION}/resources", tag = "resources",
    params(PathParam<ApplicationName>, FewNames), responses((status = OK, body = Resources), ErrorResponses))]
pub(super) async fn of_application(
    State(context): State<Arc<Context>>,
    Allowed { actor, .. }: Allowed<CanGetRateLimits>,
    PathParam(ApplicationName(app)): PathParam<ApplicationName>,
    QueryParams(FewNames { limit, after, own: _ }): QueryParams<FewNames>,
) -> Result<Json<Resources>, ApiError> {
    let apps = [app.as_str().to_owned()];
    let resources = context.records.resources();
    let found = resources.list_for_applications(&apps, after.as_deref(), limit.0).await?;
    Ok(page(&actor, &found, limit.0))
}

/// Responds with a page. Only a full page has a next page.
fn page(actor: &Actor, found: &[ResourceLimit], limit: u32) -> Json<Resources> {
    let next = found.last().filter(|_| found.len() == limit as usize);
    let next = next.map(|last| last.content.name.clone());
    let resources = found.iter().map(|limit| Resource::of(limit, actor)).collect();
    Json(Resources { resources, next })
}

/// Creates the limit of a resource, or responds with 409 if it has one
#[utoipa::path(post, path = "/management/resources", tag = "resources",
    request_body = ResourceInput,
    responses((status = CREATED, body = Resource, headers(("ETag" = String))), ChangeErrorResponses))]
pub(super) async fn create(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanCreateRateLimits>,
    Body(input): Body<ResourceInput>,
) -> Result<Response, ApiError> {
    let content = input.into_content()?;
    let created = context.records.resources().create(content, actor.author()).await;
    let created = created.map_err(|error| match error {
        ChangeError::Conflict { current } => {
            let message = format!("resource {} has a limit already", current.content.name);
            ApiError::new(StatusCode::CONFLICT, message)
        }
        error => change_error(&context, &actor, &request, error),
    })?;
    let name = &created.content.name;
    audit::resource_changed(&actor, "created", name, created.revision);
    Ok(resource(StatusCode::CREATED, &created, &actor))
}

/// Returns the limit of a resource, if the actor may see it.
async fn find(context: &Context, name: &Name, actor: &Actor) -> Result<ResourceLimit, ApiError> {
    let found = context.records.resources().read(name.as_str()).await?;
    // Another change may have replaced the applications since the path was checked.
    let found = found.filter(|limit| actor.sees_resource_of(&limit.content.apps));
    found.ok_or_else(|| no_limit(name))
}

fn no_limit(name: &Name) -> ApiError {
    ApiError::not_found(format_args!("a limit of resource {}", name.as_str()))
}

/// Returns the limit of a resource
#[utoipa::path(get, path = "/management/resources/{RESOURCE}", tag = "resources",
    params(PathParam<ResourceName>),
    responses((status = OK, body = Resource, headers(("ETag" = String))), ErrorResponses))]
pub(super) async fn read(
    State(context): State<Arc<Context>>,
    Allowed { actor, .. }: Allowed<CanGetRateLimits>,
    PathParam(ResourceName(name)): PathParam<ResourceName>,
) -> Result<Response, ApiError> {
    Ok(resource(StatusCode::OK, &find(&context, &name, &actor).await?, &actor))
}

/// Replaces the limit of a resource
///
/// With `If-Match`, the response is 412 unless the limit has the given revision. A change that
/// blocks or unblocks applications also requires the role for that.
#[utoipa::path(put, path = "/management/resources/{RESOURCE}", tag = "resources",
    params(PathParam<ResourceName>, IfMatch), request_body = ResourceUpdate,
    responses((status = OK, body = Resource, headers(("ETag" = String))), ChangeErrorResponses))]
pub(super) async fn update(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanUpdateRateLimits>,
    PathParam(ResourceName(name)): PathParam<ResourceName>,
    if_match: IfMatch,
    Body(input): Body<ResourceUpdate>,
) -> Result<Response, ApiError> {
    let content = input.into_content(&name)?;
    let change =
        ChangeRequest { context: &context, actor: &actor, request: &request, if_match: &if_match };
    let updated = apply(&change, &name, Some(&content)).await?;
    audit::resource_changed(&actor, "updated", name.as_str(), updated.revision);
    Ok(resource(StatusCode::OK, &updated, &actor))
}

/// Replaces the limit of a resource. If `content` is `None`, deletes the limit.
///
/// If the actor owns only some applications, the change applies only to the revision whose
/// applications were checked. If another change came in between, and the request names no revision,
/// the check is repeated.
async fn apply(
    change: &ChangeRequest<'_>,
    name: &Name,
    content: Option<&ResourceLimitContent>,
) -> Result<ResourceLimit, ApiError> {
    let records = &change.context.records;
    let by = change.author();
    let owns_all = change.actor.owns([""; 0]);
    let mut attempts = 0;
    loop {
        let current = records.resources().read(name.as_str()).await?;
        let current = current.ok_or_else(|| change.not_found(no_limit(name)))?;
        if !change.actor.owns(&current.content.apps) {
            audit::not_owned(change.actor);
            return Err(ApiError::not_owned("a resource that lists no application of other users"));
        }
        let expected = match change.expected() {
            Expected::Any | Expected::Existing if !owns_all => Expected::from(current.revision),
            Expected::OneOf(seen) if !seen.contains(&current.revision) => {
                return Err(ApiError::revision_mismatch(&current.updated_by, current.revision));
            }
            Expected::OneOf(_) => Expected::from(current.revision),
            expected => expected,
        };
        let may_repeat = expected == Expected::from(current.revision)
            && matches!(change.if_match, IfMatch::Absent | IfMatch::Any);
        let made = match content {
            Some(content) => records.resources().update(content.clone(), expected, by).await,
            None => records.resources().delete(name.as_str(), expected, by).await,
        };
        attempts += 1;
        match made {
            Err(ChangeError::Conflict { .. }) if may_repeat && attempts < MAX_ATTEMPTS => {}
            made => return made.map_err(|error| change.error(error, || no_limit(name))),
        }
    }
}

/// The maximum number of attempts while other requests change the same resource.
const MAX_ATTEMPTS: u32 = 100;

/// Deletes the limit of a resource
///
/// With `If-Match`, the response is 412 unless the limit has the given revision.
#[utoipa::path(delete, path = "/management/resources/{RESOURCE}", tag = "resources",
    params(PathParam<ResourceName>, IfMatch), responses((status = NO_CONTENT), ChangeErrorResponses))]
pub(super) async fn delete(
    State(context): State<Arc<Context>>,
    Allowed { actor, request, .. }: Allowed<CanDeleteRateLimits>,
    PathParam(ResourceName(name)): PathParam<ResourceName>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    let change =
        ChangeRequest { context: &context, actor: &actor, request: &request, if_match: &if_match };
    let gone = apply(&change, &name, None).await?;
    audit::resource_changed(&actor, "deleted", name.as_str(), gone.revision);
    Ok(StatusCode::NO_CONTENT)
}

/// The usage of a resource.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ResourceUsage {
    /// The usage of each limit; empty if the resource lists no application, or has no limit.
    limits: Vec<LimitUsage>,
}

/// Reports the usage of a resource
///
/// Reads the counters of the subject with the realm `resource` and the name of the resource as its
/// id. Charges nothing.
#[utoipa::path(get, path = "/management/resources/{RESOURCE}/usage", tag = "resources",
    params(PathParam<ResourceName>), responses((status = OK, body = ResourceUsage), ErrorResponses))]
pub(super) async fn usage(
    State(context): State<Arc<Context>>,
    Allowed { actor, .. }: Allowed<CanGetRateLimits>,
    PathParam(ResourceName(name)): PathParam<ResourceName>,
) -> Result<Json<ResourceUsage>, ApiError> {
    let content = find(&context, &name, &actor).await?.content;
    let policy = content.apps.first().and_then(|app| content.policy_for(app));
    let Some(policy) = policy else { return Ok(Json(ResourceUsage { limits: Vec::new() })) };
    let realm = Realm::custom("resource").expect("a valid name");
    let usage = context
        .limiter
        .request(&Subject::new(realm, name.as_str()))
        .policy(&policy)
        .usage()
        .await?;
    let limits = usage.limits().map(|limit| LimitUsage::of(limit, false)).collect();
    Ok(Json(ResourceUsage { limits }))
}
