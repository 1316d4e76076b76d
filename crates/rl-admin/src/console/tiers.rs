//! The pages for tiers, and the section of a consumer's page that shows its tier.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use rl_core::Subject;
use rl_records::{ChangeError, HistoryQuery, Tier, TierContent, TierMember};

use super::consumer_id::check_consumer_id;
use super::edit_page::{EditPage, Problems, Rejection, read_limits, with_limits};
use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, confirmation, form_token, page};
use super::site::Site;
use super::text;
use super::visitor::Visitor;
use crate::access::Role;
use crate::audit;

/// Shows all tiers and their last changes.
pub(super) async fn list(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    let query = Fields::of_query(request.uri());
    let tiers = visible(&site, &visitor).await?;
    let history = match visitor.actor.applications() {
        None => {
            let query = HistoryQuery { limit: 20, ..HistoryQuery::default() };
            site.context.records.tiers().history(&query).await?
        }
        Some(_) => Vec::new(),
    };
    let path = site.path();
    let main = html! {
        div.head {
            h1 { "Tiers" }
            @if visitor.may_change_tiers(Role::CanCreateRateLimits) {
                a.button href={ (path) "/tier/new" } { "Add a tier" }
            }
        }
        (confirmation(query.get("done")))
        p { "The limits of each consumer and each key in a tier, as long as no limits of its own apply." }
        @if tiers.is_empty() {
            p.empty { "There is no tier." }
        } @else {
            div.scroll tabindex="0" role="region" aria-label="Tiers" { table.sums {
                thead { tr {
                    th scope="col" { "Tier" }
                    th scope="col" { "Limits" }
                } }
                tbody { @for tier in &tiers { tr {
                    th scope="row" {
                        @let name = &tier.content.name;
                        @if visitor.may_change_tiers(Role::CanUpdateRateLimits) {
                            a href=(site.link("/tier/edit", &[("name", name)])) { (name) }
                        } @else { (name) }
                    }
                    td { (text::limits(&tier.content.limits)) }
                } } }
            } }
        }
        @if !history.is_empty() {
            h2 { "Changes" }
            table.list.changes {
                thead { tr { th scope="col" { "When (UTC)" } th scope="col" { "Who" } th scope="col" { "What" } } }
                tbody { @for change in &history { tr {
                    td data-label="When" { time { (text::time(change.at)) } }
                    td data-label="Who" { (change.by) }
                    td data-label="What" { (describe_change(change.before.as_ref(), change.after.as_ref())) }
                } } }
            }
        }
    };
    Ok(page(&site, Some(&visitor), "Tiers", Tab::Tiers, main))
}

/// Returns the tiers that the visitor may see: all, or those that its applications have.
pub(super) async fn visible(site: &Site, visitor: &Visitor) -> Result<Vec<Tier>, Failure> {
    let tiers = site.context.records.tiers();
    Ok(match visitor.actor.applications() {
        None => tiers.list(None, 1_000).await?,
        Some(own) => tiers.list_for_consumers(own, None, None, 1_000).await?,
    })
}

/// Describes a change of a tier.
pub(super) fn describe_change(before: Option<&TierContent>, after: Option<&TierContent>) -> Markup {
    let name = after.or(before).map_or("", |tier| &tier.name);
    let verb = match (before, after) {
        (None, _) => "Tier created",
        (_, None) => "Tier deleted",
        _ => "Tier changed",
    };
    let limits = |tier: &TierContent| text::limits(&tier.limits);
    html! {
        strong { (verb) } " " b.id { (name) }
        ul.steps { li {
            "Limits: "
            @if let (Some(before), Some(_)) = (before, after) {
                del { (limits(before)) } span aria-hidden="true" { " → " }
            }
            @if let Some(tier) = after.or(before) { ins { (limits(tier)) } }
        } }
    }
}

/// Shows an empty form.
pub(super) async fn new(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    Ok(form_page(&site, &visitor, true, &Fields::default(), None))
}

/// Creates a tier from a form.
pub(super) async fn create(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    let rejected = |rejection| Ok(form_page(&site, &visitor, true, &form, Some(rejection)));
    let content = match read(&form) {
        Ok(content) => content,
        Err(problems) => return rejected(Rejection::invalid(problems)),
    };
    if form.non_empty("preview").is_some() {
        let limits = text::limits(&content.limits);
        let effect = html! { "The tier has the limits " strong { (limits) } "." };
        return rejected(Rejection::preview(&effect));
    }
    match site.context.records.tiers().create(content, visitor.actor.author()).await {
        Ok(tier) => Ok(saved(&site, &visitor, "created", &tier)),
        Err(ChangeError::Invalid(field)) => rejected(Rejection::invalid_field(&field)),
        Err(ChangeError::Conflict { current }) => {
            let taken = format!("The tier {:?} exists already.", current.content.name);
            rejected(Rejection::invalid(vec![("name", taken)]))
        }
        Err(error) => Err(visitor.change_failure(error)),
    }
}

/// Shows the form of a tier.
pub(super) async fn edit(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    visitor.require(Role::CanUpdateRateLimits)?;
    let query = Fields::of_query(request.uri());
    let tier = site.context.records.tiers().read(query.get("name")).await?;
    let tier = tier.ok_or_else(no_tier)?;
    let fields = Fields::default().with("name", &*tier.content.name);
    let fields = fields.with("revision", tier.revision.to_string());
    let fields = with_limits(fields, &tier.content.limits);
    let fields = with_uses(&site, fields).await?;
    Ok(form_page(&site, &visitor, false, &fields, None))
}

/// Adds the sentence about the consumers and keys to which a change of the tier applies.
async fn with_uses(site: &Site, fields: Fields) -> Result<Fields, Failure> {
    let uses = site.context.records.tiers().uses(fields.get("name")).await?;
    let counted = |count: u64, one: &str, many: &str| {
        let noun = if count == 1 { one } else { many };
        format!("{} {noun}", text::number(count))
    };
    let members = counted(uses.members, "member", "members");
    let subscriptions = counted(uses.subscriptions, "subscription", "subscriptions");
    let sentence = format!("A change applies to {members} and {subscriptions}.");
    Ok(fields.with("uses", sentence))
}

/// Saves the form of a tier.
pub(super) async fn update(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanUpdateRateLimits)?;
    let rejected =
        |form: &Fields, rejection| Ok(form_page(&site, &visitor, false, form, Some(rejection)));
    let content = match read(&form) {
        Ok(content) => content,
        Err(problems) => return rejected(&form, Rejection::invalid(problems)),
    };
    if form.non_empty("preview").is_some() {
        let before = site.context.records.tiers().read(&content.name).await?.ok_or_else(no_tier)?;
        let [before, after] = [&before.content, &content].map(|tier| text::limits(&tier.limits));
        let effect =
            html! { "The limits change from " strong { (before) } " to " strong { (after) } "." };
        return rejected(&with_uses(&site, form).await?, Rejection::preview(&effect));
    }
    let by = visitor.actor.author();
    match site.context.records.tiers().update(content.clone(), revision(&form), by).await {
        Ok(tier) => Ok(saved(&site, &visitor, "updated", &tier)),
        Err(ChangeError::Invalid(field)) => rejected(&form, Rejection::invalid_field(&field)),
        Err(ChangeError::Conflict { current }) => {
            let Tier { updated_by, updated_at, .. } = &*current;
            let differences = differences(&current.content, &content);
            let rejection = Rejection::conflict("tier", updated_by, *updated_at, &differences);
            // The form gets the current revision, so saving it once more replaces that revision.
            rejected(&form.clone().with("revision", current.revision.to_string()), rejection)
        }
        Err(ChangeError::NotFound) => Err(no_tier()),
        Err(error) => Err(visitor.change_failure(error)),
    }
}

/// Deletes a tier.
pub(super) async fn delete(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanDeleteRateLimits)?;
    let name = form.get("name");
    let by = visitor.actor.author();
    match site.context.records.tiers().delete(name, revision(&form), by).await {
        Ok(tier) => Ok(saved(&site, &visitor, "deleted", &tier)),
        Err(ChangeError::Invalid(_)) => {
            let message = "The members of this tier would fall back to the defaults, so nothing was \
                           deleted. Put its consumers and keys into another tier first.";
            Err(Failure::new(StatusCode::CONFLICT, "The tier has members", message))
        }
        Err(ChangeError::NotFound) => Err(no_tier()),
        Err(error) => Err(visitor.change_failure(error)),
    }
}

/// Renders the form of a tier.
fn form_page(
    site: &Site,
    visitor: &Visitor,
    is_new: bool,
    fields: &Fields,
    rejection: Option<Rejection>,
) -> Response {
    let (title, save, action) = match is_new {
        true => ("Add a tier", "Add", "/tier/new"),
        false => ("Change a tier", "Save", "/tier/edit"),
    };
    let back = site.link("/tiers", &[]);
    let crumbs = html! {
        a href=(back) { "Tiers" }
        @if !is_new { " / " span.id { (fields.get("name")) } }
    };
    let tab = Tab::Tiers;
    let page =
        EditPage { site, visitor, tab, title, crumbs, action, save, back, fields, rejection };
    let content = html! {
        @if is_new {
            (page.text("name", "Name", "Such as gold: 1 to 250 bytes. It cannot be changed later."))
        } @else {
            input type="hidden" name="name" value=(fields.raw("name"));
            input type="hidden" name="revision" value=(fields.get("revision"));
        }
        (page.limits("Empty: no limit. A limit of 0 allows no call."))
        @if let Some(uses) = fields.non_empty("uses") { p { (uses) } }
    };
    let footer = html! {
        @if !is_new && visitor.actor.has(Role::CanDeleteRateLimits) {
            form method="post" action=(site.link("/tier/delete", &[])) {
                (form_token(visitor))
                input type="hidden" name="name" value=(fields.raw("name"));
                input type="hidden" name="revision" value=(fields.get("revision"));
                button.danger type="submit" { "Delete this tier" }
            }
        }
    };
    page.respond(&content, &footer)
}

/// Parses the content that was typed.
fn read(form: &Fields) -> Result<TierContent, Problems> {
    let mut problems = Problems::new();
    let limits = read_limits(form, &mut problems);
    let content = TierContent { name: form.get("name").to_owned(), limits };
    if problems.is_empty() { Ok(content) } else { Err(problems) }
}

fn revision(form: &Fields) -> i64 {
    form.get("revision").parse().unwrap_or_default()
}

/// Returns the saved limits and the typed ones, if they differ.
fn differences(saved: &TierContent, typed: &TierContent) -> Vec<(String, String, String)> {
    let [saved, typed] = [saved, typed].map(|tier| text::limits(&tier.limits));
    if saved == typed { Vec::new() } else { vec![("Limits".to_owned(), saved, typed)] }
}

/// Logs a change, and redirects to the list of tiers.
fn saved(site: &Site, visitor: &Visitor, action: &str, tier: &Tier) -> Response {
    audit::tier_changed(&visitor.actor, action, &tier.content.name, tier.revision);
    let done = format!("tier-{action}");
    Redirect::to(&site.link("/tiers", &[("done", &done)])).into_response()
}

fn no_tier() -> Failure {
    Failure::new(StatusCode::NOT_FOUND, "No such tier", "There is no tier of this name.")
}

/// Renders the tier of a consumer, and the form to change it.
pub(super) fn member_section(
    site: &Site,
    visitor: &Visitor,
    consumer: &str,
    member: Option<&TierMember>,
    tiers: &[Tier],
) -> Markup {
    let current = member.map_or("", |member| &member.tier);
    html! {
        section aria-labelledby="tier-heading" {
            h2 #tier-heading { "Tier" }
            p {
                @match member {
                    Some(member) => {
                        "In the tier " strong { (member.tier) } ", set by " (member.updated_by) " at "
                        (text::time(member.updated_at)) " UTC. Its limits apply whenever the consumer has no own limits."
                    }
                    None => "In no tier.",
                }
            }
            @if visitor.actor.has(Role::CanSetCallLimits) && !tiers.is_empty() {
                form.inline method="post" action={ (site.path()) "/consumer/tier" } {
                    (form_token(visitor))
                    input type="hidden" name="id" value=(consumer);
                    input type="hidden" name="revision" value=(member.map_or(0, |member| member.revision));
                    label for="tier" { "Put it into" }
                    select #tier name="tier" {
                        option value="" selected[current.is_empty()] { "no tier" }
                        @for tier in tiers {
                            @let name = &tier.content.name;
                            option value=(name) selected[name == current] { (name) }
                        }
                    }
                    button type="submit" { "Save" }
                }
            }
        }
    }
}

/// Puts a consumer into a tier, or removes it from its tier.
pub(super) async fn set_member(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanSetCallLimits)?;
    let id = check_consumer_id(form.raw("id"))?;
    let revision = form.get("revision").parse::<i64>().unwrap_or_default();
    let subject = Subject::consumer(id);
    let by = visitor.actor.author();
    match site
        .context
        .records
        .tiers()
        .set_member(&subject, form.non_empty("tier"), revision, by)
        .await
    {
        Ok(_) => {
            audit::tier_member_changed(&visitor.actor, &subject, form.non_empty("tier"));
            let to = site.link("/consumer", &[("id", id), ("done", "moved")]);
            Ok(Redirect::to(&to).into_response())
        }
        Err(ChangeError::Conflict { .. } | ChangeError::NotFound) => {
            let message = "The tier of this consumer was changed meanwhile, and nothing was saved. Go back and \
                           load the page again.";
            Err(Failure::new(StatusCode::CONFLICT, "Another change came first", message))
        }
        Err(error) => Err(visitor.change_failure(error)),
    }
}
