//! The list of consumers, with their limits, their use and their state.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Request, State};
use futures::future::join_all;
use maud::{Markup, html};
use rl_core::{Decision, Subject};
use rl_records::{ConsumerQuery, ConsumerSummary};
use tokio::time::timeout;

use super::failure::Failure;
use super::fields::Fields;
use super::now::choice;
use super::page::{Tab, page};
use super::site::Site;
use super::visitor::Visitor;
use super::{text, tiers, usage};
use crate::context::Context;
use crate::subject_rules::SubjectRules;

/// The number of consumers on a page.
const PAGE: u32 = 50;

/// The number of consumers among which a page looks for those in a state, because only their
/// counters show it.
const SEARCHED: u32 = 250;

/// The longest time for which the page waits for the counters.
const TIMEOUT: Duration = Duration::from_millis(800);

/// The states by which the list can be filtered: the word in the query, and the label.
const STATES: [(&str, &str); 4] =
    [("blocked", "Blocked"), ("full", "Used up"), ("near", "From 80 %"), ("ok", "OK")];

/// A consumer in the list.
struct Row {
    consumer: ConsumerSummary,
    /// The limits as text, as `10/second, 1000/hour`.
    limits: String,
    /// The used part of the limit that is used most, in thousandths, and its name.
    most_used: Option<(u64, String)>,
    /// One of [`STATES`], or `unknown` if the counters cannot be read.
    state: &'static str,
}

impl Row {
    fn new(consumer: ConsumerSummary, usage: Option<&Decision>) -> Self {
        let Some(usage) = usage else {
            return Self { consumer, limits: "–".to_owned(), most_used: None, state: "unknown" };
        };
        let limits: Vec<_> = usage.limits().map(|status| status.limit().to_string()).collect();
        let used = usage.limits().map(|status| {
            let used = usage::thousandths(status.used(), status.max());
            // A limit with less than a thousandth remaining is not used up yet.
            (used.min(if status.remaining() > 0 { 999 } else { 1_000 }), status.name().to_owned())
        });
        let most_used = used.max_by_key(|(used, _)| *used);
        let is_blocked = usage.policy().is_some_and(|policy| policy.block().is_some())
            || usage.limits().any(|status| status.max() == 0);
        let state = match &most_used {
            _ if is_blocked => "blocked",
            Some((1_000.., _)) => "full",
            Some((800.., _)) => "near",
            _ => "ok",
        };
        let limits = match &limits[..] {
            _ if is_blocked => "–".to_owned(),
            [] => "no limit".to_owned(),
            limits => limits.join(", "),
        };
        Self { consumer, limits, most_used, state }
    }

    /// Returns the state as a word for the style sheet, and as a text for display.
    fn state(&self) -> (&'static str, String) {
        match (self.state, &self.most_used) {
            ("blocked", _) => ("full", "blocked".to_owned()),
            ("full", _) => ("full", "used up".to_owned()),
            ("near", Some((used, _))) => ("near", format!("{} %", used / 10)),
            ("ok", _) => ("open", "OK".to_owned()),
            _ => ("none", "not known".to_owned()),
        }
    }
}

/// Shows the list.
pub(super) async fn list(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    let fields = Fields::of_query(request.uri());
    let text_of = |name: &str| fields.non_empty(name).map(ToOwned::to_owned);
    let state = fields.non_empty("state");
    let query = ConsumerQuery {
        search: text_of("search"),
        tier: text_of("tier"),
        consumers: visitor.actor.applications().map(ToOwned::to_owned),
        after: text_of("after"),
        before: text_of("before"),
        limit: if state.is_some() { SEARCHED } else { PAGE },
    };
    let context = &site.context;
    let found = context.records.consumers(&query, context.now()).await?;
    let total = context.records.count_consumers(&query).await?;
    let tiers = tiers::visible(&site, &visitor).await?;
    let searched = found.consumers.len();
    let (mut rows, is_known) = rows(context, found.consumers).await;
    if let Some(state) = state {
        rows.retain(|row| row.state == state);
    }
    if fields.get("sort") == "use" {
        let used = |row: &Row| row.most_used.as_ref().map(|(used, _)| *used);
        rows.sort_by_key(|row| std::cmp::Reverse((row.state == "blocked", used(row))));
    }
    let search = query.search.as_deref();
    let pages = |name: &str, cursor: &str| {
        let kept = ["search", "tier", "state", "sort"].map(|name| (name, fields.get(name)));
        let all = kept.into_iter().chain([(name, cursor)]);
        let all: Vec<_> = all.filter(|(_, value)| !value.is_empty()).collect();
        site.link("/consumers", &all)
    };
    let main = html! {
        div.head {
            h1 { "Consumers" }
            p { (counted(total)) }
        }
        (filter_form(&site, &fields, tiers.into_iter().map(|tier| tier.content.name).collect()))
        @if !is_known { p.problem role="status" { "The counters cannot be read, so the use and the states are not known." } }
        (table(&site, &rows))
        @if state.is_some() {
            p.hint { "In this state: " (rows.len()) " of the " (searched) " consumers that this page has looked at." }
        }
        @if let Some(search) = search
            && visitor.actor.sees_consumer(search)
            && rows.iter().all(|row| row.consumer.consumer_id != search)
        {
            p {
                "Not in the list? "
                a href=(site.consumer_link(search)) { "Open " b.id { (search) } }
                " all the same: a consumer without limits of its own has counters, too."
            }
        }
        @if found.previous.is_some() || found.next.is_some() {
            nav.pages aria-label="Pages" {
                @if let Some(previous) = &found.previous {
                    a rel="prev" href=(pages("before", previous)) { "Previous page" }
                }
                @if let Some(next) = &found.next {
                    a rel="next" href=(pages("after", next)) { "Next page" }
                }
            }
        }
    };
    Ok(page(&site, Some(&visitor), "Consumers", Tab::Consumers, main))
}

/// Reads the use of consumers. Also returns whether the counters could be read.
async fn rows(context: &Context, consumers: Vec<ConsumerSummary>) -> (Vec<Row>, bool) {
    let usage = async |consumer: &ConsumerSummary| {
        let subject = Subject::consumer(&consumer.consumer_id);
        let found = SubjectRules::find(context, subject, None).ok()?;
        let main = found.rules.get(found.main()?)?;
        found.read_usage(main.as_ref().map(|rule| &*rule.name)).await.ok()
    };
    let usages = timeout(TIMEOUT, join_all(consumers.iter().map(usage))).await;
    let usages = usages.unwrap_or_else(|_| vec![None; consumers.len()]);
    let is_known = usages.is_empty() || usages.iter().any(Option::is_some);
    let rows = consumers.into_iter().zip(usages);
    (rows.map(|(consumer, usage)| Row::new(consumer, usage.as_ref())).collect(), is_known)
}

fn counted(total: Option<u64>) -> String {
    match total {
        Some(1) => "1 consumer".to_owned(),
        Some(total) => format!("{} consumers", text::number(total)),
        None => format!("More than {} consumers", text::number(10_000)),
    }
}

fn filter_form(site: &Site, fields: &Fields, tiers: Vec<String>) -> Markup {
    let path = site.link("/consumers", &[]);
    let is_set = ["search", "tier", "state"].iter().any(|name| fields.non_empty(name).is_some());
    html! {
        form.filter method="get" action=(path) role="search" {
            div {
                label for="search" { "Id begins with" }
                input #search type="search" name="search" value=(fields.get("search"))
                    maxlength="250" autocapitalize="off" spellcheck="false";
            }
            div {
                label for="state" { "State" }
                select #state name="state" {
                    option value="" { "All" }
                    @for (value, label) in STATES { option value=(value) selected[fields.get("state") == value] { (label) } }
                }
            }
            (choice("tier", "Tier", "All", fields.get("tier"), tiers))
            div {
                label for="sort" { "Order by" }
                select #sort name="sort" {
                    option value="" { "Id" }
                    option value="use" selected[fields.get("sort") == "use"] { "Use, on each page" }
                }
            }
            button.main type="submit" { "Show" }
            @if is_set { a href=(path) { "All" } }
        }
    }
}

fn table(site: &Site, rows: &[Row]) -> Markup {
    html! {
        @if rows.is_empty() {
            p.empty.quiet-now { "No consumer with limits of its own or a tier matches." }
        } @else {
            table.list.consumers {
                thead { tr {
                    th scope="col" { "Consumer" } th scope="col" { "Tier" } th scope="col" { "Limits" }
                    th scope="col" { "Use of the fullest limit" } th scope="col" { "State" }
                } }
                tbody { @for row in rows {
                    @let (state, word) = row.state();
                    @let id = &row.consumer.consumer_id;
                    tr data-state=(state) {
                        th scope="row" { a.id.whole href=(site.consumer_link(id)) title=(id) { (id) } }
                        td data-label="Tier" { (row.consumer.tier.as_deref().unwrap_or("–")) }
                        td.limits data-label="Limits" { (row.limits) }
                        td.use data-label="Use of the fullest limit" {
                            @if let Some((used, name)) = &row.most_used {
                                (usage::meter(None, if row.state == "blocked" { 1_000 } else { *used }))
                                @if row.state != "blocked" { span { (used / 10) " % of " (name) } }
                            } @else { "–" }
                        }
                        td data-label="State" { span.state { (word) } }
                    }
                } }
            }
        }
    }
}
