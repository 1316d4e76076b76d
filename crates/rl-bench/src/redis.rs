//! Measures decisions on a Redis server: our store, plain commands, the usual script (a counter
//! with an expiry for each limit), and other limiters.
//!
//! All clients run on one thread, so that the server has a core of its own.

mod algorithms;
mod candidate;
mod cluster;
mod load;
mod nodes;
mod scripts;
mod server;
mod usual;

use std::sync::Arc;

use candidate::{Candidate, ENDLESS, six, store};
use load::{
    CALLS, CLIENT, COMMAND, Load, PRESSED, Rounds, SECONDS, SERVER, SHOWN, count_allowed, rounds,
    too_many,
};
pub(crate) use nodes::node;
use rl_core::store::Layout;
use rl_core::{Limit, Period, Policy};
pub(crate) use server::{Server, redis_program};
use usual::{SIX_KEYS, Usual};

use crate::Result;
use crate::charts::Chart;
use crate::measure::Estimate;
use crate::report::{Bound, Report, Table};

/// The loads, each of about 0.1 s.
const LOADS: [Load; 5] = [
    Load::on_all(1, 1_500),
    Load::on_all(16, 7_000),
    Load::on_all(SHOWN, 12_000),
    Load::on_all(256, 16_000),
    Load::on_all(1_024, 20_480),
];
const ONE_BY_ONE: usize = 0;
const AT_SHOWN: usize = 2;
const ROUNDS: usize = 7;

/// Runs a measurement on a runtime whose tasks share this thread.
fn run(measured: impl Future<Output = Result>) -> Result {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(measured)
}

pub(crate) fn algorithms(report: &mut Report) -> Result {
    run(algorithms::server_time(report))
}

pub(crate) fn cluster(report: &mut Report) -> Result {
    run(cluster::capacity(report))
}

pub(crate) fn parts(report: &mut Report) -> Result {
    run(cluster::parts(report))
}

pub(crate) fn nodes(report: &mut Report) -> Result {
    run(async {
        nodes::exactness(report).await?;
        nodes::rates(report).await
    })
}

pub(crate) fn scripts(report: &mut Report) -> Result {
    scripts::in_memory(report)?;
    run(scripts::on_redis(report))
}

/// The indices of the candidates in the list of [`candidates`].
const OURS: usize = 0;
const INCR: usize = 1;
const PING: usize = 2;
const GCRA: usize = 4;
const USUAL: usize = 5;
const LIMITADOR: usize = 6;
const EXTENSIBLE: usize = 7;

/// Creates the candidates with limits of `max`. They use different databases, from the number
/// `first` on.
async fn candidates(server: &Server, first: usize, max: u32) -> Result<Vec<Candidate>> {
    let six_periods = Period::NAMED.map(Period::as_millis);
    let gcra = Usual::of("GCRA").ok_or("no script of GCRA")?;
    let ours = async |place| store(server, first + place).connect().await;
    let readable = store(server, first + 7).layout(Layout::Readable).connect().await?;
    let mut all = vec![
        Candidate::ours("ours, six periods", ours(0).await?, six(max)?),
        Candidate::command(server, first + 1, "INCR", (&["incr"], true)).await?,
        Candidate::command(server, first + 1, "PING", (&["ping"], false)).await?,
        Candidate::return_1(server, first + 2).await?,
        Candidate::usual(server, first + 3, gcra, Limit::per_month(max)).await?,
        Candidate::key_per_limit(server, first + 4, SIX_KEYS, max.into(), &six_periods).await?,
        Candidate::read_then_count(server, first + 5, max).await?,
        Candidate::actix_extensible(server, first + 6, max).await?,
        Candidate::ours("ours, readable layout", readable, six(max)?),
        Candidate::ours("ours, again: the noise", ours(8).await?, six(max)?),
    ];
    all[GCRA].name = "the usual script of GCRA, one period".to_owned();
    Ok(all)
}

/// Compares our store with plain commands and other limiters, by the number of requests in flight.
pub(crate) fn others(report: &mut Report) -> Result {
    run(async {
        let server = Server::start()?;
        let mut monitors = [server.monitor().await?];
        let all: Vec<_> =
            candidates(&server, 1, ENDLESS).await?.into_iter().map(Arc::new).collect();
        let mut by_load = Vec::new();
        for load in LOADS {
            by_load.push(rounds(&all, load, report.rounds(ROUNDS), &mut monitors).await?);
        }
        // This limiter connects for each request, so it has a shorter load.
        let pair =
            [Arc::clone(&all[OURS]), Arc::new(Candidate::actix_limitation(&server, 12, ENDLESS)?)];
        let connecting =
            rounds(&pair, Load::on_all(SHOWN, 1_024), report.rounds(3), &mut monitors).await?;
        let mut beyond = Vec::new();
        for (place, candidate) in candidates(&server, 21, PRESSED).await?.into_iter().enumerate() {
            let has_limit = ![INCR, PING, PING + 1].contains(&place);
            beyond.push(if has_limit { too_many(candidate).await as f64 } else { f64::NAN });
        }
        beyond.push(too_many(Candidate::actix_limitation(&server, 32, PRESSED)?).await as f64);
        show_others(report, &all, &by_load, (&pair[1], &connecting), &beyond)
    })
}

fn show_others(
    report: &mut Report,
    all: &[Arc<Candidate>],
    by_load: &[Rounds],
    (last, connecting): (&Arc<Candidate>, &Rounds),
    beyond: &[f64],
) -> Result {
    let rate = |rounds: &Rounds, place| 1e-3 / rounds.median(place, SECONDS);
    let columns = ["thousand decisions per second, by requests in flight".to_owned()];
    let columns = columns.into_iter().chain(LOADS.map(|load| load.in_flight.to_string()));
    let mut rates = Table::new("one connection each, 10 000 subjects in turn", columns);
    let mut costs = Table::new(
        &format!("{SHOWN} in flight: µs for each decision; requests allowed beyond the limits"),
        ["", "command", "server", "client", "ours is faster by", "too many"],
    );
    let shown = &by_load[AT_SHOWN];
    let rows = all.iter().enumerate().map(|(place, candidate)| (candidate, shown, place));
    for ((candidate, rounds, place), beyond) in rows.chain([(last, connecting, 1)]).zip(beyond) {
        let each = |quantity| rounds.median(place, quantity).into();
        let faster = rounds.multiple(place, OURS, SECONDS).into();
        let name = candidate.name.as_str().into();
        costs.row([name, each(COMMAND), each(SERVER), each(CLIENT), faster, (*beyond).into()]);
    }
    for (place, candidate) in all.iter().enumerate() {
        let cells = by_load.iter().map(|rounds| rate(rounds, place).into());
        rates.row([candidate.name.as_str().into()].into_iter().chain(cells));
    }
    let lines = ["requests in flight", "ours, six limits", "INCR, no limit", "script of six keys"];
    let mut by_in_flight = Table::new("decisions per second", lines);
    for (load, rounds) in LOADS.iter().zip(by_load) {
        let cells = [OURS, INCR, USUAL].map(|place| (1e3 * rate(rounds, place)).into());
        by_in_flight.row([load.in_flight.into()].into_iter().chain(cells));
    }
    report.table(rates);
    report.table(costs);
    let chart = Chart {
        name: "in-flight",
        title: "Decisions on one Redis, by requests in flight",
        note: "One connection each, one thread for all clients, 10 000 subjects in turn.",
        unit: "decisions per second",
        is_logarithmic: true,
    };
    report.chart(&chart, by_in_flight)?;
    let beside = |place, quantity| shown.multiple(place, OURS, quantity);
    for (what, floor, measured) in [
        ("INCR", 0.35, beside(INCR, SECONDS)),
        ("the usual script, by server time", 2.0, beside(USUAL, COMMAND)),
        ("the usual script of one GCRA", 0.6, beside(GCRA, SECONDS)),
        ("MGET, then six scripts", 5.0, beside(LIMITADOR, SECONDS)),
        ("actix-extensible-rate-limit, one period", 1.0, beside(EXTENSIBLE, SECONDS)),
        ("actix-limitation, one period", 10.0, connecting.multiple(1, OURS, SECONDS)),
    ] {
        report.goal(
            &format!("six periods on Redis: rate beside {what}"),
            Bound::AtLeast(floor),
            "times",
            measured,
        );
    }
    let latency = by_load[ONE_BY_ONE].multiple(OURS, PING, SECONDS);
    report.goal("one at a time on Redis: time beside PING", Bound::AtMost(1.25), "times", latency);
    Ok(())
}

/// Compares our store with `INCR` for many tasks on one subject, for a flood of denials, and for
/// leased units.
pub(crate) fn shortcuts(report: &mut Report) -> Result {
    /// The requests that a subject of the flood may make, of a hundred and more.
    const PASSING: u32 = 6;
    const LEASE: u32 = 100;
    const FLOOD: Load = Load { in_flight: SHOWN, decisions: 64_000, subjects: 100 };
    // A denial is cached for at most a second. Then the server is called once more for its subject.
    // With more subjects, these calls would take too large a part of the measured time.
    const LONE_FLOOD: Load = Load { in_flight: 1, decisions: 2_000, subjects: 10 };
    const HOT: Load = Load { in_flight: 256, decisions: 25_600, subjects: 1 };
    const LONE_LEASED: Load = Load { in_flight: 1, decisions: 2_000, subjects: 2 };
    const LEASED: Load = Load { in_flight: SHOWN, decisions: 51_200, subjects: 16 };
    run(async {
        let server = Server::start()?;
        let mut monitors = [server.monitor().await?];
        let incr = Arc::new(Candidate::command(&server, 1, "INCR", (&["incr"], true)).await?);
        let ours = async |database, max, lease| -> Result<Arc<Candidate>> {
            let store = store(&server, database).lease(lease).connect().await?;
            Ok(Arc::new(Candidate::ours("ours", store, six(max)?)))
        };
        let [hot, flood, leased] = [
            ours(2, ENDLESS, 0).await?,
            ours(3, PASSING, 0).await?,
            ours(4, ENDLESS, LEASE).await?,
        ];
        // These requests use up the limits before the measurement.
        let passed = count_allowed(&flood, FLOOD).await;
        assert_eq!(passed, PASSING as usize * FLOOD.subjects, "the limits are set so");
        let columns = ["", "thousand/s", "INCR thousand/s", "calls each", "client µs", "allowed"];
        let mut table = Table::new("shortcuts", columns);
        let count = report.rounds(ROUNDS);
        for (name, candidate, load, floor) in [
            ("one subject, 256 in flight", &hot, HOT, 3.0),
            ("denied flood of 10 subjects, one at a time", &flood, LONE_FLOOD, 30.0),
            ("denied flood of 100 subjects, 64 in flight", &flood, FLOOD, 30.0),
            ("leases of 100, 2 subjects, one at a time", &leased, LONE_LEASED, 20.0),
            ("leases of 100, 16 subjects, 64 in flight", &leased, LEASED, 20.0),
        ] {
            let pair = [Arc::clone(candidate), Arc::clone(&incr)];
            let rounds = rounds(&pair, load, count, &mut monitors).await?;
            let rates = [0, 1].map(|place| (1e-3 / rounds.median(place, SECONDS)).into());
            let rest =
                [CALLS, CLIENT, load::ALLOWED].map(|quantity| rounds.median(0, quantity).into());
            table.row([name.into()].into_iter().chain(rates).chain(rest));
            let faster = rounds.multiple(1, 0, SECONDS);
            report.goal(
                &format!("{name}: rate beside INCR"),
                Bound::AtLeast(floor),
                "times",
                faster,
            );
            if load.subjects == FLOOD.subjects {
                let calls = Estimate::of(&rounds.samples(0, CALLS));
                report.goal(
                    &format!("{name}: calls for each request"),
                    Bound::AtMost(0.02),
                    "",
                    calls,
                );
            }
        }
        report.table(table);
        Ok(())
    })
}

/// Measures the server's bytes for each subject, including the table of expiries.
pub(crate) fn space(report: &mut Report) -> Result {
    const LOAD: Load = Load { in_flight: SHOWN, decisions: 8_192, subjects: 8_192 };
    run(async {
        let server = Server::start()?;
        let mut monitor = server.monitor().await?;
        let ours = async |database, policy| -> Result<Candidate> {
            Ok(Candidate::ours("ours", store(&server, database).connect().await?, policy))
        };
        let counters =
            Period::NAMED.map(|period| format!("9/{period}:sliding-window-counter").parse());
        let counters =
            Policy::new(counters.into_iter().collect::<std::result::Result<Vec<Limit>, _>>()?)?;
        let periods = Period::NAMED.map(Period::as_millis);
        let all = [
            // The first requests make the server allocate memory for its own purposes, so they are
            // not reported.
            ("", ours(1, six(9)?).await?),
            (
                "the usual script, six keys",
                Candidate::key_per_limit(&server, 2, SIX_KEYS, 9, &periods).await?,
            ),
            ("ours, six fixed windows", ours(3, six(9)?).await?),
            ("ours, six sliding window counters", ours(4, counters).await?),
        ];
        let mut table = Table::new("memory of six limits on Redis", ["", "bytes for each subject"]);
        let mut bytes = Vec::new();
        for (name, candidate) in all {
            let before = monitor.memory().await?;
            count_allowed(&Arc::new(candidate), LOAD).await;
            bytes.push((monitor.memory().await? - before) / LOAD.subjects as f64);
            if let [_, .., each] = bytes[..] {
                table.row([name.into(), each.into()]);
            }
        }
        report.table(table);
        let ratio = |factor: f64, place: usize| Estimate::exact(factor * bytes[1] / bytes[place]);
        report.goal("bytes of six keys beside ours", Bound::AtLeast(3.5), "times", ratio(1.0, 2));
        report.goal(
            "bytes of twelve keys beside our counters",
            Bound::AtLeast(6.0),
            "times",
            ratio(2.0, 3),
        );
        Ok(())
    })
}

/// Measures the server's cost for policies with different numbers of limits. Compares each with the
/// usual script, which has one key for each limit.
pub(crate) fn limits(report: &mut Report) -> Result {
    const COUNTS: [usize; 7] = [1, 2, 4, 6, 8, 12, 16];
    run(async {
        let server = Server::start()?;
        let mut candidates = Vec::new();
        for count in COUNTS {
            let periods: Vec<u64> = (1..=count as u64).map(|n| 60_000 * n).collect();
            let limits = periods
                .iter()
                .map(|period| Ok(Limit::new(ENDLESS.into(), Period::from_millis(*period)?)?));
            let policy = Policy::new(limits.collect::<Result<Vec<_>>>()?)?;
            let database = candidates.len();
            let ours = Candidate::ours("ours", store(&server, database).connect().await?, policy);
            let usual =
                Candidate::key_per_limit(&server, database + 1, SIX_KEYS, ENDLESS.into(), &periods)
                    .await?;
            candidates.extend([ours, usual].map(Arc::new));
        }
        let rounds =
            rounds(&candidates, LOADS[AT_SHOWN], report.rounds(3), &mut [server.monitor().await?])
                .await?;
        let columns = ["limits in the policy", "ours", "script, a key for each"];
        let mut table = Table::new("µs of the server for each decision, 64 in flight", columns);
        for (place, count) in COUNTS.into_iter().enumerate() {
            let [ours, usual] =
                [2 * place, 2 * place + 1].map(|place| rounds.median(place, COMMAND).into());
            table.row([count.into(), ours, usual]);
        }
        let chart = Chart {
            name: "limits-redis",
            title: "A decision on Redis, by the number of limits",
            note: "Fixed windows, 64 in flight; the time of the command as the server reports it.",
            unit: "µs of the server for each decision",
            is_logarithmic: false,
        };
        report.chart(&chart, table)
    })
}
