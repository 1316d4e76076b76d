//! Measures requests through axum under rules, of which one matches.

use std::error::Error;
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

use crate::machine;
use crate::measure::{Estimate, median, time_on_processor};
use crate::table::{Cell, Table};

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
        case("own paths, /%25…41 with 12 forms", path, &deep(10), StatusCode::OK),
        case("own paths, /%25…41 with more", path, &deep(70), StatusCode::SERVICE_UNAVAILABLE),
    ]
}

/// Prints the processor time of requests, and of the creation of their limiters.
pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    println!("axum in this process, under rules of which one matches, or none\n");
    println!("machine   {}", machine::cores());
    println!("versions  {}, {}\n", machine::program("rustc"), machine::profile());
    let mut table = Table::new(
        "processor time, median; ratios to 10 rules in the same round",
        ["rules", "microseconds", "beside 10", "load, ms"],
    );
    for case in cases() {
        let mut services = Vec::new();
        for count in RULES {
            let (load, service) = time_on_processor(|| service(&case, count));
            services.push((load, service?));
        }
        let mut micros = RULES.map(|_| Vec::new());
        // The first round only warms up.
        for round in 0..=ROUNDS {
            for place in (0..RULES.len()).chain((0..RULES.len()).rev()) {
                let (taken, ()) = time_on_processor(|| ask(&mut services[place].1, &case));
                if round > 0 {
                    micros[place].push(taken.as_secs_f64() * 1e6 / f64::from(REQUESTS));
                }
            }
        }
        for (place, count) in RULES.into_iter().enumerate() {
            let pairs = micros[place].iter().zip(&micros[0]);
            let ratios: Vec<f64> = pairs.map(|(many, few)| many / few).collect();
            table.row([
                Cell::from(format!("{count} with {}", case.name)),
                format!("{:.2}", median(&micros[place])).into(),
                Estimate::of(&ratios).into(),
                format!("{:.1}", services[place].0.as_secs_f64() * 1e3).into(),
            ]);
        }
    }
    println!("{table}");
    Ok(())
}

/// Creates a service with this number of rules.
fn service(case: &RulesCase, count: usize) -> Result<Router, Box<dyn Error>> {
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
