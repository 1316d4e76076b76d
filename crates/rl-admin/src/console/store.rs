//! The page with the health of the counters and of the database.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use maud::{Markup, html};
use rl_core::{Limit, Policy, Realm, StoreError, Subject};
use rl_records::RecordQuery;
use tokio::time::Instant;

use super::failure::Failure;
use super::page::{Tab, page};
use super::site::Site;
use super::text;
use super::visitor::Visitor;
use crate::backend::Backend;
use crate::shadow::Shadow;

/// The result of a probe.
struct Probe {
    problem: Option<String>,
    // The effect of the problem on calls.
    consequence: Option<&'static str>,
    seconds: f64,
}

impl Probe {
    fn new<T, E: std::fmt::Display>(began: Instant, result: Result<T, E>) -> Self {
        let problem = result.err().map(|error| error.to_string());
        Self { problem, consequence: None, seconds: began.elapsed().as_secs_f64() }
    }

    fn row(&self, what: &str, where_: &str) -> Markup {
        let state = if self.problem.is_none() { "active" } else { "full" };
        html! {
            tr data-state=(state) {
                th scope="row" { (what) }
                td data-label="Where" { (where_) }
                td data-label="State" {
                    span.state { (if self.problem.is_none() { "available" } else { "unavailable" }) }
                    @if let Some(problem) = &self.problem { p.problem { (problem) } }
                    @if let Some(consequence) = self.consequence { p { (consequence) } }
                }
                td.number data-label="Took" { (text::latency(self.seconds)) }
            }
        }
    }
}

/// Shows the health of the counters and of the database.
pub(super) async fn show(
    State(site): State<Arc<Site>>,
    Extension(visitor): Extension<Visitor>,
) -> Result<Markup, Failure> {
    let context = &site.context;
    let limiter = &context.limiter;
    let began = Instant::now();
    let read = read_counter(&site).await;
    let failure = read.as_ref().err().map(StoreError::kind);
    let mut counters = Probe::new(began, read);
    counters.consequence = failure.map(|failure| text::consequence(context, failure));
    let began = Instant::now();
    let one = RecordQuery { limit: 1, ..RecordQuery::default() };
    let records = Probe::new(began, context.records.list(&one).await);
    let place = match &context.backend {
        Backend::Memory if context.is_stand_alone => "not known without RL_REDIS_URL".to_owned(),
        Backend::Memory => "in the memory of this process".to_owned(),
        Backend::Redis { host, port: 0 } => format!("Redis: {host}"),
        Backend::Redis { host, port } => format!("Redis at {host}, port {port}"),
    };
    let mode = match (limiter.is_enabled(), Shadow::of(limiter), counters.consequence) {
        (false, ..) => ("full", "off", "Every call is allowed, and none is counted.".to_owned()),
        (true, Shadow::All, None) => {
            ("near", "in shadow", "Calls are counted and reported, and none is denied.".to_owned())
        }
        (true, Shadow::All, Some(consequence)) => {
            ("full", "in shadow, without counters", consequence.to_owned())
        }
        (true, _, Some(consequence)) => ("full", "on, without counters", consequence.to_owned()),
        (true, Shadow::None, None) => {
            ("open", "on", "Calls beyond the limits are denied.".to_owned())
        }
        (true, Shadow::Rules(rules), None) => {
            let rules = rules.join(", ");
            (
                "open",
                "on",
                format!("Calls beyond the limits are denied, except under {rules}, in shadow."),
            )
        }
    };
    let main = html! {
        div.head {
            h1 { "Store" }
            p.pulse { "As of " (text::time(context.now())) " UTC. " a href={ (site.path()) "/store" } { "Refresh" } }
        }
        table.list {
            caption.unseen { "The systems that the limiter depends on" }
            thead { tr {
                th scope="col" { "What" } th scope="col" { "Where" } th scope="col" { "State" }
                th.number scope="col" { "Took" }
            } }
            tbody {
                (counters.row("Counters", &place))
                (records.row("Database", "of limits"))
            }
        }
        section aria-labelledby="limiter" {
            h2 #limiter { "Limiter" }
            @if context.is_stand_alone {
                p { "This server decides no requests. Whether services enforce limits now is set in their program." }
            } @else {
                dl {
                    dt { "State" } dd data-state=(mode.0) { span.state { (mode.1) } " " (mode.2) }
                    dt { "Decisions in progress" } dd { (text::number(limiter.stats().in_flight)) }
                }
            }
        }
    };
    Ok(page(&site, Some(&visitor), "Store", Tab::Store, main))
}

/// Reads the counter of a subject that is never charged.
async fn read_counter(site: &Site) -> Result<(), StoreError> {
    let realm = Realm::custom("console").expect("a short name of letters");
    let policy = Policy::new([Limit::per_second(1)]).expect("one limit");
    let usage =
        site.context.limiter.request(&Subject::new(realm, "health")).policy(&policy).usage();
    usage.await.map(drop)
}
