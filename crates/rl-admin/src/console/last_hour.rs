//! The page about the last hour: the decisions, the denials, and the state of the store.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use maud::{Markup, html};
use rl_core::FailureKind;
use rl_core::stats::StoreStats;
use rl_core::time::Timestamp;

use super::chart::{Curve, Step, TimeAxis, chart, round_up, spark};
use super::page::{Tab, page};
use super::site::Site;
use super::text;
use super::top;
use super::visitor::Visitor;
use crate::access::Role;
use crate::last_hour::{HourReport, LimitSums, Sample, add_times, quantile};

const MINUTE: u64 = 60_000_000;

/// The number of limits in the table.
const SHOWN: usize = 12;

/// Shows the last hour.
pub(super) async fn show(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
) -> Markup {
    let report = site.context.last_hour.report();
    let axis = TimeAxis { start: report.start, end: report.now, begun: report.begun };
    let main = html! {
        div.head {
            h1 { "Last hour" }
            p.pulse {
                "As of " (text::time(report.now)) " UTC. " a href={ (site.path()) "/last-hour" } { "Refresh" }
            }
        }
        @if site.context.is_stand_alone {
            p.conflict role="note" {
                "This server is not the service, and decides no requests. To see the last hour of a service, \
                 mount the console in it, or read its metrics with Prometheus."
            }
        }
        @if report.is_partial() {
            p.note {
                "The counts begin at " (text::time(report.begun)) " UTC, "
                @if report.has_stepped_back {
                    "when the clock was set back. The times of earlier ones were wrong."
                } @else {
                    "when this process was started. Earlier ones were in the memory of the previous process."
                }
            }
        }
        @if visitor.actor.applications().is_none() {
            (decisions(&report, axis))
            (denials(&report, axis))
            (store(&site, &report, axis))
        } @else {
            p.note { "Your applications, as far as they are among the first of all subjects." }
        }
        @if !visitor.actor.has(Role::CanSeeSubjectIds) {
            p.note {
                "Subjects are shown as a keyed hash, as in the log, because your token does not have the role "
                (Role::CanSeeSubjectIds) "."
            }
        }
        (top::section(&site, &visitor, "denied", "Most denied subjects", "Denials", &report.top_denied))
        (top::section(&site, &visitor, "used", "Subjects with the highest use", "Use", &report.top_used))
    };
    page(&site, Some(&visitor), "Last hour", Tab::LastHour, main)
}

/// Returns a rate per second for each sample: `number` of the sample, divided by its length.
fn rates(samples: &[Sample], number: impl Fn(&Sample) -> u64) -> Vec<Step> {
    let rate = |sample: &Sample| {
        (sample.seconds() > 0.0).then(|| number(sample) as f64 / sample.seconds())
    };
    samples
        .iter()
        .map(|sample| Step { start: sample.start, end: sample.end, value: rate(sample) })
        .collect()
}

fn decisions(report: &HourReport, axis: TimeAxis) -> Markup {
    let [allowed, denied, shadow] = [
        report.sum(|sample| sample.allowed),
        report.sum(|sample| sample.denied),
        report.sum(|sample| sample.shadow),
    ];
    let failed = report.sum(|sample| sample.failed_closed);
    let all = allowed + denied + failed;
    let curve = |style, is_filled, number: fn(&Sample) -> u64| Curve {
        style,
        steps: rates(&report.samples, number),
        is_filled,
    };
    let curves = [
        curve("allowed", true, |sample| sample.allowed),
        curve("denied", false, |sample| sample.denied),
        curve("shadow", false, |sample| sample.shadow),
    ];
    let curves = if shadow > 0 { &curves[..] } else { &curves[..2] };
    let mean = |count: u64| text::rate(count as f64 * 1e6 / covered(report).max(1) as f64);
    let label = format!(
        "Decisions per second over the last hour. On average {} allowed, {} denied, and {} denied only in shadow.",
        mean(allowed),
        mean(denied),
        mean(shadow)
    );
    let rows = [
        ("allowed", "Allowed", allowed),
        ("denied", "Denied by limits", denied),
        ("shadow", "Denied only in shadow", shadow),
        ("failed", "Rejected without a decision", failed),
    ];
    html! {
        section aria-labelledby="decisions" {
            h2 #decisions { "Decisions per second" }
            @if all == 0 {
                p.empty { "No decisions in this time." }
            } @else {
                (chart(axis, curves, &label, |scale| format!("{} per second", text::rate(scale)), &[]))
                table.list {
                    thead { tr {
                        th scope="col" { "Decisions" } th.number scope="col" { "Number" }
                        th.number scope="col" { "Share" } th.number scope="col" { "Per second" }
                    } }
                    tbody { @for (style, name, count) in rows {
                        @if count > 0 || style != "failed" { tr {
                            th scope="row" { span.sign.(style) aria-hidden="true" {} (name) }
                            td.number data-label="Number" { (text::number(count)) }
                            td.number data-label="Share" { (text::share(count, all)) }
                            td.number data-label="Per second" { (mean(count)) }
                        } }
                    } }
                }
                (numbers(report))
            }
        }
    }
}

/// Returns the time in microseconds that the samples cover.
fn covered(report: &HourReport) -> u64 {
    report.samples.iter().map(|sample| sample.end.micros_since(sample.start)).sum()
}

/// Renders the numbers of the charts as a table, for people who cannot see the charts.
fn numbers(report: &HourReport) -> Markup {
    let sum = |samples: &[&Sample], number: fn(&Sample) -> u64| -> u64 {
        samples.iter().map(|sample| number(sample)).sum()
    };
    let time = |samples: &[&Sample], q: f64| {
        let counts = add_times(samples.iter().copied());
        quantile(&report.bounds, &counts, q).map_or("–".to_owned(), text::latency)
    };
    html! {
        details {
            summary { "Numbers of each five minutes" }
            table.list {
                thead { tr {
                    th scope="col" { "From (UTC)" }
                    th.number scope="col" { "Allowed" } th.number scope="col" { "Denied" }
                    th.number scope="col" { "In shadow" } th.number scope="col" { "Store failures" }
                    th.number scope="col" { "Median" } th.number scope="col" { "99 %" }
                } }
                tbody { @for (start, samples) in report.by_span(5 * MINUTE) { tr {
                    th scope="row" { (text::clock(start)) }
                    td.number data-label="Allowed" { (text::number(sum(&samples, |sample| sample.allowed))) }
                    td.number data-label="Denied" { (text::number(sum(&samples, |sample| sample.denied))) }
                    td.number data-label="In shadow" { (text::number(sum(&samples, |sample| sample.shadow))) }
                    td.number data-label="Store failures" { (text::number(sum(&samples, |sample| sample.store_failures))) }
                    td.number data-label="Median" { (time(&samples, 0.5)) }
                    td.number data-label="99 %" { (time(&samples, 0.99)) }
                } } }
            }
        }
    }
}

fn denials(report: &HourReport, axis: TimeAxis) -> Markup {
    let denials = report.denials();
    let has_rules = denials.iter().any(|sums| !sums.path.rule.is_empty());
    let curves: Vec<Curve> =
        denials.iter().take(SHOWN).map(|sums| curve_of(report, sums)).collect();
    let largest = curves.iter().flat_map(|curve| &curve.steps).filter_map(|step| step.value);
    let scale = round_up(largest.fold(0.0, f64::max));
    html! {
        section aria-labelledby="denials" {
            h2 #denials { "Denials by limit" }
            @if denials.is_empty() {
                p.empty { "No limit has denied a request in this time." }
            } @else {
                table.list.denials {
                    thead { tr {
                        @if has_rules { th scope="col" { "Rule" } }
                        th scope="col" { "Limit" }
                        th scope="col" { "Over the hour" }
                        th.number scope="col" { "Denials" } th.number scope="col" { "In shadow" }
                    } }
                    tbody { @for (sums, curve) in denials.iter().zip(&curves) { tr {
                        @if has_rules { td data-label="Rule" { (sums.path.rule) } }
                        th scope="row" { (sums.path.limit) }
                        td.over { (spark(axis, curve, scale)) }
                        td.number data-label="Denials" { (text::number(sums.over)) }
                        td.number data-label="In shadow" { (text::number(sums.shadow_over)) }
                    } } }
                }
                p.hint {
                    "Each picture shows 0 to " (text::rate(scale)) " denials per second."
                    @if denials.len() > SHOWN { " " (denials.len() - SHOWN) " more limits have denied requests." }
                }
            }
        }
    }
}

/// Returns the denials of a limit per second, in steps of a minute.
fn curve_of(report: &HourReport, sums: &LimitSums) -> Curve {
    let steps = report.by_span(MINUTE).into_iter().filter_map(|(_, samples)| {
        let (start, end) = (samples.first()?.start, samples.last()?.end);
        let all = samples.iter().flat_map(|sample| &sample.denials);
        let own = all.filter(|denials| denials.path == sums.path);
        let count: u64 = own.map(|denials| denials.over + denials.shadow_over).sum();
        let seconds = (end.micros_since(start) as f64 / 1e6).max(1.0);
        Some(Step { start, end, value: Some(count as f64 / seconds) })
    });
    let style = if sums.over > 0 { "denied" } else { "shadow" };
    Curve { style, steps: steps.collect(), is_filled: true }
}

fn store(site: &Site, report: &HourReport, axis: TimeAxis) -> Markup {
    let is_memory = matches!(report.stats.store, StoreStats::Memory(_));
    let quantiles = |style, q: f64| {
        let steps = report.by_span(MINUTE).into_iter().filter_map(|(_, samples)| {
            let value = quantile(&report.bounds, &add_times(samples.iter().copied()), q);
            Some(Step { start: samples.first()?.start, end: samples.last()?.end, value })
        });
        Curve { style, steps: steps.collect(), is_filled: false }
    };
    let curves = [quantiles("median", 0.5), quantiles("slow", 0.99)];
    let [median, slow] =
        [0.5, 0.99].map(|q| report.quantile(q).map_or("–".to_owned(), text::latency));
    let outages = outages(report);
    let failures = report.sum(|sample| sample.store_failures);
    let unit = if is_memory { "decisions" } else { "calls" };
    let label = format!(
        "Time of {unit} over the last hour. Half of them took {median} at most, 99 % {slow} at most."
    );
    let (state, word, sentence) = state(site, report);
    html! {
        section aria-labelledby="store" {
            h2 #store { "Store" }
            dl {
                dt { "State" } dd data-state=(state) { span.state { (word) } " " (sentence) }
                dt { "Where" } dd { (report.stats.store_name) }
                dt { span.sign.median aria-hidden="true" {} "Median time of " (unit) } dd { (median) }
                dt { span.sign.slow aria-hidden="true" {} "99 % of " (unit) " at most" } dd { (slow) }
                dt { "Failures" } dd {
                    (text::number(failures))
                    @if !site.context.is_stand_alone && (failures > 0 || !outages.is_empty()) {
                        ": " (without_store(report))
                    }
                }
            }
            @if report.timed() > 0 || !outages.is_empty() {
                (chart(axis, &curves, &label, text::latency, &outages))
            } @else {
                p.empty { "No " (unit) " were timed in this time." }
            }
            p.hint {
                "Times are estimates from counts in a few ranges, such as 1 to 2.5 ms."
                @if is_memory { " In each thread, one decision in a millisecond is timed." }
                @if !outages.is_empty() { " While the background is red, the store was not called, because it had failed." }
            }
        }
    }
}

/// Returns the spans in which the circuit breaker was open.
fn outages(report: &HourReport) -> Vec<(Timestamp, Timestamp)> {
    let mut outages: Vec<(Timestamp, Timestamp)> = Vec::new();
    for sample in report.samples.iter().filter(|sample| sample.is_breaker_open) {
        match outages.last_mut() {
            Some((_, end)) if *end == sample.start => *end = sample.end,
            _ => outages.push((sample.start, sample.end)),
        }
    }
    outages
}

/// Returns the state of the store: a word for the style sheet, a word for display, and a sentence.
fn state(site: &Site, report: &HourReport) -> (&'static str, &'static str, &'static str) {
    let recent = report.samples.iter().rev();
    let mut recent = recent.take_while(|sample| report.now.micros_since(sample.end) < MINUTE);
    if !report.stats.is_breaker_closed {
        let consequence = text::consequence(&site.context, FailureKind::Unavailable);
        ("full", "down", consequence)
    } else if recent.any(|sample| sample.store_failures > 0) {
        ("near", "failing", "Some calls of the last minute have failed.")
    } else {
        ("active", "working", "")
    }
}

/// Describes how requests were decided without the store.
fn without_store(report: &HourReport) -> String {
    let [fallback, open, closed] = [
        report.sum(|sample| sample.fallback),
        report.sum(|sample| sample.failed_open),
        report.sum(|sample| sample.failed_closed),
    ];
    format!(
        "the fallback decided {} requests, {} were allowed without limits, and {} were rejected",
        text::number(fallback),
        text::number(open),
        text::number(closed)
    )
}
