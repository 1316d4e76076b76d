//! The page of all blocks, and the banners of a blocked subject.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use futures::future::try_join_all;
use maud::{Markup, html};
use rl_core::time::Timestamp;
use rl_core::{Realm, Subject};
use rl_records::{DatabaseError, Record};

use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, confirmation, form_token, page};
use super::site::Site;
use super::visitor::Visitor;
use super::{subject, text};
use crate::access::Role;

/// The stored end of a block without an end: the last second of the year 9999.
pub(super) const NEVER: Timestamp = Timestamp::from_secs(253_402_300_799);

/// The beginning of the year 9999. A block that ends after it counts as having no end.
const YEAR_9999: Timestamp = Timestamp::from_secs(253_370_764_800);

/// The number of blocks on the page of all blocks.
const SHOWN: u32 = 200;

/// Shows the active blocks, those that end first at the top.
pub(super) async fn list(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    let query = Fields::of_query(request.uri());
    let blocks = site.context.records.active_blocks(SHOWN).await?;
    let reasons = reasons(&site, &blocks).await?;
    let main = html! {
        h1 { "Blocks" }
        (confirmation(query.get("done")))
        @if may_block_others(&visitor) { (block_form(&site)) }
        @if blocks.is_empty() {
            p.empty.quiet-now { "Nothing is blocked." }
        } @else {
            table.list {
                thead { tr {
                    th scope="col" { "Subject" } th scope="col" { "Rule" } th scope="col" { "End" }
                    th scope="col" { "Reason" } th scope="col" { "By" }
                    th scope="col" { span.unseen { "Actions" } }
                } }
                tbody { @for (block, reason) in blocks.iter().zip(&reasons) {
                    (row(&site, &visitor, block, reason.as_deref()))
                } }
            }
            @if blocks.len() == SHOWN as usize {
                p.hint { "Only the " (SHOWN) " blocks that end first are shown." }
            }
        }
    };
    Ok(page(&site, Some(&visitor), "Blocks", Tab::Blocks, main))
}

fn row(site: &Site, visitor: &Visitor, block: &Record, reason: Option<&str>) -> Markup {
    let (id, subject) = (&block.content.subject_id, block.content.subject());
    html! {
        tr {
            th scope="row" {
                @if *subject.realm() != Realm::Consumer { (subject.realm().as_str()) " " }
                a.id.whole href=(subject::link(site, "/subject", &subject, &[])) title=(id) { (id) }
            }
            td data-label="Rule" { (block.content.rule.as_deref().unwrap_or("every rule")) }
            td data-label="End" { (end(block)) }
            td data-label="Reason" { (reason.unwrap_or("–")) }
            td data-label="By" { (block.updated_by) ", " time { (text::time(block.updated_at)) } " UTC" }
            td.number { (unblock_form(site, visitor, block, "blocks")) }
        }
    }
}

/// Returns whether a visitor may block any subject.
fn may_block_others(visitor: &Visitor) -> bool {
    visitor.actor.has(Role::CanCreateRateLimits) && visitor.actor.has(Role::CanSeeSubjectIds)
}

/// Renders the form that leads to the page that blocks a subject.
fn block_form(site: &Site) -> Markup {
    html! {
        form.filter method="get" action=(site.link("/block", &[])) {
            input type="hidden" name="back" value="blocks";
            div {
                label for="realm" { "Kind" }
                select #realm name="realm" {
                    // The one subject of all requests has no id, and is blocked from its page.
                    @for name in site.context.realm_names().iter().filter(|name| !matches!(&***name, "global" | "unknown")) {
                        option value=(name) { (name) }
                    }
                }
            }
            div {
                label for="id" { "Id" }
                input #id name="id" required maxlength="250" autocomplete="off" autocapitalize="off" spellcheck="false";
            }
            button type="submit" { "Block a subject" }
        }
    }
}

/// Renders one banner for each rule under which a subject is blocked, with the block that ends
/// last.
pub(super) async fn banners(
    site: &Site,
    visitor: &Visitor,
    subject: &Subject,
) -> Result<Markup, Failure> {
    // The blocks are sorted by their ends, so the map keeps the last one under each rule.
    let blocks = site.context.records.blocks_of(subject).await?.into_iter();
    let last = blocks.map(|block| (block.content.rule.clone(), block));
    let blocks: Vec<_> = last.collect::<BTreeMap<_, _>>().into_values().collect();
    let reasons = reasons(site, &blocks).await?;
    Ok(html! {
        @for (block, reason) in blocks.iter().zip(&reasons) {
            div.banner {
                div {
                    @match &block.content.rule {
                        None => p { strong { "Blocked " (end(block)) "." } " Every rule that takes its limits from the database denies the calls of this subject." },
                        Some(rule) => p {
                            strong { "Blocked under the rule " (rule) " " (end(block)) "." }
                            " Every call that this rule counts is denied."
                        },
                    }
                    @if let Some(reason) = reason { p { "Reason: " (reason) } }
                    p.hint { "By " (block.updated_by) " at " (text::time(block.updated_at)) " UTC." }
                }
                (unblock_form(site, visitor, block, ""))
            }
        }
    })
}

/// Renders the button that lifts the blocks of a subject under the rule of `block`.
pub(super) fn unblock_form(site: &Site, visitor: &Visitor, block: &Record, back: &str) -> Markup {
    let subject = block.content.subject();
    let title = subject::title(&subject);
    let (rule, under) = match &block.content.rule {
        Some(rule) => (&**rule, format!(" under the rule {rule}")),
        None => ("", String::new()),
    };
    html! {
        @if visitor.actor.has(Role::CanDeleteRateLimits) {
            form method="post" action=(site.link("/unblock", &[])) {
                (form_token(visitor))
                (subject::fields(&subject))
                input type="hidden" name="rule" value=(rule);
                input type="hidden" name="back" value=(back);
                button.quiet[back == "now"] #{ "unblock-" (block.id) } type="submit" aria-label={ "Unblock " (title) (under) } { "Unblock" }
            }
        }
    }
}

/// Formats the end of a block.
fn end(block: &Record) -> String {
    let end = block.content.to_date;
    if end >= YEAR_9999 { "for ever".to_owned() } else { format!("until {} UTC", text::time(end)) }
}

/// Reads the last reason of each block.
async fn reasons(site: &Site, blocks: &[Record]) -> Result<Vec<Option<String>>, DatabaseError> {
    let history = site.context.records.audit_log();
    try_join_all(blocks.iter().map(|block| history.reason_of(block))).await
}
