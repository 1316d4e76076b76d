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
