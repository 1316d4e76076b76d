use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use maud::{Markup, html};
use rl_core::Subject;
use rl_records::{AuditQuery, RecordQuery};

use super::active::Asked;
use super::failure::Failure;
use super::fields::{Fields, link};
use super::page::{Tab, done, page};
use super::session::Visitor;
use super::{Console, active, changes, tiers, timeline, usage};
use crate::Role;

/// Records on one page.
const PAGE: u32 = 200;

/// All about one consumer.
pub(super) async fn show(
    State(console): State<Console>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    let query = Fields::read(request.uri().query().unwrap_or_default().as_bytes());
    let id = known_id(query.raw("id"))?;
    let (admin, now) = (console.admin(), console.admin().now());
    let asked = Asked::read(query.get("at"), now);

    let after = query.given("after").and_then(|place| place.parse().ok());
    let records =
        RecordQuery { consumer: Some(id.into()), after, limit: PAGE, ..RecordQuery::default() };
    let records = admin.records().list(&records).await?;
    let limits = admin.records().active_limits(id, asked.time).await?;
    let history = AuditQuery { consumer: Some(id.into()), before: None, limit: 10 };
    let history = admin.records().audit_log().entries(&history).await?;
    let member = admin.records().tiers().member(&Subject::consumer(id)).await?;
    let known = admin.records().tiers().list(None, 1_000).await?;

    let here = |path: &str| link(&format!("{}{path}", console.path()), &[("id", id)]);
    let main = html! {
        p.crumb { a href=(console.path()) { "Consumers" } }
        div.head {
            h1.id { (id) }
            @if visitor.actor.has(Role::CanCreateRateLimits) {
                a.button href=(link(&format!("{}/record/new", console.path()), &[("consumer", id)])) { "Add a record" }
            }
        }
        (done(query.get("done")))
        section aria-labelledby="calls" {
            div.head {
                h2 #calls { "Calls" }
                p.pulse {
                    span #pulse { "As of the loading of this page." }
                    " " a #refresh href=(here("/consumer")) { "Refresh" }
                    button.quiet #pause type="button" hidden { "Pause" }
                }
            }
            @if !admin.limiter().is_enabled() {
                p.problem { "The limiter is switched off: every call passes, and none is counted." }
            }
            (usage::bars(&console, id).await)
            p.unseen #news role="status" {}
            p.problem #stale role="status" hidden {
                "The limits of this consumer have changed. The page below is out of date. "
                a href=(here("/consumer")) { "Reload" }
            }
            (usage::reset_form(&console, &visitor, id))
        }
        (active::section(&console, &visitor, id, asked, &limits))
        section aria-labelledby="records" {
            h2 #records { "Records" }
            @if records.records.is_empty() {
                p.empty { "There is no record of this consumer." }
            } @else {
                p.key aria-hidden="true" {
                    span.active { "active" } span.ahead { "not begun" } span.over { "over" } span.now { "now" }
                }
                (timeline::list(&console, &visitor, &records.records, now, asked))
            }
            @if let Some(next) = &records.next {
                nav.pages aria-label="Pages of records" {
                    a rel="next" href=(link(&format!("{}/consumer", console.path()), &[("id", id), ("after", &next.to_string())])) { "More records" }
                }
            }
        }
        (tiers::of_consumer(&console, &visitor, id, member.as_ref(), &known))
        section aria-labelledby="changes" {
            h2 #changes { "Changes" }
            (changes::table(&console, &history, true))
            @if history.len() == 10 {
                p { a href=(link(&format!("{}/changes", console.path()), &[("consumer", id)])) { "All changes of this consumer" } }
            }
        }
    };
    Ok(page(&console, Some(&visitor), id, Tab::Consumers, main))
}

/// An id that a record can have.
pub(super) fn known_id(id: &str) -> Result<&str, Failure> {
    let fits = (1..=250).contains(&id.len()) && !id.chars().any(char::is_control);
    let message =
        "Expected the id of a consumer: 1 to 250 bytes of text without control characters.";
    let refuse = || Failure::new(StatusCode::BAD_REQUEST, "No such consumer", message);
    if fits { Ok(id) } else { Err(refuse()) }
}
