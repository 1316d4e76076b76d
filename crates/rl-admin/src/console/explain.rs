//! The page that explains why a request of a subject is allowed or denied now.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use maud::{Markup, html};

use super::failure::Failure;
use super::fields::Fields;
use super::now::choice;
use super::page::{Tab, page};
use super::site::Site;
use super::visitor::Visitor;
use super::{subject, text};
use crate::access::Role;
use crate::read::{ExplainQuery, Query};
use crate::routes::{Explanation, RuleExplanation, explain};
use crate::subject_rules::name_of;

/// Shows the explanation of a request. The query may name its method, path and host.
pub(super) async fn show(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    let query = Fields::of_query(request.uri());
    let subject = subject::read(&query)?;
    if *subject.realm() != rl_core::Realm::Consumer {
        visitor.require(Role::CanSeeSubjectIds)?;
    }
    let asked = ["rule", "method", "path", "host"].map(|name| (name, query.get(name)));
    let asked: Vec<_> = asked.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let asked = serde_urlencoded::to_string(asked).unwrap_or_default();
    let mut asked: ExplainQuery =
        serde_urlencoded::from_str(&asked).map_err(|_| Failure::no_page())?;
    if let Some(applications) = visitor.actor.applications() {
        asked.restrict(applications)?;
    }
    let explained = explain(&site.context, subject.clone(), asked).await;
    let name = name_of(&subject);
    let rules = site.context.limiter.rule_names().unwrap_or_default();
    let main = html! {
        p.crumb {
            a href=(site.path()) { "Now" } " / "
            a.id href=(subject::link(&site, "/subject", &subject, &[])) { (name) }
        }
        h1 { "Is a request allowed now, and why?" }
        @match &explained {
            Ok(explained) => (explanation(explained)),
            Err(error) => p.problem role="alert" { (error.message()) "." },
        }
        section aria-labelledby="request" {
            h2 #request { "A certain request" }
            p { "With a rule, only this rule decides. With a path, only the rules that match the request decide." }
            form.filter method="get" action=(site.link("/explain", &[])) {
                (subject::fields(&subject))
                @if !rules.is_empty() { (choice("rule", "Rule", "Every rule", query.get("rule"), rules)) }
                @for (name, label, example) in [("method", "Method", "GET"), ("path", "Path", "/banks"), ("host", "Host", "")] {
                    div {
                        label for=(name) { (label) }
                        input #(name) name=(name) value=(query.get(name)) placeholder=(example)
                            maxlength="2000" autocapitalize="off" spellcheck="false";
                    }
                }
                button type="submit" { "Explain" }
            }
        }
    };
    Ok(page(&site, Some(&visitor), "Explain", Tab::Now, main))
}

fn explanation(explained: &Explanation) -> Markup {
    let (state, word) = verdict(explained.allowed);
    html! {
        section aria-labelledby="verdict" {
            h2 #verdict data-state=(state) { span.state { (word) } }
            @if explained.rules.len() != 1 { p { (sentence(&explained.reason)) } }
            @if let Some(note) = &explained.note { p.note { (note) } }
            table.list {
                caption.unseen { "The decision of each rule" }
                thead { tr {
                    th scope="col" { "Rule" } th scope="col" { "Decision" } th scope="col" { "Reason" }
                    th scope="col" { "Limits" } th.number scope="col" { "Free again in" }
                } }
                tbody { @for rule in &explained.rules { (row(rule)) } }
            }
            @if !explained.other_rules.is_empty() {
                p.hint { "Other rules, which do not count this request: " (explained.other_rules.join(", ")) "." }
            }
        }
    }
}

fn row(rule: &RuleExplanation) -> Markup {
    let (state, word) = verdict(rule.allowed);
    html! {
        tr data-state=(state) {
            th scope="row" {
                (rule.rule.as_deref().unwrap_or("–"))
                @if rule.is_shadow { " (in shadow, denies nothing)" }
            }
            td data-label="Decision" { span.state { (word) } }
            td data-label="Reason" { (sentence(&rule.reason)) }
            td data-label="Limits" { span.id { (rule.policy.as_deref().unwrap_or("–")) } }
            td.number data-label="Free again in" {
                @match rule.retry_in_seconds {
                    Some(0) => "now",
                    Some(seconds) => (text::span(std::time::Duration::from_secs(seconds))),
                    None => "–",
                }
            }
        }
    }
}

const fn verdict(allowed: Option<bool>) -> (&'static str, &'static str) {
    match allowed {
        Some(true) => ("active", "allowed"),
        Some(false) => ("full", "denied"),
        None => ("near", "not known"),
    }
}

/// Makes a sentence of a reason.
fn sentence(reason: &str) -> String {
    let mut letters = reason.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}
