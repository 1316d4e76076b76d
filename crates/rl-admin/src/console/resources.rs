//! The pages of resources, and of the applications that share them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use maud::{Markup, html};
use rl_records::{Limits, ResourceLimit, ResourceLimitContent};

use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, confirmation, page};
use super::site::Site;
use super::text;
use super::visitor::Visitor;
use crate::access::Role;

/// The number of resources on a page.
const PAGE: u32 = 100;

/// Shows the resources; with `app` in the query, those of this application.
pub(super) async fn list(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    let query = Fields::of_query(request.uri());
    let resources = site.context.records.resources();
    let (app, after) = (query.non_empty("app"), query.non_empty("after"));
    let found = match app {
        Some(app) => resources.list_for_applications(&[app.to_owned()], after, PAGE).await?,
        None => resources.list(after, PAGE).await?,
    };
    let mut apps = BTreeMap::<&str, u64>::new();
    for app in found.iter().flat_map(|resource| &resource.content.apps) {
        *apps.entry(app).or_default() += 1;
    }
    let main = html! {
        @if let Some(app) = app {
            p.crumb { a href=(site.link("/resources", &[])) { "Resources" } }
            h1 { "Application " span.id { (app) } }
        } @else {
            div.head {
                h1 { "Resources" }
                @if visitor.actor.has(Role::CanCreateRateLimits) {
                    a.button href=(site.link("/resource/new", &[])) { "Add a resource" }
                }
            }
        }
        (confirmation(query.get("done")))
        p.note { "The applications of a resource share its limits." }
        (table(&site, &visitor, &found))
        @if found.len() == PAGE as usize && let Some(last) = found.last() {
            nav.pages aria-label="Pages" {
                a rel="next" href=(site.link("/resources", &[("app", app.unwrap_or_default()), ("after", &last.content.name)])) { "Next page" }
            }
        }
        @if app.is_none() && !apps.is_empty() {
            section aria-labelledby="applications" {
                h2 #applications { "Applications" }
                table.list {
                    thead { tr { th scope="col" { "Application" } th.number scope="col" { "Resources of this page" } } }
                    tbody { @for (app, count) in &apps { tr {
                        th scope="row" { a.id href=(site.link("/resources", &[("app", app)])) { (app) } }
                        td.number data-label="Resources of this page" { (text::number(*count)) }
                    } } }
                }
            }
        }
    };
    Ok(page(&site, Some(&visitor), "Resources", Tab::Resources, main))
}

fn table(site: &Site, visitor: &Visitor, resources: &[ResourceLimit]) -> Markup {
    html! {
        @if resources.is_empty() {
            p.empty.quiet-now { "There is no resource." }
        } @else {
            table.list {
                thead { tr {
                    th scope="col" { "Resource" } th scope="col" { "Limits" } th scope="col" { "Applications" }
                    th scope="col" { "Last change (UTC)" }
                } }
                tbody { @for resource in resources {
                    @let content = &resource.content;
                    tr {
                        th scope="row" {
                            @let name = &content.name;
                            @if visitor.actor.has(Role::CanUpdateRateLimits) {
                                a.id href=(site.link("/resource/edit", &[("name", name)])) { (name) }
                            } @else { span.id { (name) } }
                        }
                        td data-label="Limits" { (described(&content.limits)) }
                        td data-label="Applications" {
                            @if content.apps.is_empty() { "–" }
                            @for (index, app) in content.apps.iter().enumerate() {
                                @if index > 0 { ", " }
                                a.id href=(site.link("/resources", &[("app", app)])) { (app) }
                            }
                        }
                        td data-label="Last change" { time { (text::time(resource.updated_at)) } " by " (resource.updated_by) }
                    }
                } }
            }
        }
    }
}

/// Describes the limits of a resource.
fn described(limits: &Limits) -> String {
    let is_blocked = limits.as_slice().iter().any(|limit| limit.max() == 0 && !limit.is_shadow());
    if is_blocked { "blocked".to_owned() } else { text::limits(limits) }
}

/// Describes a change in the history.
pub(super) fn describe_change(
    before: Option<&ResourceLimitContent>,
    after: Option<&ResourceLimitContent>,
) -> Markup {
    let word = match (before, after) {
        (None, _) => "created",
        (Some(_), Some(_)) => "changed",
        (Some(_), None) => "deleted",
    };
    html! {
        strong { "Resource " (word) }
        @if let Some(content) = after.or(before) {
            ul.steps {
                @if let (Some(before), Some(_)) = (before, after) { li { "before: " (described(&before.limits)) } }
                li { (described(&content.limits)) }
                li { "applications: " (content.apps.join(", ")) }
            }
        }
    }
}
