use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use rl_core::{Realm, Subject};
use rl_records::{ChangeError, Expected, ResourceLimit, ResourceLimitContent};
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::{Edit, refused, resource};
use crate::access::Actor;
use crate::error::{ChangeRefusals, Refusals};
use crate::read::{
    Allowed, ApplicationName, Body, FewNames, IfMatch, In, Parameters, ResourceName, ToCreate,
    ToDelete, ToGet, ToUpdate,
};
use crate::wire::{Name, Resource, ResourceInput, ResourceUpdate, Resources, Standing};
use crate::{Admin, ApiError, audit};

/// The limits of resources, by name
#[utoipa::path(get, path = "/management/resources", tag = "resources", params(FewNames),
    responses((status = OK, body = Resources), Refusals))]
pub(super) async fn list(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    Parameters(FewNames { limit, after }): Parameters<FewNames>,
) -> Result<Json<Resources>, ApiError> {
    let found = admin.records().resources().list(after.as_deref(), limit.0).await?;
    Ok(page(found, limit.0))
}

/// The limits of resources that an application is under
#[utoipa::path(get, path = "/management/applications/{APPLICATION}/resources", tag = "resources",
    params(In<ApplicationName>, FewNames), responses((status = OK, body = Resources), Refusals))]
pub(super) async fn of_application(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    In(ApplicationName(app)): In<ApplicationName>,
    Parameters(FewNames { limit, after }): Parameters<FewNames>,
) -> Result<Json<Resources>, ApiError> {
    let found = admin
        .records()
        .resources()
        .list_for_application(app.as_str(), after.as_deref(), limit.0)
        .await?;
    Ok(page(found, limit.0))
}

/// A page that is not full is the last.
fn page(found: Vec<ResourceLimit>, limit: u32) -> Json<Resources> {
    let next = found.last().filter(|_| found.len() == limit as usize);
    let next = next.map(|last| last.content.name.clone());
    Json(Resources { resources: found.iter().map(Resource::of).collect(), next })
}

/// Creates the limit of a resource: 409 if it has one
#[utoipa::path(post, path = "/management/resources", tag = "resources",
    request_body = ResourceInput,
    responses((status = CREATED, body = Resource, headers(("ETag" = String))), ChangeRefusals))]
pub(super) async fn create(
    State(admin): State<Admin>,
    Allowed { actor, asked, .. }: Allowed<ToCreate>,
    Body(input): Body<ResourceInput>,
) -> Result<Response, ApiError> {
    let content = input.into_content();
    owned(&actor, &content.apps)?;
    let created = admin.records().resources().create(content, actor.author()).await;
    let created = created.map_err(|error| match error {
        ChangeError::Conflict { current } => {
            let message = format!("resource {} has a limit already", current.content.name);
            ApiError::new(StatusCode::CONFLICT, message)
        }
        error => refused(&admin, &actor, &asked, error),
    })?;
    let name = &created.content.name;
    audit::resource_changed(&actor, "created", name, created.revision);
    Ok(resource(StatusCode::CREATED, &created))
}

/// Owners edit what is theirs alone: as it is, and as it will be.
fn owned<'a>(
    actor: &Actor,
    applications: impl IntoIterator<Item = &'a String>,
) -> Result<(), ApiError> {
    if actor.owns(applications) {
        return Ok(());
    }
    audit::not_owned(actor);
    let message = "the resource is under applications of others: expected your own alone";
    Err(ApiError::new(StatusCode::FORBIDDEN, message))
}

async fn there(admin: &Admin, name: &Name) -> Result<ResourceLimit, ApiError> {
    let found = admin.records().resources().read(name.as_str()).await?;
    found.ok_or_else(|| not_limited(name))
}

fn not_limited(name: &Name) -> ApiError {
    ApiError::not_found(format_args!("a limit of resource {}", name.as_str()))
}

/// The limit of a resource
#[utoipa::path(get, path = "/management/resources/{RESOURCE}", tag = "resources",
    params(In<ResourceName>),
    responses((status = OK, body = Resource, headers(("ETag" = String))), Refusals))]
pub(super) async fn read(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    In(ResourceName(name)): In<ResourceName>,
) -> Result<Response, ApiError> {
    Ok(resource(StatusCode::OK, &there(&admin, &name).await?))
}

/// Writes over the limit of a resource
///
/// With `If-Match`, only if nobody changed it since: 412 otherwise. A change that blocks or unblocks
/// applications needs the role for that, too.
#[utoipa::path(put, path = "/management/resources/{RESOURCE}", tag = "resources",
    params(In<ResourceName>, IfMatch), request_body = ResourceUpdate,
    responses((status = OK, body = Resource, headers(("ETag" = String))), ChangeRefusals))]
pub(super) async fn update(
    State(admin): State<Admin>,
    Allowed { actor, asked, .. }: Allowed<ToUpdate>,
    In(ResourceName(name)): In<ResourceName>,
    if_match: IfMatch,
    Body(input): Body<ResourceUpdate>,
) -> Result<Response, ApiError> {
    let content = input.into_content(&name);
    owned(&actor, &content.apps)?;
    let edit = Edit { admin: &admin, actor: &actor, asked: &asked, if_match: &if_match };
    let updated = change(&edit, &name, Some(&content)).await?;
    audit::resource_changed(&actor, "updated", name.as_str(), updated.revision);
    Ok(resource(StatusCode::OK, &updated))
}

/// Writes over the limit of a resource, or deletes it if `content` is `None`.
///
/// An actor who owns only some applications changes exactly the revision whose owner was checked. If
/// another change came in between, and the request has no precondition, the check is repeated.
async fn change(
    edit: &Edit<'_>,
    name: &Name,
    content: Option<&ResourceLimitContent>,
) -> Result<ResourceLimit, ApiError> {
    let (records, by) = (edit.admin.records(), edit.author());
    let owns_all = edit.actor.owns([""; 0]);
    let mut attempts = 0;
    loop {
        let there = records.resources().read(name.as_str()).await?;
        let there = there.ok_or_else(|| edit.missing(not_limited(name)))?;
        owned(edit.actor, &there.content.apps)?;
        let expected = match edit.expected() {
            Expected::Any | Expected::Existing if !owns_all => Expected::from(there.revision),
            Expected::OneOf(seen) if !seen.contains(&there.revision) => {
                return Err(ApiError::not_as_seen(&there.updated_by, there.revision));
            }
            Expected::OneOf(_) => Expected::from(there.revision),
            expected => expected,
        };
        let may_repeat = expected == Expected::from(there.revision)
            && matches!(edit.if_match, IfMatch::Absent | IfMatch::Any);
        let made = match content {
            Some(content) => records.resources().update(content.clone(), expected, by).await,
            None => records.resources().delete(name.as_str(), expected, by).await,
        };
        attempts += 1;
        match made {
            Err(ChangeError::Conflict { .. }) if may_repeat && attempts < ATTEMPTS => {}
            made => return made.map_err(|error| edit.not_made(error, || not_limited(name))),
        }
    }
}

/// The attempts at a change by an owner while others change the same resource.
const ATTEMPTS: u32 = 100;

/// Deletes the limit of a resource
///
/// With `If-Match`, only if nobody changed it since: 412 otherwise.
#[utoipa::path(delete, path = "/management/resources/{RESOURCE}", tag = "resources",
    params(In<ResourceName>, IfMatch), responses((status = NO_CONTENT), ChangeRefusals))]
pub(super) async fn delete(
    State(admin): State<Admin>,
    Allowed { actor, asked, .. }: Allowed<ToDelete>,
    In(ResourceName(name)): In<ResourceName>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    let edit = Edit { admin: &admin, actor: &actor, asked: &asked, if_match: &if_match };
    let gone = change(&edit, &name, None).await?;
    audit::resource_changed(&actor, "deleted", name.as_str(), gone.revision);
    Ok(StatusCode::NO_CONTENT)
}

/// What is left of a resource.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ResourceUsage {
    /// The bucket; `null` if no application may use the resource.
    bucket: Option<Standing>,
}

/// What is left of a resource
///
/// Its bucket is that of the subject with the realm `resource` and its name. Nothing is charged.
#[utoipa::path(get, path = "/management/resources/{RESOURCE}/usage", tag = "resources",
    params(In<ResourceName>), responses((status = OK, body = ResourceUsage), Refusals))]
pub(super) async fn usage(
    State(admin): State<Admin>,
    _: Allowed<ToGet>,
    In(ResourceName(name)): In<ResourceName>,
) -> Result<Json<ResourceUsage>, ApiError> {
    let content = there(&admin, &name).await?.content;
    let policy = content.apps.first().and_then(|app| content.policy_for(app));
    let Some(policy) = policy else { return Ok(Json(ResourceUsage { bucket: None })) };
    let realm = Realm::custom("resource").expect("it is the name of a realm");
    let usage =
        admin.limiter().usage_with_policy(&policy, &Subject::new(realm, name.as_str())).await?;
    let bucket = usage.limits().next().map(Standing::of);
    Ok(Json(ResourceUsage { bucket }))
}
