use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use maud::{Markup, html};
use rl_core::Subject;
use rl_records::{ActiveLimits, AuditQuery, RecordQuery};

use super::active::SelectedTime;
use super::consumer_id::check_consumer_id;
use super::failure::Failure;
use super::fields::Fields;
use super::page::{Tab, confirmation, page};
use super::site::Site;
use super::visitor::Visitor;
use super::{active, blocks, changes, daily, tiers, timeline, usage};
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
    let subject = Subject::consumer(id);
    let now = context.now();
    let time = SelectedTime::read(query.get("at"), now);

    let after = query.non_empty("after").and_then(|cursor| cursor.parse().ok());
    let records = RecordQuery { after, limit: PAGE, ..RecordQuery::of_consumer(id) };
    let records = context.records.list(&records).await?;
    let limits = context.records.active_limits_by_rule(&subject, time.time).await?;
    let limits_now = match time.is_now {
        true => limits.clone(),
        false => context.records.active_limits_by_rule(&subject, now).await?,
    };
    let is_blocked = limits_now.get(&None).is_some_and(ActiveLimits::is_blocked);
    let history = AuditQuery { consumer: Some(id.into()), limit: 10, ..AuditQuery::default() };
    let history = context.records.audit_log().entries(&history).await?;
    let member = context.records.tiers().member(&subject).await?;
    let tiers = tiers::visible(&site, &visitor).await?;

    let main = html! {
        p.crumb { a href=(site.link("/consumers", &[])) { "Consumers" } }
        div.head {
            h1.id { (id) }
            @if visitor.actor.has(Role::CanCreateRateLimits) {
                div.inline {
                    @if !is_blocked {
                        a.button href=(site.link("/raise", &[("id", id)])) { "Raise the limits" }
                        a.button.danger href=(site.link("/block", &[("id", id)])) { "Block" }
                    }
                    a.button.main href=(site.link("/record/new", &[("consumer", id)])) { "Add limits" }
                }
            }
        }
        (confirmation(query.get("done")))
        (blocks::banners(&site, &visitor, &subject).await?)
        (usage::section(&site, &visitor, &subject).await?)
        (active::section(&site, &visitor, id, time, &limits))
        @if let Some(note) = note_on_unenforced_records(context, &subject) {
            p.problem { (note) }
        }
        (daily::section(&site, id).await?)
        section aria-labelledby="records" {
            h2 #records { "Own limits" }
            @if records.records.is_empty() {
                p.empty { "This consumer has no limits of its own." }
            } @else {
                p.key aria-hidden="true" {
                    span.active { "active" } span.ahead { "scheduled" } span.over { "ended" } span.now { "now" }
                }
                (timeline::list(&site, &visitor, &records.records, now, time))
            }
            @if let Some(next) = &records.next {
                nav.pages aria-label="Pages of own limits" {
                    a rel="next" href=(site.link("/consumer", &[("id", id), ("after", &next.to_string())])) { "More own limits" }
                }
            }
        }
        (tiers::member_section(&site, &visitor, id, member.as_ref(), &tiers))
        p { a href=(site.link("/subscriptions", &[("consumer", id)])) { "Subscriptions of this consumer" } }
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
