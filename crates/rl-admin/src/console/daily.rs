//! The calls of a consumer on each of the last days: pictures, numbers, and exports.
//!
//! ```text
//!  50 calls                        the largest value that the scale shows
//!        ▂   ▁       ▂▂  ▁         denied calls, on top of
//!    ▃▅█▇█▁▁▃█       ██▇▇█         allowed calls: one bar for each day
//!  11-01     11-08     11-15       labels, placed in percent so that the text keeps its size
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use maud::{Markup, html};
use rl_core::time::Timestamp;
use rl_records::{DatabaseError, Day, UsageCounts, UsageQuery, UsageRow};

use super::chart::round_up;
use super::consumer_id::check_consumer_id;
use super::failure::Failure;
use super::fields::Fields;
use super::site::Site;
use super::text;
use crate::usage_export::{Export, ExportFormat};

/// The number of days that the page of a consumer shows.
const DAYS: i64 = 30;

/// The largest number of rules that have a picture. The table has all rules.
const PICTURES: usize = 4;

/// Explains the columns of [`cells`].
pub(super) const WORDS: &str = "In shadow: allowed calls that a limit in shadow would have denied. Cost: what the \
    calls took from the limits, such as tokens. It is the number of allowed calls if each costs one.";

/// The calls of each day under a rule.
type Days = BTreeMap<Day, UsageCounts>;

fn query(id: &str, now: Timestamp) -> UsageQuery {
    let today = Day::of(now);
    UsageQuery {
        subject: Some(id.to_owned()),
        limit: 1_000,
        ..UsageQuery::new(today.plus(1 - DAYS), today)
    }
}

/// Reads the rows of all pages. There is one for each day and rule.
async fn rows_of(site: &Site, mut query: UsageQuery) -> Result<Vec<UsageRow>, DatabaseError> {
    let mut rows = Vec::new();
    loop {
        let page = site.context.records.usage().days(&query).await?;
        rows.extend(page.rows);
        let Some(next) = page.next else { return Ok(rows) };
        query.after = Some(next);
    }
}

/// Renders the calls of a consumer in the last days.
pub(super) async fn section(site: &Site, id: &str) -> Result<Markup, DatabaseError> {
    let query = query(id, site.context.now());
    let rows = rows_of(site, query.clone()).await?;
    let mut rules = BTreeMap::<Option<&str>, Days>::new();
    for row in &rows {
        rules.entry(row.rule.as_deref()).or_default().insert(row.day, row.counts);
    }
    let mut rules: Vec<_> = rules.into_iter().collect();
    rules.sort_by_key(|(_, days)| std::cmp::Reverse(calls(&sum(days))));
    let has_rules = rules.iter().any(|(rule, _)| rule.is_some());
    let export = |format| site.link("/consumer/export", &[("id", id), ("format", format)]);
    Ok(html! {
        section aria-labelledby="days" {
            h2 #days { "Last " (DAYS) " days" }
            @if rules.is_empty() {
                p.empty { "No calls are recorded in these days." }
            } @else {
                @for (rule, days) in rules.iter().take(PICTURES) {
                    @if let Some(rule) = rule { h3 { "Rule " (rule) } }
                    (figures(&sum(days)))
                    (picture(&query, days))
                }
                @if rules.len() > PICTURES {
                    p.hint { "The numbers below also contain the other rules, which have fewer calls." }
                }
                (numbers(&rows, has_rules))
                p.exports {
                    "Export these days: "
                    a href=(export("csv")) download { "CSV" } " "
                    a href=(export("json")) download { "JSON" }
                }
            }
            p.hint { "Days are in UTC. Calls of the last minute may be missing." }
        }
    })
}

/// Sends the calls of the last days as a file.
pub(super) async fn export(
    State(site): State<Arc<Site>>,
    request: Request,
) -> Result<Response, Failure> {
    let fields = Fields::of_query(request.uri());
    let id = check_consumer_id(fields.raw("id"))?;
    let query = query(id, site.context.now());
    let format = format_of(&fields)?;
    Ok(Export::Days(query).respond(&site.context.records, format).await?)
}

/// Reads the format of an export.
pub(super) fn format_of(fields: &Fields) -> Result<ExportFormat, Failure> {
    match fields.get("format") {
        "csv" => Ok(ExportFormat::Csv),
        "json" => Ok(ExportFormat::Json),
        _ => Err(Failure::no_page()),
    }
}

fn sum(days: &Days) -> UsageCounts {
    days.values().fold(UsageCounts::default(), |mut sum, counts| {
        sum += *counts;
        sum
    })
}

const fn calls(counts: &UsageCounts) -> u64 {
    counts.allowed.saturating_add(counts.denied)
}

/// Describes sums in a sentence.
pub(super) fn words(counts: &UsageCounts) -> String {
    let calls = if counts.allowed == 1 { "call" } else { "calls" };
    let mut words = format!(
        "{} {calls} allowed, {} denied",
        text::number(counts.allowed),
        text::number(counts.denied)
    );
    if counts.would_be_denied > 0 {
        words.push_str(&format!(
            ", {} allowed only because limits are in shadow",
            text::number(counts.would_be_denied)
        ));
    }
    words
}

fn figures(sum: &UsageCounts) -> Markup {
    html! { p.days-sum { (words(sum)) "." } }
}

/// Renders a bar for each day.
fn picture(query: &UsageQuery, days: &Days) -> Markup {
    let largest = days.values().map(calls).max().unwrap_or(0);
    let scale = round_up(largest as f64);
    let all = (0..DAYS).map(|number| query.from.plus(number));
    let width = 100.0 / DAYS as f64;
    let bars: Vec<_> = all
        .enumerate()
        .map(|(index, day)| {
            let counts = days.get(&day).copied().unwrap_or_default();
            // A day with a single call must be visible.
            let height = |calls: u64| {
                let height = calls as f64 * 100.0 / scale;
                if calls > 0 { height.max(1.0) } else { 0.0 }
            };
            (day, index as f64 * width, counts, [height(counts.allowed), height(counts.denied)])
        })
        .collect();
    let label = format!("Calls on each of the last {DAYS} days. {}.", words(&sum(days)));
    html! {
        div.chart.days role="img" aria-label=(label) {
            p.scale aria-hidden="true" {
                span { (text::number(scale as u64)) " calls" }
                span.legend { span.sign.allowed {} "allowed" span.sign.denied {} "denied" }
            }
            svg.plot width="100%" height="120" aria-hidden="true" focusable="false" {
                @for y in ["0", "50%", "100%"] { line.rule x1="0" x2="100%" y1=(y) y2=(y) {} }
                @for (day, x, counts, [allowed, denied]) in &bars {
                    g {
                        title { (day) ": " (words(counts)) }
                        rect.ground x=(percent(*x)) width=(percent(width)) height="100%" {}
                        rect.allowed x=(percent(x + width * 0.12)) width=(percent(width * 0.76))
                            y=(percent(100.0 - allowed)) height=(percent(*allowed)) {}
                        rect.denied x=(percent(x + width * 0.12)) width=(percent(width * 0.76))
                            y=(percent((100.0 - allowed - denied).max(0.0))) height=(percent(*denied)) {}
                    }
                }
            }
            svg.times width="100%" height="20" aria-hidden="true" focusable="false" {
                @for (index, (day, x, ..)) in bars.iter().enumerate() {
                    @if index % 7 == 1 {
                        text x=(percent(x + width / 2.0)) y="15" text-anchor="middle" {
                            (day.to_string().get(5..).unwrap_or_default())
                        }
                    }
                }
            }
        }
    }
}

fn percent(part: f64) -> String {
    format!("{part:.2}%")
}

/// Renders the numbers as a table, the newest first.
fn numbers(rows: &[UsageRow], has_rules: bool) -> Markup {
    html! {
        details {
            summary { "Numbers of each day" }
            table.list {
                thead { tr {
                    th scope="col" { "Day (UTC)" }
                    @if has_rules { th scope="col" { "Rule" } }
                    th.number scope="col" { "Allowed" } th.number scope="col" { "Denied" }
                    th.number scope="col" { "In shadow" } th.number scope="col" { "Cost" }
                } }
                tbody { @for UsageRow { day, rule, counts, .. } in rows.iter().rev() { tr {
                    th scope="row" { (day) }
                    @if has_rules { td data-label="Rule" { (rule.as_deref().unwrap_or("–")) } }
                    (cells(counts))
                } } }
            }
            p.hint { (WORDS) }
        }
    }
}

/// Renders the cells of sums: allowed, denied, in shadow, cost.
pub(super) fn cells(counts: &UsageCounts) -> Markup {
    html! {
        td.number data-label="Allowed" { (text::number(counts.allowed)) }
        td.number data-label="Denied" { (text::number(counts.denied)) }
        td.number data-label="In shadow" { (text::number(counts.would_be_denied)) }
        td.number data-label="Cost" {
            @if counts.units < 0 { "−" } (text::number(counts.units.unsigned_abs()))
        }
    }
}
