//! The page that raises the limits of a subject for a time, with a grant.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::html;
use rl_core::time::Timestamp;
use rl_core::{LimitStatus, Subject};
use rl_records::{ChangeError, InvalidField, Limits, RecordContent};

use super::HOUR;
use super::edit_page::{Problems, field, problem, read_limits, refusal};
use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, form_token, page};
use super::site::Site;
use super::visitor::Visitor;
use super::{subject, text};
use crate::access::Role;
use crate::audit;
use crate::subject_rules::{SubjectRules, limits_of_database};
use crate::wire::{civil, instant};

/// The factors that the form offers.
const FACTORS: [usize; 4] = [2, 3, 5, 10];

/// The value of `factor` with which the typed limits are added.
const TYPED: &str = "typed";

/// The ends that the form offers. The number is the hours from now.
const ENDS: [(&str, &str, Option<u64>); 6] = [
    ("1", "an hour", Some(1)),
    ("4", "4 hours", Some(4)),
    ("24", "a day", Some(24)),
    ("today", "the rest of today (UTC)", None),
    ("month", "the rest of this month (UTC)", None),
    ("until", "until the time below", None),
];

/// The subject, and the limits that apply to it now.
struct Target {
    subject: Subject,
    rule: Option<String>,
    limits: Limits,
    is_blocked: bool,
}

impl Target {
    async fn read(site: &Site, visitor: &Visitor, fields: &Fields) -> Result<Self, Failure> {
        let subject = subject::read_with_records(site, visitor, fields)?;
        let rule = fields.non_empty("rule").map(ToOwned::to_owned);
        let context = &site.context;
        let by_rule = context.records.active_limits_by_rule(&subject, context.now()).await?;
        let (limits, is_blocked) = match limits_of_database(&by_rule, &subject, rule.as_deref()) {
            Some(active) => (active.limits().clone(), active.is_blocked()),
            None => {
                let rules = SubjectRules::find(context, subject.clone(), rule.as_deref())?;
                let counting = rules.main().and_then(|main| rules.rules[main].as_ref());
                let name = rule.as_deref().or(counting.map(|rule| &*rule.name));
                // If the counters cannot be read, the form offers only typed limits.
                let usage = rules.read_usage(name).await.ok();
                let limits = usage.iter().flat_map(|usage| usage.limits());
                let limits = limits.map(|limit: LimitStatus<'_>| limit.limit());
                let limits = limits.filter(|limit| !Limits::only_counts(*limit));
                (Limits::new(limits).unwrap_or_default(), false)
            }
        };
        Ok(Self { subject, rule, limits, is_blocked })
    }

    /// Returns the record that grants `limits` until `to`.
    fn grant(
        &self,
        limits: Limits,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<RecordContent, InvalidField> {
        let content = RecordContent::of_subject(&self.subject, from, to, limits)?;
        Ok(RecordContent { rule: self.rule.clone(), grants: true, ..content })
    }
}

/// Shows the form.
pub(super) async fn form(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    let fields = Fields::of_query(request.uri());
    let target = Target::read(&site, &visitor, &fields).await?;
    let factor = if target.limits.is_empty() { TYPED } else { "2" };
    let fields = fields.with("factor", factor).with("hours", "1");
    Ok(form_page(&site, &visitor, &fields, &target, &Problems::new()))
}

/// Raises the limits.
pub(super) async fn raise(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    Extension(form): Extension<Fields>,
) -> Result<Response, Failure> {
    visitor.require(Role::CanCreateRateLimits)?;
    let target = Target::read(&site, &visitor, &form).await?;
    let now = site.context.now();
    let mut problems = Problems::new();
    let added = match form.get("factor") {
        TYPED => read_limits(&form, &mut problems),
        factor => {
            let factor = factor.parse().ok().filter(|factor| FACTORS.contains(factor));
            target.limits.times(factor.ok_or_else(Failure::no_page)? - 1)
        }
    };
    // A field that the chosen values leave out would be ignored without a word.
    for (name, field, choice) in [("factor", "limits", TYPED), ("hours", "until", "until")] {
        if form.get(name) != choice && form.non_empty(field).is_some() {
            problems
                .push((field, "Choose the entry for this field above, or clear the field.".into()));
        }
    }
    let Some(to) = end(&form, now) else {
        problems.push(("until", "Expected a time in the future.".into()));
        return Ok(form_page(&site, &visitor, &form, &target, &problems));
    };
    // Without known limits, the grant may add to those of the service.
    let useless = added.useless_grant(&target.limits).filter(|_| !target.limits.is_empty());
    if let Some(limit) = useless {
        let problem =
            format!("{limit}: expected the period and the algorithm of a limit that applies now.");
        problems.push(("limits", problem));
    }
    if !problems.is_empty() {
        return Ok(form_page(&site, &visitor, &form, &target, &problems));
    }
    let created = match target.grant(added, now, to) {
        Ok(content) => site.context.records.create(content, visitor.actor.author()).await,
        Err(field) => Err(ChangeError::Invalid(field)),
    };
    let raised = match created {
        Ok(raised) => raised,
        Err(ChangeError::Invalid(field)) => {
            return Ok(form_page(&site, &visitor, &form, &target, &vec![problem(&field)]));
        }
        Err(error) => return Err(visitor.change_failure(error)),
    };
    audit::record_changed(&visitor.actor, "raised", &raised);
    Ok(subject::done(&site, &form, &target.subject, "raised"))
}

/// Returns the last instant of the grant, or `None` if it is not in the future.
fn end(form: &Fields, now: Timestamp) -> Option<Timestamp> {
    let (value, _, hours) = ENDS.into_iter().find(|(value, ..)| *value == form.get("hours"))?;
    let before = |next: jiff::civil::Date| {
        let midnight = instant(next.to_datetime(jiff::civil::Time::midnight()))?;
        Some(Timestamp::from_micros(midnight.as_micros() - 1))
    };
    let end = match (value, hours) {
        (_, Some(hours)) => now.plus_micros(hours * HOUR),
        ("today", _) => before(civil(now)?.date().tomorrow().ok()?)?,
        ("month", _) => before(civil(now)?.date().last_of_month().tomorrow().ok()?)?,
        _ => text::parse_time(form.get("until"))?,
    };
    (end > now).then_some(end)
}

fn form_page(
    site: &Site,
    visitor: &Visitor,
    fields: &Fields,
    target: &Target,
    problems: &Problems,
) -> Response {
    let Target { subject, rule, limits, is_blocked } = target;
    let main = html! {
        p.crumb {
            a href=(site.path()) { "Now" } " / "
            a.id href=(subject::link(site, "/subject", subject, &[])) { (subject::title(subject)) }
        }
        h1 { "Raise the limits of " (subject::title(subject)) }
        (refusal(problems))
        @if *is_blocked {
            p.problem { "This subject is blocked. To let it call, lift the block." }
            p { a.button href=(subject::link(site, "/subject", subject, &[])) { "To its page" } }
        } @else {
            form.sheet method="post" action=(site.link("/raise", &[])) {
                (form_token(visitor))
                (subject::fields(subject))
                @if let Some(rule) = rule { input type="hidden" name="rule" value=(rule); }
                input type="hidden" name="back" value=(fields.get("back"));
                p {
                    "A grant is added to the limits that apply"
                    @if let Some(rule) = rule { " under the rule " b.id { (rule) } }
                    ": own limits, or those of the tier, the defaults or the service. Calls that are already \
                     counted stay counted. When the grant ends, the limits apply without it."
                }
                fieldset {
                    legend { "Limits" }
                    @if !limits.is_empty() { @for factor in FACTORS {
                        div.check {
                            input #{ "factor-" (factor) } type="radio" name="factor" value=(factor)
                                checked[fields.get("factor") == factor.to_string()];
                            label for={ "factor-" (factor) } {
                                (factor) " times: " span.faint { (limits.times(factor)) }
                            }
                        }
                    } }
                    div.check {
                        input #factor-typed type="radio" name="factor" value=(TYPED) checked[fields.get("factor") == TYPED];
                        label for="factor-typed" { "Add the limits below" }
                    }
                    (field("limits", "Limits to add", problems, |described, is_wrong| html! {
                        textarea #limits name="limits" rows="2" autocomplete="off" autocapitalize="off"
                            spellcheck="false" placeholder="5000/month" aria-invalid=[is_wrong]
                            aria-describedby=[described] { (fields.raw("limits")) }
                        p.hint {
                            "One on each line, with the period and the algorithm of a limit that applies now"
                            @if !limits.is_empty() { ": " (limits) }
                            ". Any other limit has no effect."
                        }
                    }))
                }
                div.field {
                    label for="hours" { "How long" }
                    select #hours name="hours" {
                        @for (value, label, _) in ENDS {
                            option value=(value) selected[fields.get("hours") == value] { (label) }
                        }
                    }
                }
                (field("until", "Until (UTC)", problems, |described, is_wrong| html! {
                    input #until type="datetime-local" step="1" name="until" value=(fields.raw("until"))
                        autocomplete="off" aria-invalid=[is_wrong] aria-describedby=[described];
                }))
                div.buttons {
                    button.main type="submit" { "Raise" }
                    a.button href=(subject::back(site, fields, subject)) { "Cancel" }
                }
            }
        }
    };
    let status =
        if problems.is_empty() { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
    (status, page(site, Some(visitor), "Raise the limits", Tab::Consumers, main)).into_response()
}
