//! The page that blocks a subject, and the button that lifts its blocks.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use rl_core::Subject;
use rl_core::time::Timestamp;
use rl_records::{ChangeError, Expected};

use super::HOUR;
use super::edit_page::{FieldProblem, field, refusal};
use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, form_token, page};
use super::site::Site;
use super::visitor::Visitor;
use super::{blocks, subject, text};
use crate::access::Role;
use crate::audit;
use crate::subject_rules::{note_on_unenforced_records, rules_with_source};

/// The ends that a form offers. `until` is the time in the field below.
const ENDS: [(&str, &str); 4] = [
    ("hour", "For an hour"),
    ("day", "For a day"),
    ("until", "Until the time below"),
    ("never", "For ever"),
];

/// Shows the form.
pub(super) async fn form(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    let fields = Fields::of_query(request.uri()).with("end", "hour");
    let subject = subject::read_with_records(&site, &visitor, &fields)?;
    Ok(form_page(&site, &visitor, &subject, &fields, &[]))
}

/// Blocks a subject, and writes the reason to the history.
pub(super) async fn block(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    let subject = subject::read_with_records(&site, &visitor, &form)?;
    let mut problems = Vec::new();
    if form.non_empty("reason").is_none() {
        problems.push(("reason", "Expected the reason for the block.".to_owned()));
    }
    let rule = form.non_empty("rule");
    if let (Some(rule), Some(known)) = (rule, known_rules(&site, &subject))
        && !known.iter().any(|name| name == rule)
    {
        let problem = "Expected a rule that takes the limits of this subject from the database.";
        problems.push(("rule", problem.to_owned()));
    }
    let until = read_end(&form, site.context.now());
    if until.is_none() {
        problems.push(("until", "Expected a time in the future.".to_owned()));
    }
    let (Some(until), []) = (until, &problems[..]) else {
        return Ok(form_page(&site, &visitor, &subject, &form, &problems));
    };
    let (records, author) = (&site.context.records, visitor.actor.author());
    let block = match records.block(&subject, rule, until, Expected::Any, author).await {
        Ok(block) => block,
        Err(ChangeError::Invalid(invalid)) if invalid.field() == "rule" => {
            let problem = ("rule", format!("Expected {}.", invalid.expected()));
            return Ok(form_page(&site, &visitor, &subject, &form, &[problem]));
        }
        Err(error) => return Err(visitor.change_failure(error)),
    };
    records.audit_log().note_reason(&block, form.get("reason"), visitor.actor.name()).await?;
    audit::record_changed(&visitor.actor, "blocked", &block);
    Ok(subject::done(&site, &form, &subject, "blocked"))
}

/// Lifts the blocks of a subject under one rule, or those that apply under every rule.
pub(super) async fn unblock(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanDeleteRateLimits)?;
    let subject = subject::read(&form)?;
    let (rule, author) = (form.non_empty("rule"), visitor.actor.author());
    let gone = site.context.records.unblock(&subject, rule, Expected::Any, author).await;
    let gone = gone.map_err(|error| visitor.change_failure(error))?;
    audit::record_changed(&visitor.actor, "unblocked", &gone);
    Ok(subject::done(&site, &form, &subject, "unblocked"))
}

/// Reads the end of the block: a time in the future.
fn read_end(form: &Fields, now: Timestamp) -> Option<Timestamp> {
    match form.get("end") {
        "hour" => Some(now.plus_micros(HOUR)),
        "day" => Some(now.plus_micros(24 * HOUR)),
        "never" => Some(blocks::NEVER),
        _ => text::parse_time(form.get("until")).filter(|until| *until > now),
    }
}

/// Returns the names of the rules under which the subject can be blocked. Returns `None` in
/// a server outside the service, which does not know the rules of the service.
fn known_rules(site: &Site, subject: &Subject) -> Option<Vec<String>> {
    match rules_with_source(&site.context, subject) {
        Some(rules) => Some(rules.into_iter().map(|rule| rule.name).collect()),
        None if site.context.is_stand_alone => None,
        None => Some(Vec::new()),
    }
}

fn form_page(
    site: &Site,
    visitor: &Visitor,
    subject: &Subject,
    fields: &Fields,
    problems: &[FieldProblem],
) -> Response {
    let title = subject::title(subject);
    let main = html! {
        p.crumb {
            a href=(site.path()) { "Now" } " / "
            a.id href=(subject::link(site, "/subject", subject, &[])) { (title) }
        }
        h1 { "Block " span.id { (title) } }
        (refusal(problems))
        @if let Some(note) = note_on_unenforced_records(&site.context, subject) { p.problem { (note) } }
        form.sheet method="post" action=(site.link("/block", &[])) {
            (form_token(visitor))
            (subject::fields(subject))
            input type="hidden" name="back" value=(fields.get("back"));
            p { "Until the end of the block, the selected rule denies every call of this subject, whatever its limits are. \
                 \"Every rule\" means every rule that takes its limits from the database." }
            (field("reason", "Reason", problems, |described, is_wrong| html! {
                input #reason name="reason" value=(fields.raw("reason")) maxlength="500" required
                    autocomplete="off" aria-invalid=[is_wrong] aria-describedby=[described];
            }))
            (rule_field(fields, known_rules(site, subject), problems))
            fieldset {
                legend { "How long" }
                @for (value, label) in ENDS {
                    div.check {
                        input #{ "end-" (value) } type="radio" name="end" value=(value) checked[fields.get("end") == value];
                        label for={ "end-" (value) } { (label) }
                    }
                }
                (field("until", "Until (UTC)", problems, |described, is_wrong| html! {
                    input #until type="datetime-local" step="1" name="until" value=(fields.raw("until"))
                        autocomplete="off" aria-invalid=[is_wrong] aria-describedby=[described];
                }))
            }
            div.buttons {
                button.danger type="submit" { "Block" }
                a.button href=(subject::back(site, fields, subject)) { "Cancel" }
            }
        }
    };
    let status =
        if problems.is_empty() { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
    (status, page(site, Some(visitor), "Block a subject", Tab::Blocks, main)).into_response()
}

/// Renders a select field of the known rules, or a text field if they are unknown. Renders nothing
/// if the service has no rules.
fn rule_field(fields: &Fields, known: Option<Vec<String>>, problems: &[FieldProblem]) -> Markup {
    let picked = fields.get("rule");
    match known {
        Some(names) if names.is_empty() => html! {},
        Some(names) => field("rule", "Rule", problems, |described, is_wrong| {
            html! {
                select #rule name="rule" aria-invalid=[is_wrong] aria-describedby=[described] {
                    option value="" { "Every rule with limits from the database" }
                    @for name in &names { option value=(name) selected[name == picked] { (name) } }
                }
            }
        }),
        None => field(
            "rule",
            "Rule (empty: every rule with limits from the database)",
            problems,
            |described, is_wrong| {
                html! {
                    input #rule name="rule" value=(picked) maxlength="64" autocapitalize="off"
                        spellcheck="false" aria-invalid=[is_wrong] aria-describedby=[described];
                }
            },
        ),
    }
}
