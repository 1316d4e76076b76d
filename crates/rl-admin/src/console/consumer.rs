use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use maud::{Markup, html};
use rl_core::Subject;
use rl_records::{AuditQuery, RecordQuery};

use super::active::SelectedTime;
use super::consumer_id::check_consumer_id;
use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, confirmation, page};
use super::site::Site;
use super::visitor::Visitor;
use super::{active, changes, tiers, timeline, usage};
use crate::access::Role;
use crate::subject_rules::note_on_unenforced_records;

/// The number of records on a page.
const PAGE: u32 = 200;

/// Shows the usage, the limits, the records and the history of a consumer.
pub(super) async fn show(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    let query = Fields::of_query(request.uri());
    let id = check_consumer_id(query.raw("id"))?;
    let context = &site.context;
    let now = context.now();
    let time = SelectedTime::read(query.get("at"), now);

    let after = query.non_empty("after").and_then(|cursor| cursor.parse().ok());
    let records = RecordQuery { after, limit: PAGE, ..RecordQuery::of_consumer(id) };
    let records = context.records.list(&records).await?;
    let limits = context.records.active_limits(id, time.time).await?;
    let history = AuditQuery { consumer: Some(id.into()), limit: 10, ..AuditQuery::default() };
    let history = context.records.audit_log().entries(&history).await?;
    let member = context.records.tiers().member(&Subject::consumer(id)).await?;
    let tiers = tiers::visible(&site, &visitor).await?;

    let here = site.consumer_link(id);
    let main = html! {
        p.crumb { a href=(site.path()) { "Consumers" } }
        div.head {
            h1.id { (id) }
            @if visitor.actor.has(Role::CanCreateRateLimits) {
                a.button href=(site.link("/record/new", &[("consumer", id)])) { "Add a record" }
            }
        }
        (confirmation(query.get("done")))
        section aria-labelledby="calls" {
            div.head {
                h2 #calls { "Calls" }
                p.pulse {
                    span #pulse { "As of the loading of this page." }
                    " " a #refresh href=(here) { "Refresh" }
                    button.quiet #pause type="button" hidden { "Pause" }
                }
            }
            @if !context.limiter.is_enabled() {
                p.problem { "The limiter is switched off: every call is allowed, and none is counted." }
            }
            (usage::bars(&site, id).await?)
            p.unseen #news role="status" {}
            p.problem #stale role="status" hidden {
                "The limits of this consumer have changed. The page below is out of date. "
                a href=(here) { "Reload" }
            }
            (usage::reset_form(&site, &visitor, id)?)
        }
        (active::section(&site, &visitor, id, time, &limits))
        @if let Some(note) = note_on_unenforced_records(context, &Subject::consumer(id)) {
            p.problem { (note) }
        }
        section aria-labelledby="records" {
            h2 #records { "Records" }
            @if records.records.is_empty() {
                p.empty { "There is no record of this consumer." }
            } @else {
                p.key aria-hidden="true" {
                    span.active { "active" } span.ahead { "scheduled" } span.over { "ended" } span.now { "now" }
                }
                (timeline::list(&site, &visitor, &records.records, now, time))
            }
            @if let Some(next) = &records.next {
                nav.pages aria-label="Pages of records" {
                    a rel="next" href=(site.link("/consumer", &[("id", id), ("after", &next.to_string())])) { "More records" }
                }
            }
        }
        (tiers::member_section(&site, &visitor, id, member.as_ref(), &tiers))
        section aria-labelledby="changes" {
            h2 #changes { "Changes" }
            (changes::table(&site, &history, true))
            @if history.len() == 10 {
                p { a href=(site.link("/changes", &[("consumer", id)])) { "All changes of this consumer" } }
            }
        }
    };
    Ok(page(&site, Some(&visitor), id, Tab::Consumers, main))
}
