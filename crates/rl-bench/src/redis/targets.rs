//! The goals on Redis.

use std::error::Error;
use std::sync::Arc;

use rl_core::store::Layout;
use rl_core::{Limit, Period, Policy, RedisStore};

use super::candidate::{Candidate, patient};
use super::dedicated::Dedicated;
use super::fixtures::limits;
use super::load::{Block, ENDLESS, Load, PRESSED, Round, count_allowed, rounds, too_many, typical};
use super::other_limiters::OtherLimiter;
use super::server::Server;
use super::space;
use crate::charts::{Axis, Chart, Line, Lines, Plot};
use crate::goals::{Goal, Unit};
use crate::measure::Estimate;
use crate::report::Report;
use crate::table::{Cell, Table};

/// The number of rounds in each comparison.
const ROUNDS: usize = 7;

/// The load for other limiters, which has many subjects.
const DISTINCT: Load = Load::on_all(64, 12_000);
/// The load for limiters that open a connection for each request.
const CONNECTING: Load = Load::on_all(64, 1_024);
const ONE_BY_ONE: Load = Load::on_all(1, 1_500);
/// The load of many tasks on one subject.
const HOT: Load = Load { in_flight: 256, decisions: 25_600, subjects: 1 };
/// A flood on a hundred subjects. Their limits allow one request in a hundred.
const FLOOD: Load = Load { in_flight: 64, decisions: 64_000, subjects: 100 };
const PASSING_FLOOD: u32 = 6;
/// A similar flood, with one request at a time, for the denial cache. A denial is cached for at
/// most a second, and then the server is called once more for its subject. With more than ten
/// subjects, these calls would take too large a part of the measured time.
const LONE_FLOOD: Load = Load { in_flight: 1, decisions: 2_000, subjects: 10 };
/// The units of a lease, and the load for leases.
const LEASE: u32 = 100;
const LONE_LEASED: Load = Load { in_flight: 1, decisions: 2_000, subjects: 2 };
const LEASED: Load = Load { in_flight: 64, decisions: 51_200, subjects: 16 };

pub(super) async fn measure(report: &mut Report) -> Result<Vec<Goal>, Box<dyn Error>> {
    let mut goals = Vec::new();
    report.step("peers");
    if report.wants(&["R1", "R2", "R3", "R4", "R5", "R6"]) {
        goals.extend(beside_peers(report).await?);
    }
    report.step("latency");
    if report.wants(&["R7"]) {
        goals.push(latency(report).await?);
    }
    report.step("shortcuts");
    if report.wants(&["R8", "R9", "R10"]) {
        goals.extend(shortcuts(report).await?);
    }
    report.step("memory");
    if report.wants(&["R11"]) {
        goals.extend(space::measure(report).await?);
    }
    Ok(goals)
}

/// Creates a candidate of our store with these settings, for six periods.
async fn store(
    server: &Server,
    database: usize,
    name: &'static str,
    max: u32,
    lease: u32,
) -> Result<Candidate, Box<dyn Error>> {
    let store = patient(RedisStore::builder(&server.url(database))).lease(lease);
    Ok(Candidate::of_store(store.connect().await?, name, Policy::new(limits(max)?)?))
}

/// Returns the factor by which the quantity `of` is larger for `theirs` than for `ours`.
fn ratio(rounds: &[Round], ours: usize, theirs: usize, of: fn(&Block) -> f64) -> Estimate {
    let sum = |blocks: &[Block; 2]| of(&blocks[0]) + of(&blocks[1]);
    let ratios = rounds.iter().map(|round| sum(&round[theirs]) / sum(&round[ours]));
    Estimate::of(&ratios.collect::<Vec<_>>())
}

const fn seconds(block: &Block) -> f64 {
    block.seconds
}

/// Creates the candidates that support concurrent requests, with limits of `max`. They use
/// different databases, from the number `first` on.
async fn peers(server: &Server, first: usize, max: u32) -> Result<[Candidate; 7], Box<dyn Error>> {
    let read_then_count = OtherLimiter::read_then_count(server, first + 4, max).await?;
    let extensible = OtherLimiter::actix_extensible(server, first + 5, max).await?;
    let gcra = Dedicated::of("GCRA").ok_or("no script of GCRA")?;
    let mut gcra = Candidate::dedicated(server, first + 3, gcra, Limit::per_month(max)).await?;
    gcra.name = "GCRA script, one limit";
    Ok([
        store(server, first, "ours", max, 0).await?,
        Candidate::incr(server, first + 1).await?,
        Candidate::six_keys(server, first + 2, max).await?,
        gcra,
        Candidate::peer("MGET, then six scripts (limitador)", &["evalsha"], read_then_count),
        Candidate::peer("actix-extensible, one", &["bitfield"], extensible),
        store(server, first + 6, "ours, again: the noise", max, 0).await?,
    ])
}

/// Creates the candidate that opens a connection for each request.
fn connecting(server: &Server, database: usize, max: u32) -> Result<Candidate, Box<dyn Error>> {
    let limitation = OtherLimiter::actix_limitation(server, database, max)?;
    Ok(Candidate::peer("actix-limitation, one", &["incr"], limitation))
}

async fn beside_peers(report: &mut Report) -> Result<Vec<Goal>, Box<dyn Error>> {
    let server = Server::start()?;
    let mut monitor = server.monitor().await?;
    let candidates = peers(&server, 1, ENDLESS).await?.map(Arc::new);
    let many = rounds(&candidates, DISTINCT, ROUNDS, &mut monitor).await?;
    let pair = [Arc::clone(&candidates[0]), Arc::new(connecting(&server, 8, ENDLESS)?)];
    let few = rounds(&pair, CONNECTING, 3, &mut monitor).await?;
    let mut beyond = Vec::new();
    for candidate in peers(&server, 11, PRESSED).await? {
        // `INCR` has no limit that could be exceeded.
        let is_limited = candidate.name != "INCR";
        let (_, count) = too_many(candidate).await;
        beyond.push(if is_limited { count.to_string() } else { "no limit".to_owned() });
    }
    beyond.push(too_many(connecting(&server, 18, PRESSED)?).await.1.to_string());

    let title = "beside peers: 64 in flight, 10 000 subjects; too many: beyond 20 for each of 100 \
                 subjects, asked for 100 times each at 64 in flight";
    let head = [
        "",
        "thousand/s",
        "ours is faster by",
        "server µs, command",
        "server µs, all",
        "client µs",
        "too many",
    ];
    let mut table = Table::new(title, head);
    let rows = candidates.iter().enumerate().map(|(place, candidate)| (candidate, &many, place));
    for ((candidate, rounds, place), beyond) in rows.chain([(&pair[1], &few, 1)]).zip(beyond) {
        let show = |of: fn(&Block) -> f64| format!("{:.2}", typical(rounds, place, of)).into();
        table.row::<Cell>([
            candidate.name.into(),
            format!("{:.1}", 1e-3 / typical(rounds, place, seconds)).into(),
            ratio(rounds, 0, place, seconds).into(),
            show(|b| b.command),
            show(|b| b.server),
            show(|b| b.client),
            beyond.into(),
        ]);
    }
    report.table("redis-peers", table);

    let command = |block: &Block| block.command;
    let times = |floor, moon| (floor, moon, Unit::Times);
    let beside = |theirs| ratio(&many, 0, theirs, seconds);
    Ok(vec![
        Goal::measured("R1", "six periods beside plain INCR", times(0.35, 0.7), beside(1)),
        Goal::measured(
            "R2",
            "server CPU beside the script of six keys",
            times(2.0, 3.0),
            ratio(&many, 0, 2, command),
        ),
        Goal::measured("R3", "beside one GCRA script, one limit", times(0.6, 0.9), beside(3)),
        Goal::measured("R4", "beside MGET, then six scripts", times(5.0, 12.0), beside(4)),
        Goal::measured("R5", "beside actix-extensible, one limit", times(1.0, 2.0), beside(5)),
        Goal::measured(
            "R6",
            "beside actix-limitation, one limit",
            times(10.0, 50.0),
            ratio(&few, 0, 1, seconds),
        ),
    ])
}

/// Compares single requests with a plain round trip.
async fn latency(report: &Report) -> Result<Goal, Box<dyn Error>> {
    let server = Server::start()?;
    let mut monitor = server.monitor().await?;
    let candidates =
        [store(&server, 1, "ours", ENDLESS, 0).await?, Candidate::ping(&server).await?];
    let rounds = rounds(&candidates.map(Arc::new), ONE_BY_ONE, 15, &mut monitor).await?;
    let micros = |place| 1e6 * typical(&rounds, place, seconds);
    report.say(&format!("one at a time: {:.1} µs, PING {:.1} µs", micros(0), micros(1)));
    let more = ratio(&rounds, 1, 0, seconds);
    let what = "one at a time: latency of PING";
    Ok(Goal::measured("R7", what, (1.25, 1.1, Unit::AtMost("x")), more))
}

/// Measures many tasks on one subject, a flood of denials, and leases.
async fn shortcuts(report: &mut Report) -> Result<Vec<Goal>, Box<dyn Error>> {
    let server = Server::start()?;
    let mut monitor = server.monitor().await?;
    let hot = [
        store(&server, 1, "hot subject, 256 tasks", ENDLESS, 0).await?,
        Candidate::incr(&server, 2).await?,
    ];
    let hot = rounds(&hot.map(Arc::new), HOT, ROUNDS, &mut monitor).await?;

    let flood =
        [store(&server, 3, "flood", PASSING_FLOOD, 0).await?, Candidate::incr(&server, 4).await?]
            .map(Arc::new);
    // These requests use up the limits before the measurement.
    let passed = count_allowed(&flood[0], FLOOD).await;
    let lone_flood = rounds(&flood, LONE_FLOOD, ROUNDS, &mut monitor).await?;
    let flood = rounds(&flood, FLOOD, ROUNDS, &mut monitor).await?;
    let more: f64 = flood.iter().flat_map(|round| &round[0]).map(|block| block.admitted).sum();

    let leased =
        [store(&server, 5, "leases", ENDLESS, LEASE).await?, Candidate::incr(&server, 6).await?];
    let leased = leased.map(Arc::new);
    let lone_leased = rounds(&leased, LONE_LEASED, ROUNDS, &mut monitor).await?;
    let leased = rounds(&leased, LEASED, ROUNDS, &mut monitor).await?;

    let mut table = Table::new(
        "shortcuts",
        ["", "thousand/s", "INCR thousand/s", "calls each", "client µs", "allowed", "passed"],
    );
    let allowed = PASSING_FLOOD as usize * FLOOD.subjects;
    let counts = [allowed.to_string(), passed.to_string()];
    let none = || ["out of reach".to_owned(), "all".to_owned()];
    for (name, rounds, counts) in [
        ("one subject, 256 in flight", &hot, none()),
        ("denied flood of 10 subjects, 1 in flight", &lone_flood, counts.clone()),
        ("denied flood of 100 subjects, 64 in flight", &flood, counts),
        ("leases of 100, 2 subjects, 1 in flight", &lone_leased, none()),
        ("leases of 100, 16 subjects, 64 in flight", &leased, none()),
    ] {
        let rate = |place| format!("{:.1}", 1e-3 / typical(rounds, place, seconds));
        let calls = format!("{:.4}", typical(rounds, 0, |block| block.calls));
        let client = format!("{:.2}", typical(rounds, 0, |block| block.client));
        table.row([name.to_owned(), rate(0), rate(1), calls, client].into_iter().chain(counts));
    }
    report.table("redis-shortcuts", table);
    assert_eq!(passed, allowed, "the limits are set so");
    assert_eq!(more, 0.0, "no further request is allowed");

    let times = |floor, moon| (floor, moon, Unit::Times);
    let calls: Vec<f64> =
        flood.iter().flat_map(|round| &round[0]).map(|block| block.calls).collect();
    let lone = |rounds: &[Round]| ratio(rounds, 0, 1, seconds);
    Ok(vec![
        Goal::measured(
            "R9",
            "known denial beside a round trip of INCR",
            times(30.0, 100.0),
            lone(&lone_flood),
        ),
        Goal::measured(
            "R10",
            "leased unit beside a round trip of INCR",
            times(20.0, 50.0),
            lone(&lone_leased),
        ),
        Goal::measured(
            "R8",
            "one hot subject beside INCR",
            times(3.0, 10.0),
            ratio(&hot, 0, 1, seconds),
        ),
        Goal::measured(
            "R9",
            "denied flood beside INCR, 64 in flight",
            times(30.0, 100.0),
            ratio(&flood, 0, 1, seconds),
        ),
        Goal::measured(
            "R9",
            "denied flood: calls for each request",
            (0.02, 0.005, Unit::AtMost("")),
            Estimate::of(&calls),
        ),
        Goal::measured(
            "R10",
            "leases of 100 beside INCR, 64 in flight",
            times(20.0, 50.0),
            ratio(&leased, 0, 1, seconds),
        ),
    ])
}

/// Measures the server's cost for policies with different numbers of limits. Compares each with a
/// script that has one key for each limit.
pub(super) async fn by_limits(report: &mut Report) -> Result<(), Box<dyn Error>> {
    const COUNTS: [u64; 7] = [1, 2, 4, 6, 8, 12, 16];
    let server = Server::start()?;
    let mut monitor = server.monitor().await?;
    let mut candidates = Vec::new();
    for (database, count) in COUNTS.into_iter().enumerate() {
        let periods: Vec<u64> = (1..=count).map(|n| 60_000 * n).collect();
        let mut limits = Vec::new();
        for period in &periods {
            limits.push(Limit::new(ENDLESS.into(), Period::from_millis(*period)?)?);
        }
        let policy = Policy::new(limits)?;
        let ours = Candidate::policy(&server, database, Layout::Packed, "", policy).await?;
        let database = COUNTS.len() + database;
        let theirs = Candidate::key_per_limit(&server, database, ENDLESS, &periods).await?;
        candidates.extend([ours, theirs].map(Arc::new));
    }
    let rounds = rounds(&candidates, DISTINCT, 3, &mut monitor).await?;
    let title = "by the number of limits: fixed windows, 64 in flight, µs";
    let head =
        ["limits", "server, command", "server, all", "client, all", "a key each: server, command"];
    let mut table = Table::new(title, head);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for (number, count) in COUNTS.into_iter().enumerate() {
        let [mine, other] = [2 * number, 2 * number + 1];
        let micros = |place, of: fn(&Block) -> f64| typical(&rounds, place, of);
        let cells = [
            micros(mine, |b| b.command),
            micros(mine, |b| b.server),
            micros(mine, |b| b.client),
            micros(other, |b| b.command),
        ];
        ours.push((count as f64, cells[0]));
        theirs.push((count as f64, cells[3]));
        let cells = cells.map(|micros| format!("{micros:.2}"));
        table.row([count.to_string()].into_iter().chain(cells));
    }
    report.table("redis-by-limits", table);
    report.chart(Chart {
        name: "limits-redis".to_owned(),
        title: "A decision on Redis, by the number of limits".to_owned(),
        note: "Fixed windows, 64 in flight; the time of the command as the server reports it."
            .to_owned(),
        plot: Plot::Lines(Lines {
            x: Axis::linear("limits in the policy"),
            y: Axis::linear("µs of the server for each decision"),
            lines: vec![Line::new("ours", ours), Line::new("script, a key for each", theirs)],
        }),
    });
    Ok(())
}
