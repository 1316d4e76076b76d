//! The page that raises the limits of a consumer for some time.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use maud::{Markup, html};
use rl_core::Subject;
use rl_records::{ActiveLimits, Limits, RecordContent};

use super::consumer_id::check_consumer_id;
use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, form_token, page};
use super::site::Site;
use super::subject;
use super::visitor::Visitor;
use crate::access::Role;
use crate::audit;

/// An hour in microseconds.
const HOUR: u64 = 3_600_000_000;

/// The factors that the form offers.
const FACTORS: [usize; 4] = [2, 3, 5, 10];

/// The times that the form offers, in hours.
const HOURS: [(u64, &str); 3] = [(1, "an hour"), (4, "4 hours"), (24, "a day")];

/// Shows the form.
pub(super) async fn form(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    let fields = Fields::of_query(request.uri());
    let id = check_consumer_id(fields.raw("id"))?;
    let active = site.context.records.active_limits(id, site.context.now()).await?;
    let has_limits = !active.limits().is_empty() && !active.is_blocked();
    let main = html! {
        p.crumb { a href=(site.path()) { "Now" } " / " a.id href=(site.consumer_link(id)) { (id) } }
        h1 { "Raise the limits" }
        @if has_limits {
            form.sheet method="post" action=(site.link("/raise", &[])) {
                (form_token(&visitor))
                input type="hidden" name="id" value=(id);
                input type="hidden" name="back" value=(fields.get("back"));
                p { "Calls of the present window stay counted. Afterwards the present limits apply again." }
                fieldset {
                    legend { "Limits" }
                    @for factor in FACTORS {
                        div.check {
                            input #{ "factor-" (factor) } type="radio" name="factor" value=(factor) checked[factor == 2];
                            label for={ "factor-" (factor) } {
                                (factor) " times: " span.faint { (active.limits().times(factor)) }
                            }
                        }
                    }
                }
                div.field {
                    label for="hours" { "For" }
                    select #hours name="hours" { @for (hours, label) in HOURS { option value=(hours) { (label) } } }
                }
                div.buttons {
                    button.main type="submit" { "Raise" }
                    a.button href=(subject::back(&site, &fields, &Subject::consumer(id))) { "Cancel" }
                }
            }
        } @else {
            p.problem {
                @if active.is_blocked() { "This consumer is blocked. To let it call, lift the block." }
                @else { "This consumer has no limit in any period." }
            }
            p { a.button href=(site.consumer_link(id)) { "To the consumer" } }
        }
    };
    Ok(page(&site, Some(&visitor), "Raise the limits", Tab::Consumers, main))
}

/// Raises the limits.
pub(super) async fn raise(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    let id = check_consumer_id(form.raw("id"))?;
    let factor = form.get("factor").parse().ok().filter(|factor| FACTORS.contains(factor));
    let hours = form
        .get("hours")
        .parse()
        .ok()
        .filter(|hours: &u64| HOURS.iter().any(|(known, _)| known == hours));
    let (Some(factor), Some(hours)) = (factor, hours) else { return Err(Failure::no_page()) };
    let context = &site.context;
    let now = context.now();
    let active = context.records.active_limits(id, now).await?;
    if active.is_blocked() || active.limits().is_empty() {
        return Err(Failure::from(crate::error::ApiError::invalid("id", "a consumer with limits")));
    }
    let to = now.plus_micros(hours * HOUR);
    let content = RecordContent::new(id, now, to, added(&active, factor));
    let raised = context.records.create(content, visitor.actor.author()).await;
    let raised = raised.map_err(|error| visitor.change_failure(error))?;
    audit::record_changed(&visitor.actor, "raised", &raised);
    Ok(subject::done(&site, &form, &Subject::consumer(id), "raised"))
}

/// Returns the limits that make the active ones `factor` times as large. Limits of the consumer's
/// own are added up, but they replace those of a tier and the defaults.
fn added(active: &ActiveLimits, factor: usize) -> Limits {
    let replaces = active.contributions().is_empty();
    active.limits().times(if replaces { factor } else { factor - 1 })
}
