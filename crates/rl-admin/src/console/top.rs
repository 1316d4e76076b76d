//! The subjects with the most denials, and those with the most granted units.

use maud::{Markup, html};
use rl_core::{Realm, Subject};

use super::site::Site;
use super::text;
use super::visitor::Visitor;
use crate::access::Role;
use crate::last_hour::TopEntry;

/// The number of subjects in a list.
const SHOWN: usize = 10;

/// Renders the subjects with the largest counts of the last hour.
pub(super) fn section(
    site: &Site,
    visitor: &Visitor,
    id: &str,
    title: &str,
    unit: &str,
    entries: &[TopEntry],
) -> Markup {
    let mut entries: Vec<&TopEntry> = entries.iter().filter(|entry| entry.last_hour > 0).collect();
    entries.retain(|entry| visitor.actor.sees(&entry.subject));
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.last_hour));
    entries.truncate(SHOWN);
    let has_limits = entries.iter().any(|entry| entry.denied_by.is_some());
    html! {
        section aria-labelledby=(id) {
            h2 #(id) { (title) }
            @if entries.is_empty() {
                p.empty { "None in this time." }
            } @else {
                table.list {
                    thead { tr {
                        th scope="col" { "Subject" }
                        @if has_limits { th scope="col" { "Last denied by" } }
                        th.number scope="col" { (unit) " in the last hour" }
                        th.number scope="col" { "Since the start" }
                    } }
                    tbody { @for entry in entries { tr {
                        th scope="row" { (subject(site, visitor, &entry.subject)) }
                        @if has_limits { td data-label="Last denied by" { (limit(entry)) } }
                        td.number data-label={ (unit) " in the last hour" } { (text::number(entry.last_hour)) }
                        td.number data-label="Since the start" { (text::number(entry.count)) }
                    } } }
                }
                p.hint { "Estimates: under load, one decision in a millisecond is recorded, and stands for those before it." }
            }
        }
    }
}

/// Returns the rule and the limit that denied a subject last, as `consumers/minute`.
fn limit(entry: &TopEntry) -> String {
    match &entry.denied_by {
        Some((rule, limit)) if rule.is_empty() => limit.clone(),
        Some((rule, limit)) => format!("{rule}/{limit}"),
        None => "–".to_owned(),
    }
}

/// Renders a subject: its id if the visitor may see it, and otherwise its hash.
fn subject(site: &Site, visitor: &Visitor, subject: &Subject) -> Markup {
    let realm = subject.realm().as_str();
    html! {
        @if !visitor.actor.has(Role::CanSeeSubjectIds) {
            (realm) " " span.id { (subject.redacted()) }
        } @else if let (Realm::Consumer, Some(id)) = (subject.realm(), subject.id().as_text()) {
            (realm) " " a.id href=(site.consumer_link(id)) { (id) }
        } @else {
            (realm) " " span.id { (subject.id()) }
        }
    }
}
