//! The form of a rule in the database.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use rl_records::{ChangeError, RuleContent, RuleDefinition};

use super::edit_page::{EditPage, Rejection};
use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, form_token};
use super::site::Site;
use super::templates;
use super::visitor::Visitor;
use crate::access::Role;
use crate::audit;
use crate::stored_rules::{RuleProblem, StoredRules, checked};

/// Shows the form of a new rule, filled in from a template if the query names one.
pub(super) async fn new(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    StoredRules::of(&site.context)?;
    let query = Fields::of_query(request.uri());
    let fields = Fields::default().with("shadow", "on");
    let fields = match templates::find(query.get("template")) {
        Some(template) => {
            fields.with("name", template.name).with("definition", template.definition)
        }
        None => fields,
    };
    Ok(form_page(&site, &visitor, true, &fields, None))
}

/// Adds a rule from a form.
pub(super) async fn create(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    let rejected = |rejection| Ok(form_page(&site, &visitor, true, &form, Some(rejection)));
    let context = &site.context;
    let taken =
        || Rejection::invalid(vec![("name", "There is a rule of this name already.".to_owned())]);
    let content = content_of(&form);
    if context.limiter.rule_names().is_some_and(|names| names.contains(&content.name)) {
        return rejected(taken());
    }
    let content = match checked(&StoredRules::of(context)?, content).await {
        Ok(content) => content,
        Err(problem) => return rejected(rejection(problem)),
    };
    if form.non_empty("preview").is_some() {
        return rejected(Rejection::preview(&effect(None, &content)));
    }
    match context.records.rules().create(content, visitor.actor.author()).await {
        Ok(rule) => Ok(saved(&site, &visitor, "created", &rule)),
        Err(ChangeError::Invalid(field)) => rejected(Rejection::invalid_field(&field)),
        Err(ChangeError::Conflict { .. }) => rejected(taken()),
        Err(error) => Err(visitor.change_failure(error)),
    }
}

/// Shows the form of a rule.
pub(super) async fn edit(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    visitor.require(Role::CanUpdateRateLimits)?;
    StoredRules::of(&site.context)?;
    let query = Fields::of_query(request.uri());
    let rule = read(&site, query.get("name")).await?;
    let fields = Fields::default()
        .with("name", &*rule.content.name)
        .with("definition", &*rule.content.definition)
        .with("shadow", if rule.content.is_shadow { "on" } else { "" })
        .with("revision", rule.revision.to_string());
    Ok(form_page(&site, &visitor, false, &fields, None))
}

/// Saves the form of a rule.
pub(super) async fn update(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanUpdateRateLimits)?;
    let rejected =
        |form: &Fields, rejection| Ok(form_page(&site, &visitor, false, form, Some(rejection)));
    let context = &site.context;
    let content = match checked(&StoredRules::of(context)?, content_of(&form)).await {
        Ok(content) => content,
        Err(problem) => return rejected(&form, rejection(problem)),
    };
    if form.non_empty("preview").is_some() {
        let before = read(&site, &content.name).await?;
        return rejected(&form, Rejection::preview(&effect(Some(&before.content), &content)));
    }
    let by = visitor.actor.author();
    match context.records.rules().update(content.clone(), revision(&form), by).await {
        Ok(rule) => Ok(saved(&site, &visitor, "updated", &rule)),
        Err(ChangeError::Invalid(field)) => rejected(&form, Rejection::invalid_field(&field)),
        Err(ChangeError::Conflict { current }) => {
            let RuleDefinition { updated_by, updated_at, .. } = &*current;
            let differences = differences(&current.content, &content);
            let rejection = Rejection::conflict("rule", updated_by, *updated_at, &differences);
            // The form gets the current revision, so saving it once more replaces that revision.
            rejected(&form.clone().with("revision", current.revision.to_string()), rejection)
        }
        Err(ChangeError::NotFound) => Err(no_rule()),
        Err(error) => Err(visitor.change_failure(error)),
    }
}

/// Puts a rule into shadow, or takes it out.
pub(super) async fn set_shadow(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanUpdateRateLimits)?;
    StoredRules::of(&site.context)?;
    let before = read(&site, form.get("name")).await?.content;
    let content = RuleContent { is_shadow: form.get("shadow") == "on", ..before };
    let by = visitor.actor.author();
    match site.context.records.rules().update(content, revision(&form), by).await {
        Ok(rule) => Ok(saved(&site, &visitor, "updated", &rule)),
        Err(ChangeError::NotFound) => Err(no_rule()),
        Err(error) => Err(visitor.change_failure(error)),
    }
}

/// Deletes a rule.
pub(super) async fn delete(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanDeleteRateLimits)?;
    StoredRules::of(&site.context)?;
    let by = visitor.actor.author();
    match site.context.records.rules().delete(form.get("name"), revision(&form), by).await {
        Ok(rule) => Ok(saved(&site, &visitor, "deleted", &rule)),
        Err(ChangeError::NotFound) => Err(no_rule()),
        Err(error) => Err(visitor.change_failure(error)),
    }
}

async fn read(site: &Site, name: &str) -> Result<RuleDefinition, Failure> {
    site.context.records.rules().read(name).await?.ok_or_else(no_rule)
}

fn no_rule() -> Failure {
    let message = "There is no rule of this name in the database.";
    Failure::new(StatusCode::NOT_FOUND, "No such rule", message)
}

/// Renders the form.
fn form_page(
    site: &Site,
    visitor: &Visitor,
    is_new: bool,
    fields: &Fields,
    rejection: Option<Rejection>,
) -> Response {
    let (title, save, action) = match is_new {
        true => ("Add a rule", "Add", "/rule/new"),
        false => ("Change a rule", "Save", "/rule/edit"),
    };
    let back = site.link("/rules", &[]);
    let crumbs = html! {
        a href=(back) { "Rules" }
        @if !is_new { " / " span.id { (fields.get("name")) } }
    };
    let tab = Tab::Rules;
    let page =
        EditPage { site, visitor, tab, title, crumbs, action, save, back, fields, rejection };
    let hint = html! {
        "As in a rule file: " code { "match" } " selects requests, " code { "per" } " the subject that is counted, "
        code { "limits" } " its limits. " code { "over" } ", " code { "cost" } ", " code { "tiers" } " and "
        code { "exempt" } " are optional."
    };
    let content = html! {
        @if is_new {
            (page.text("name", "Name", "Such as login: letters, digits and _ . -. It cannot be changed later, because the counters belong to it."))
        } @else {
            input type="hidden" name="name" value=(fields.raw("name"));
            input type="hidden" name="revision" value=(fields.get("revision"));
        }
        (page.lines("definition", "Definition", &hint))
        div.check {
            input #shadow type="checkbox" name="shadow" value="on" checked[fields.get("shadow") == "on"]
                aria-describedby="shadow-hint";
            label for="shadow" { "In shadow" }
            p.hint #shadow-hint { "The rule counts requests and shows those that it would deny, but denies none." }
        }
    };
    let footer = html! {
        @if !is_new && visitor.actor.has(Role::CanDeleteRateLimits) {
            form method="post" action=(site.link("/rule/delete", &[])) {
                (form_token(visitor))
                input type="hidden" name="name" value=(fields.raw("name"));
                input type="hidden" name="revision" value=(fields.get("revision"));
                button.danger type="submit" { "Delete this rule" }
            }
        }
    };
    page.respond(&content, &footer)
}

/// Returns the content that was typed.
fn content_of(form: &Fields) -> RuleContent {
    RuleContent {
        name: form.get("name").to_owned(),
        // Browsers send the line ends of Windows.
        definition: form.raw("definition").replace("\r\n", "\n"),
        is_shadow: form.get("shadow") == "on",
    }
}

fn rejection(problem: RuleProblem) -> Rejection {
    match problem {
        RuleProblem::Invalid(field) => Rejection::invalid_field(&field),
        RuleProblem::Refused(reason) => Rejection::invalid(vec![("definition", reason)]),
    }
}

/// Describes what saving the form would do.
fn effect(before: Option<&RuleContent>, after: &RuleContent) -> Markup {
    html! {
        "The rule is valid beside the others. "
        @match (before.map(|before| before.is_shadow), after.is_shadow) {
            (_, true) => "It would count, and deny nothing.",
            (Some(true), false) => "It would deny requests from the next call on.",
            (_, false) => "It would apply to the next call.",
        }
        @if before.is_some_and(|before| before.definition == after.definition) {
            " Its definition stays the same."
        }
    }
}

fn differences(saved: &RuleContent, typed: &RuleContent) -> Vec<(String, String, String)> {
    let shadow = |content: &RuleContent| if content.is_shadow { "yes" } else { "no" }.to_owned();
    let all = [
        ("Definition", saved.definition.clone(), typed.definition.clone()),
        ("In shadow", shadow(saved), shadow(typed)),
    ];
    let different = all.into_iter().filter(|(_, saved, typed)| saved != typed);
    different.map(|(label, saved, typed)| (label.to_owned(), saved, typed)).collect()
}

/// Logs a change, and redirects to the list of rules.
fn saved(site: &Site, visitor: &Visitor, action: &str, rule: &RuleDefinition) -> Response {
    audit::rule_changed(&visitor.actor, action, rule);
    let done = format!("rule-{action}");
    Redirect::to(&site.link("/rules", &[("done", &done)])).into_response()
}

fn revision(form: &Fields) -> i64 {
    form.get("revision").parse().unwrap_or_default()
}
