//! The consumers that called in a month, with their sums.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use maud::{Markup, html};
use rl_records::{Day, MonthQuery, MonthRow, UsageOrder};

use super::daily::{WORDS, cells, format_of, words};
use super::failure::Failure;
use super::fields::Fields;
use super::now::choice;
use super::page::{Tab, page};
use super::site::Site;
use super::visitor::Visitor;
use crate::usage_export::Export;
use crate::wire::{month_text, parse_month};

/// The number of consumers on a page.
const PAGE: u32 = 50;

/// The number of months that the form offers: those that are kept by default.
const MONTHS: usize = 14;

/// The orders: the word in the query, the label, and the order.
const ORDERS: [(&str, &str, UsageOrder); 4] = [
    ("allowed", "Most allowed calls", UsageOrder::Allowed),
    ("denied", "Most denied calls", UsageOrder::Denied),
    ("cost", "Highest cost", UsageOrder::Units),
    ("id", "Id", UsageOrder::Subject),
];

fn query(site: &Site, visitor: &Visitor, fields: &Fields) -> MonthQuery {
    let this_month = Day::of(site.context.now()).month();
    let month = parse_month(fields.get("month")).unwrap_or(this_month);
    let order = ORDERS.iter().find(|(word, ..)| *word == fields.get("sort")).unwrap_or(&ORDERS[0]);
    let text = |name: &str| fields.non_empty(name).map(ToOwned::to_owned);
    MonthQuery {
        search: text("search"),
        subjects: visitor.actor.applications().map(ToOwned::to_owned),
        rule: text("rule"),
        order: order.2,
        after: fields.get("after").parse().ok(),
        before: fields.get("before").parse().ok(),
        limit: PAGE,
        ..MonthQuery::new(month)
    }
}

/// Shows the list.
pub(super) async fn list(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Markup, Failure> {
    let fields = Fields::of_query(request.uri());
    let query = query(&site, &visitor, &fields);
    let usage = site.context.records.usage();
    let found = usage.month(&query).await?;
    let sum = usage.sum_of_month(&query).await?;
    let month = month_text(query.month);
    let link = |page: &str, more: &[(&str, &str)]| {
        let kept = ["search", "rule", "sort"].map(|name| (name, fields.get(name)));
        let all = [("month", month.as_str())].into_iter().chain(kept).chain(more.iter().copied());
        let all: Vec<_> = all.filter(|(_, value)| !value.is_empty()).collect();
        site.link(page, &all)
    };
    let main = html! {
        div.head {
            h1 { "Usage in " (month) }
            @if !found.rows.is_empty() {
                p.inline {
                    a.button href=(link("/months/export", &[("format", "csv")])) download { "Export CSV" }
                    a.button href=(link("/months/export", &[("format", "json")])) download { "Export JSON" }
                }
            }
        }
        (filter_form(&site, &fields, &query))
        @if found.rows.is_empty() {
            p.empty.quiet-now { "No calls of consumers are recorded in this month." }
        } @else {
            p { (words(&sum)) "." }
            (table(&site, &found.rows))
        }
        @if found.previous.is_some() || found.next.is_some() {
            nav.pages aria-label="Pages" {
                @if let Some(previous) = &found.previous {
                    a rel="prev" href=(link("/months", &[("before", &previous.to_string())])) { "Previous page" }
                }
                @if let Some(next) = &found.next {
                    a rel="next" href=(link("/months", &[("after", &next.to_string())])) { "Next page" }
                }
            }
        }
        p.hint { (WORDS) }
        p.hint {
            @if query.rule.is_none() {
                "A call counts under each rule that matches it. For the calls of one rule, select it. "
            }
            "Months are in UTC. Calls of the last minute may be missing."
        }
    };
    Ok(page(&site, Some(&visitor), "Usage", Tab::Usage, main))
}

/// Sends the list as a file.
pub(super) async fn export(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
    request: Request,
) -> Result<Response, Failure> {
    let fields = Fields::of_query(request.uri());
    let query = query(&site, &visitor, &fields);
    let format = format_of(&fields)?;
    Ok(Export::Month(query).respond(&site.context.records, format).await?)
}

fn filter_form(site: &Site, fields: &Fields, query: &MonthQuery) -> Markup {
    let path = site.link("/months", &[]);
    let this_month = Day::of(site.context.now()).month();
    let before = |month: &Day| Some(month.plus(-1).month());
    let mut months: Vec<_> = std::iter::successors(Some(this_month), before).take(MONTHS).collect();
    months.push(query.month.month());
    months.sort_unstable();
    months.dedup();
    // All applications share the rules, so an actor of some of them sees no list of rules.
    let rules = match query.subjects {
        None => site.context.limiter.rule_names().unwrap_or_default(),
        Some(_) => Vec::new(),
    };
    let is_set = ["search", "rule", "month"].iter().any(|name| fields.non_empty(name).is_some());
    html! {
        form.filter method="get" action=(path) role="search" {
            div {
                label for="month" { "Month" }
                select #month name="month" {
                    @for month in months.iter().rev() {
                        option value=(month_text(*month)) selected[*month == query.month.month()] { (month_text(*month)) }
                    }
                }
            }
            div {
                label for="search" { "Id begins with" }
                input #search type="search" name="search" value=(fields.get("search"))
                    maxlength="250" autocapitalize="off" spellcheck="false";
            }
            (choice("rule", "Rule", "All", fields.get("rule"), rules))
            div {
                label for="sort" { "Order by" }
                select #sort name="sort" {
                    @for (word, label, order) in ORDERS {
                        option value=(word) selected[order == query.order] { (label) }
                    }
                }
            }
            button.main type="submit" { "Show" }
            @if is_set { a href=(path) { "All" } }
        }
    }
}

fn table(site: &Site, rows: &[MonthRow]) -> Markup {
    html! {
        table.list {
            thead { tr {
                th scope="col" { "Consumer" }
                th.number scope="col" { "Allowed" } th.number scope="col" { "Denied" }
                th.number scope="col" { "In shadow" } th.number scope="col" { "Cost" }
            } }
            tbody { @for row in rows { tr {
                th scope="row" {
                    @match &row.subject {
                        Some(id) => a.id.whole href=(site.consumer_link(id)) title=(id) { (id) },
                        None => "Others, which have no row of their own",
                    }
                }
                (cells(&row.counts))
            } } }
        }
    }
}
