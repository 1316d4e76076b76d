//! Tiers, and which one a consumer is in.

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use rl_core::Subject;
use rl_records::{CallPeriod, ChangeError, HistoryQuery, Tier, TierContent, TierMember};

use super::consumer::known_id;
use super::failure::Failure;
use super::fields::{Fields, link};
use super::page::{Tab, done, form_token, page};
use super::record_form::{Form, Problems, problem, read_limits, with_limits};
use super::session::Visitor;
use super::{Console, text};
use crate::{Role, audit};

/// All tiers, and their last changes.
pub(super) async fn list(
    State(console): State<Console>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    let query = Fields::read(request.uri().query().unwrap_or_default().as_bytes());
    let records = console.admin().records();
    let tiers = records.tiers().list(None, 1_000).await?;
    let history =
        records.tiers().history(&HistoryQuery { limit: 20, ..HistoryQuery::default() }).await?;
    let path = console.path();
    let main = html! {
        div.head {
            h1 { "Tiers" }
            @if visitor.actor.has(Role::CanCreateRateLimits) {
                a.button href={ (path) "/tier/new" } { "Add a tier" }
            }
        }
        (done(query.get("done")))
        p { "What consumers and keys of a tier may call, each for itself, as long as no record of their own is active." }
        @if tiers.is_empty() {
            p.empty { "There is no tier." }
        } @else {
            div.scroll tabindex="0" role="region" aria-label="Tiers" { table.sums {
                thead { tr {
                    th scope="col" { "Tier" }
                    @for period in CallPeriod::ALL { th.number scope="col" { (text::period(period)) } }
                } }
                tbody { @for tier in &tiers { tr {
                    th scope="row" {
                        @let name = &tier.content.name;
                        @if visitor.actor.has(Role::CanUpdateRateLimits) {
                            a href=(link(&format!("{path}/tier/edit"), &[("name", name)])) { (name) }
                        } @else { (name) }
                    }
                    @for period in CallPeriod::ALL { td.number data-label=(text::period(period)) { (text::limit(tier.content.limits.get(period))) } }
                } } }
            } }
        }
        h2 { "Changes" }
        @if history.is_empty() { p.empty { "Nothing was changed." } } @else {
            table.list.changes {
                thead { tr { th scope="col" { "When (UTC)" } th scope="col" { "Who" } th scope="col" { "What" } } }
                tbody { @for change in &history { tr {
                    td data-label="When" { time { (text::time(change.at)) } }
                    td data-label="Who" { (change.by) }
                    td data-label="What" { (what(change.before.as_ref(), change.after.as_ref())) }
                } } }
            }
        }
    };
    Ok(page(&console, Some(&visitor), "Tiers", Tab::Tiers, main))
}

/// Names what became of a tier, period by period.
pub(super) fn what(before: Option<&TierContent>, after: Option<&TierContent>) -> Markup {
    let name = after.or(before).map_or("", |tier| &tier.name);
    let verb = match (before, after) {
        (None, _) => "Tier created",
        (_, None) => "Tier deleted",
        _ => "Tier changed",
    };
    let shown = |tier: Option<&TierContent>, period| {
        tier.map_or_else(|| "no limit".to_owned(), |tier| text::limit(tier.limits.get(period)))
    };
    html! {
        strong { (verb) } " " b.id { (name) }
        ul.steps { @for period in CallPeriod::ALL {
            @let (was, is) = (shown(before, period), shown(after, period));
            @if was != is {
                li {
                    "Calls " (text::period(period)) ": "
                    @if before.is_some() && after.is_some() {
                        del { (was) } span aria-hidden="true" { " → " }
                    }
                    ins { (if after.is_some() { is } else { was }) }
                }
            }
        } }
    }
}

impl Console {
    fn tier_page(
        &self,
        visitor: &Visitor,
        is_new: bool,
        fields: &Fields,
        (status, problems, notice): (StatusCode, Problems, Markup),
    ) -> Response {
        let (title, save, action) = match is_new {
            true => ("Add a tier", "Add", "/tier/new"),
            false => ("Change a tier", "Save", "/tier/edit"),
        };
        let back = format!("{}/tiers", self.path());
        let action = format!("{}{action}", self.path());
        let form = Form { action, fields, problems: &problems, notice, save, back };
        let content = html! {
            @if is_new {
                (form.text("name", "Name", "Such as gold. It stays; 1 to 250 bytes."))
            } @else {
                input type="hidden" name="name" value=(fields.raw("name"));
                input type="hidden" name="revision" value=(fields.get("revision"));
            }
            (form.limits("Empty or -1: no limit. 0: no call."))
        };
        let main = html! {
            p.crumb { a href={ (self.path()) "/tiers" } { "Tiers" } }
            h1 { (title) @if !is_new { ": " span.id { (fields.get("name")) } } }
            (form.around(visitor, content))
            @if !is_new && visitor.actor.has(Role::CanDeleteRateLimits) {
                form method="post" action={ (self.path()) "/tier/delete" } {
                    (form_token(visitor))
                    input type="hidden" name="name" value=(fields.raw("name"));
                    input type="hidden" name="revision" value=(fields.get("revision"));
                    button.danger type="submit" { "Delete this tier" }
                }
            }
        };
        (status, page(self, Some(visitor), title, Tab::Tiers, main)).into_response()
    }
}

fn plain() -> (StatusCode, Problems, Markup) {
    (StatusCode::OK, Problems::new(), html! {})
}

fn invalid(problems: Problems) -> (StatusCode, Problems, Markup) {
    (StatusCode::UNPROCESSABLE_ENTITY, problems, html! {})
}

fn fields_of(tier: &Tier) -> Fields {
    let fields = Fields::default().with("name", &*tier.content.name);
    with_limits(fields.with("revision", tier.revision.to_string()), &tier.content.limits)
}

pub(super) async fn new(
    State(console): State<Console>,
    Extension(visitor): Extension<Visitor>,
) -> Result<Response, Failure> {
    visitor.needs(Role::CanCreateRateLimits)?;
    Ok(console.tier_page(&visitor, true, &Fields::default(), plain()))
}

pub(super) async fn create(
    State(console): State<Console>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.needs(Role::CanCreateRateLimits)?;
    save(&console, &visitor, &form, true).await
}

pub(super) async fn edit(
    State(console): State<Console>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    visitor.needs(Role::CanUpdateRateLimits)?;
    let query = Fields::read(request.uri().query().unwrap_or_default().as_bytes());
    let tier = console.admin().records().tiers().read(query.get("name")).await?;
    let tier = tier.ok_or_else(no_tier)?;
    Ok(console.tier_page(&visitor, false, &fields_of(&tier), plain()))
}

pub(super) async fn update(
    State(console): State<Console>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.needs(Role::CanUpdateRateLimits)?;
    save(&console, &visitor, &form, false).await
}

fn no_tier() -> Failure {
    Failure::new(StatusCode::NOT_FOUND, "No such tier", "There is no tier of this name.")
}

async fn save(
    console: &Console,
    visitor: &Visitor,
    form: &Fields,
    is_new: bool,
) -> Result<Response, Failure> {
    let mut problems = Problems::new();
    let limits = read_limits(form, &mut problems);
    if !problems.is_empty() {
        return Ok(console.tier_page(visitor, is_new, form, invalid(problems)));
    }
    let (records, by) = (console.admin().records(), visitor.actor.name());
    let content = TierContent { name: form.get("name").to_owned(), limits };
    let revision = form.get("revision").parse::<i64>().unwrap_or_default();
    let saved = match is_new {
        true => records.tiers().create(content, by).await,
        false => records.tiers().update(content, revision, visitor.actor.author()).await,
    };
    match saved {
        Ok(tier) => {
            let action = if is_new { "created" } else { "updated" };
            audit::tier_changed(&visitor.actor, action, &tier.content.name, tier.revision);
            let done = if is_new { "tier-created" } else { "tier-updated" };
            Ok(Redirect::to(&format!("{}/tiers?done={done}", console.path())).into_response())
        }
        Err(ChangeError::Invalid(field)) => {
            Ok(console.tier_page(visitor, is_new, form, invalid(vec![problem(&field)])))
        }
        Err(ChangeError::Conflict { current }) if is_new => {
            let used = format!("{:?} is there already.", current.content.name);
            Ok(console.tier_page(visitor, true, form, invalid(vec![("name", used)])))
        }
        Err(ChangeError::Conflict { current }) => {
            let notice = html! {
                div.conflict role="alert" tabindex="-1" {
                    h2 { "Nothing was saved: somebody was first" }
                    p {
                        strong { (current.updated_by) } " changed this tier at " (text::time(current.updated_at))
                        " UTC. What you typed is still below. Saving it now puts it in the place of theirs:"
                    }
                    ul { @for period in CallPeriod::ALL {
                        li { (text::period(period)) ": " (text::limit(current.content.limits.get(period))) }
                    } }
                }
            };
            let form = form.clone().with("revision", current.revision.to_string());
            Ok(console.tier_page(
                visitor,
                false,
                &form,
                (StatusCode::CONFLICT, Problems::new(), notice),
            ))
        }
        Err(ChangeError::NotFound) => Err(no_tier()),
        Err(error) => Err(visitor.refused(error)),
    }
}

pub(super) async fn delete(
    State(console): State<Console>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.needs(Role::CanDeleteRateLimits)?;
    let (name, by) = (form.get("name"), visitor.actor.name());
    let revision = form.get("revision").parse::<i64>().unwrap_or_default();
    match console.admin().records().tiers().delete(name, revision, by).await {
        Ok(tier) => {
            audit::tier_changed(&visitor.actor, "deleted", name, tier.revision);
            Ok(Redirect::to(&format!("{}/tiers?done=tier-deleted", console.path())).into_response())
        }
        Err(ChangeError::Invalid(_)) => {
            let message = "Somebody is in this tier, and would fall to the defaults. Nothing was \
                           deleted: put its consumers and keys into another tier first.";
            Err(Failure::new(StatusCode::CONFLICT, "The tier has members", message))
        }
        Err(ChangeError::NotFound) => Err(no_tier()),
        Err(error) => Err(visitor.refused(error)),
    }
}

/// Which tier a consumer is in, and the form to put it into another one.
pub(super) fn of_consumer(
    console: &Console,
    visitor: &Visitor,
    consumer: &str,
    member: Option<&TierMember>,
    known: &[Tier],
) -> Markup {
    let current = member.map_or("", |member| &member.tier);
    html! {
        section aria-labelledby="tier-heading" {
            h2 #tier-heading { "Tier" }
            p {
                @match member {
                    Some(member) => {
                        "In the tier " strong { (member.tier) } ", says " (member.updated_by) " since "
                        (text::time(member.updated_at)) " UTC. Its limits hold whenever no record is active."
                    }
                    None => "In no tier.",
                }
            }
            @if visitor.actor.has(Role::CanSetCallLimits) && !known.is_empty() {
                form.inline method="post" action={ (console.path()) "/consumer/tier" } {
                    (form_token(visitor))
                    input type="hidden" name="id" value=(consumer);
                    input type="hidden" name="revision" value=(member.map_or(0, |member| member.revision));
                    label for="tier" { "Put it into" }
                    select #tier name="tier" {
                        option value="" selected[current.is_empty()] { "no tier" }
                        @for tier in known {
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

/// Puts a consumer into a tier, or out of it.
pub(super) async fn put(
    State(console): State<Console>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.needs(Role::CanSetCallLimits)?;
    let id = known_id(form.raw("id"))?;
    let revision = form.get("revision").parse::<i64>().unwrap_or_default();
    let (who, by) = (Subject::consumer(id), visitor.actor.author());
    match console.admin().records().tiers().set_member(&who, form.given("tier"), revision, by).await
    {
        Ok(_) => {
            audit::moved(&visitor.actor, &who, form.given("tier"));
            let to =
                link(&format!("{}/consumer", console.path()), &[("id", id), ("done", "moved")]);
            Ok(Redirect::to(&to).into_response())
        }
        Err(ChangeError::Conflict { .. } | ChangeError::NotFound) => {
            let message = "Somebody else changed the tier of this consumer meanwhile. Nothing was \
                           saved: go back, load the page again, and look at it first.";
            Err(Failure::new(StatusCode::CONFLICT, "Somebody was first", message))
        }
        Err(error) => Err(visitor.refused(error)),
    }
}
