//! Measures requests through axum under rules, of which one matches.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::any;
use rl_core::rules::{Match, Rule, Rules};
use rl_core::{Limit, RateLimiter};
use rl_tower::RateLimitLayer;
use tower::Service;

use crate::Result;
use crate::measure::{Race, time_on_processor};
use crate::report::{Bound, Report, Table};

/// The numbers of rules. The ratios are to the first.
const RULES: [usize; 3] = [10, 1_000, 10_000];
const ROUNDS: usize = 41;
/// The requests that a service gets in one turn.
const REQUESTS: u32 = 100;

/// Rules, and a request to a service with them.
struct RulesCase {
    name: &'static str,
    of_number: fn(usize) -> Match,
    path: String,
    status: StatusCode,
}

fn cases() -> [RulesCase; 5] {
    let path = |number| Match::new().path(format!("/t{number}/items/{{id}}"));
    let deep = |levels: usize| format!("/%{}41", "25".repeat(levels));
    let case = |name, of_number, path: &str, status| {
        let path = path.to_owned();
        RulesCase { name, of_number, path, status }
    };
    [
        case("paths of their own", path, "/t7/items/1", StatusCode::OK),
        case(
            "hosts of their own",
            |number| Match::new().host(format!("t{number}.example.org")),
            "/items/1",
            StatusCode::OK,
        ),
        case("own paths, /%74%37//items/%61/", path, "/%74%37//items/%61/", StatusCode::OK),
        case("own paths, /%25…41 with 160 forms", path, &deep(158), StatusCode::OK),
        case("own paths, /%25…41 with more", path, &deep(280), StatusCode::SERVICE_UNAVAILABLE),
    ]
}

/// Measures the processor time of requests, and of the creation of their limiters.
pub(crate) fn run(report: &mut Report) -> Result {
    let columns = ["", "µs of a request", "beside 10 rules", "ms to load"];
    let mut table =
        Table::new("requests through axum, under rules of which one matches, or none", columns);
    for case in cases() {
        let mut services = Vec::new();
        for count in RULES {
            let (load, service) = time_on_processor(|| service(&case, count));
            services.push((load, service?));
        }
        let mut race = Race::new(RULES.len());
        for turn in race.turns(report.rounds(ROUNDS)) {
            let (taken, ()) = time_on_processor(|| ask(&mut services[turn.contender].1, &case));
            race.record(turn, [taken.as_secs_f64() * 1e6 / f64::from(REQUESTS)]);
        }
        for (place, count) in RULES.into_iter().enumerate() {
            let beside = race.multiple(place, 0, 0);
            let load = services[place].0.as_secs_f64() * 1e3;
            let name = format!("{count} with {}", case.name);
            table.row([
                name.as_str().into(),
                race.median(place, 0).into(),
                beside.into(),
                load.into(),
            ]);
            if place == RULES.len() - 1 && case.status == StatusCode::OK {
                report.goal(
                    &format!("{name}: time beside 10"),
                    Bound::AtMost(1.5),
                    "times",
                    beside,
                );
            }
        }
    }
    report.table(table);
    Ok(())
}

/// Creates a service with this number of rules.
fn service(case: &RulesCase, count: usize) -> Result<Router> {
    let rules = (0..count).map(|number| {
        let rule = Rule::named(format!("rule-{number}")).limit(Limit::per_hour(1_000_000_000));
        rule.matching((case.of_number)(number))
    });
    let limiter = RateLimiter::builder().rules(rules.fold(Rules::new(), Rules::rule)).build()?;
    Ok(Router::new().fallback(any(async || "")).layer(RateLimitLayer::new(limiter)))
}

/// Sends requests to a service.
fn ask(service: &mut Router, case: &RulesCase) {
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..REQUESTS {
        let request = Request::get(&case.path).header("host", "t7.example.org").body(Body::empty());
        let answer = pin!(service.call(request.expect("a request"))).poll(&mut context);
        let Poll::Ready(Ok(response)) = answer else { panic!("nothing here waits") };
        assert_eq!(response.status(), case.status, "{}", case.name);
    }
}
