//! The page of the rules: their limits, and what they have denied in the last hour.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use maud::{Markup, html};
use rl_core::stats::LimitStats;
use rl_records::{RuleContent, RuleDefinition};

use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, confirmation, form_token, page};
use super::site::Site;
use super::text;
use super::visitor::Visitor;
use crate::access::Role;
use crate::last_hour::{HourReport, LimitSums};
use crate::stored_rules::StoredRules;

/// Shows the rules in their order, or the limits of a limiter without rules. The rules of the
/// database can be changed.
pub(super) async fn list(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    let query = Fields::of_query(request.uri());
    let context = &site.context;
    let of_database = StoredRules::of(context).ok();
    let stored = match &of_database {
        // The rules of the file are shown even while the database is down.
        Some(_) => context.records.rules().all().await.map_err(Failure::from),
        None => Ok(Vec::new()),
    };
    let (stored, outage) = match stored {
        Ok(stored) => (stored, None),
        Err(failure) => (Vec::new(), Some(failure.message)),
    };
    let report = context.last_hour.report();
    let denials = report.denials();
    let rules = context.limiter.rule_names();
    let has_rules = rules.is_some();
    let names = rules.unwrap_or_else(|| vec![String::new()]);
    let main = html! {
        div.head {
            h1 { "Rules" }
            p.pulse { "As of " (text::time(report.now)) " UTC. " a href=(site.link("/rules", &[])) { "Refresh" } }
            @if of_database.is_some() && visitor.actor.has(Role::CanCreateRateLimits) {
                a.button href=(site.link("/rule/templates", &[])) { "Add a rule" }
            }
        }
        (confirmation(query.get("done")))
        @if let Some(outage) = outage { p.problem { "The rules of the database cannot be changed now: " (outage) } }
        p.note {
            @if context.is_stand_alone {
                "These are the rules that this server knows. It decides no requests, so it has denied none: the \
                 programs of the services have their own rules and counts."
            } @else if of_database.is_some() {
                "The rules of this service. A request is allowed if every rule that matches it allows it. Rules \
                 from the database can be changed here. Change the others in the rule file. Counts are those of this process."
            } @else if has_rules {
                "The rules of this service, in their order. A request is allowed if every rule that matches it allows it. \
                 They are set in the program or in its file, and cannot be changed here. Counts are those of this process."
            } @else {
                "This service has no rules: the same limits apply to every request that it counts. Counts are those \
                 of this process."
            }
        }
        table.list.rules {
            thead { tr {
                th scope="col" { "Rule" } th scope="col" { "Limits" } th scope="col" { "State" }
                th.number scope="col" { "Denied in the last hour" }
                th.number scope="col" { "Allowed since the start" }
            } }
            tbody {
                @for name in &names {
                    @let rule = stored.iter().find(|rule| rule.content.name == *name);
                    (row(&site, &visitor, &report, &denials, name, rule))
                }
                @if let Some(of_database) = &of_database {
                    @for rule in &stored {
                        @if let Some(problem) = of_database.problem(&rule.content.name) {
                            (refused_row(&site, &visitor, rule, &problem))
                        }
                    }
                }
            }
        }
    };
    Ok(page(&site, Some(&visitor), "Rules", Tab::Rules, main))
}

/// Renders a rule of the database that this service does not apply.
fn refused_row(site: &Site, visitor: &Visitor, rule: &RuleDefinition, problem: &str) -> Markup {
    html! {
        tr data-state="full" {
            th scope="row" { (name_of(site, visitor, rule)) (definition(&rule.content.definition)) }
            td data-label="Limits" { "–" }
            td data-label="State" { span.state { "does not apply: " (problem) } }
            td.number data-label="Denied in the last hour" { "–" }
            td.number data-label="Allowed since the start" { "–" }
        }
    }
}

fn name_of(site: &Site, visitor: &Visitor, rule: &RuleDefinition) -> Markup {
    let name = &rule.content.name;
    html! {
        @if visitor.actor.has(Role::CanUpdateRateLimits) {
            a href=(site.link("/rule/edit", &[("name", name)])) { (name) }
        } @else { (name) }
    }
}

fn definition(text: &str) -> Markup {
    html! { pre.definition { code { (text.trim_end()) } } }
}

/// Renders the button that puts a rule of the database into shadow, or takes it out.
fn shadow_switch(site: &Site, visitor: &Visitor, rule: &RuleDefinition) -> Markup {
    let (other, label) = match rule.content.is_shadow {
        true => ("", "Enforce"),
        false => ("on", "Put into shadow"),
    };
    html! {
        @if visitor.actor.has(Role::CanUpdateRateLimits) {
            form method="post" action=(site.link("/rule/shadow", &[])) {
                (form_token(visitor))
                input type="hidden" name="name" value=(rule.content.name);
                input type="hidden" name="revision" value=(rule.revision);
                input type="hidden" name="shadow" value=(other);
                button type="submit" aria-label={ (label) " " (rule.content.name) } { (label) }
            }
        }
    }
}

fn row(
    site: &Site,
    visitor: &Visitor,
    report: &HourReport,
    denials: &[LimitSums],
    name: &str,
    rule: Option<&RuleDefinition>,
) -> Markup {
    let limiter = &site.context.limiter;
    let is_shadow = limiter.is_shadow() || !name.is_empty() && limiter.rule(name).is_shadow();
    let of_rule = denials.iter().filter(|sums| sums.path.rule == name);
    let [over, shadow_over] =
        of_rule.fold([0, 0], |[over, shadow], sums| [over + sums.over, shadow + sums.shadow_over]);
    let allowed = match name {
        "" => Some(report.stats.allowed()),
        _ => report.stats.rules.iter().find(|rule| rule.rule == name).map(|rule| rule.within),
    };
    let (state, word) = match (limiter.is_enabled(), is_shadow) {
        (false, _) => ("full", "off"),
        (true, true) => ("near", "in shadow, denies nothing"),
        (true, false) => ("active", "on"),
    };
    let limits = limits(report.stats.limits.iter().filter(|limit| limit.rule == name));
    html! {
        tr data-state=(state) {
            th scope="row" {
                @if let Some(rule) = rule { (name_of(site, visitor, rule)) }
                @else if name.is_empty() { "All requests" }
                @else { (name) }
                @if let Some(text) = limiter.rule(name).definition() {
                    p.hint { @if rule.is_some() { "of the database" } @else { "of the file" } }
                    (definition(&text))
                }
            }
            td data-label="Limits" {
                @if limits.is_empty() { "of each subject, from the console" }
                @for (tier, limits) in &limits {
                    p.tier { @if !tier.is_empty() { span.faint { (tier) ": " } } (limits.join(", ")) }
                }
            }
            td data-label="State" {
                span.state { (word) }
                @if let Some(rule) = rule { (shadow_switch(site, visitor, rule)) }
            }
            td.number data-label="Denied in the last hour" {
                a href=(site.link("", &[("rule", name)])) { (text::number(over)) }
                @if shadow_over > 0 { " (in shadow " (text::number(shadow_over)) ")" }
            }
            td.number data-label="Allowed since the start" {
                (allowed.map_or("–".to_owned(), text::number))
            }
        }
    }
}

/// Returns the limits of a rule by the tier of the request; empty if a source finds them.
fn limits<'a>(all: impl Iterator<Item = &'a LimitStats>) -> BTreeMap<&'a str, Vec<String>> {
    let mut limits = BTreeMap::<_, Vec<String>>::new();
    for (tier, limit) in all.flat_map(|limit| &limit.by_tier) {
        limits.entry(&**tier).or_default().push(limit.to_string());
    }
    limits
}

/// Describes a change in the history.
pub(super) fn describe_change(before: Option<&RuleContent>, after: Option<&RuleContent>) -> Markup {
    let verb =
        match (before, after) {
            (None, _) => "Rule added",
            (_, None) => "Rule deleted",
            (Some(before), Some(after)) if before.definition == after.definition => {
                if after.is_shadow { "Rule put into shadow" } else { "Rule taken out of shadow" }
            }
            _ => "Rule changed",
        };
    let is_changed = before.map(|rule| &rule.definition) != after.map(|rule| &rule.definition);
    html! {
        strong { (verb) }
        @if is_changed {
            @if let Some(before) = before { del { pre { (before.definition) } } }
            @if let Some(after) = after { ins { pre { (after.definition) } } }
        }
    }
}
