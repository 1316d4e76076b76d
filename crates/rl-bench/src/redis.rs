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

pub(crate) use candidate::ReadThenCount;
use candidate::{Candidate, store};
use load::{
    ALLOWED, CALLS, COMMAND, Load, PRESSED, SECONDS, SHOWN, count_allowed, rounds, too_many,
};
pub(crate) use nodes::node;
use rl_core::store::Layout;
use rl_core::{Limit, Period};
pub(crate) use server::Server;
use usual::Script;

use crate::Result;
use crate::algorithms::{ENDLESS, policy, six};
use crate::charts::Chart;
use crate::measure::Estimate;
use crate::report::{Report, Table};

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

/// Compares our store with plain commands and other limiters, by the number of requests in flight.
pub(crate) fn others(report: &mut Report) -> Result {
    let [ours_packed, incr, six_keys, ping] = [0, 1, 3, 5];
    run(async {
        let (server, periods) = (Server::start()?, Period::NAMED.map(Period::as_millis));
        let mut monitors = [server.monitor().await?];
        let ours = async |name, layout, max| -> Result<Candidate> {
            let store = store(&server).layout(layout).connect().await?;
            Ok(Candidate::ours(name, store, six(max)?))
        };
        let gcra = Script::of_algorithm("GCRA", Limit::per_month(ENDLESS)).ok_or("no GCRA")?;
        let gcra = Script { name: "the usual script of GCRA, one period", ..gcra };
        let all = [
            ours("ours, six periods", Layout::Packed, ENDLESS).await?,
            Candidate::command(&server, "incr", true).await?,
            Candidate::script(&server, Script::nothing()).await?,
            Candidate::script(&server, Script::six_keys(ENDLESS.into(), &periods)).await?,
            ours("ours, readable layout", Layout::Readable, ENDLESS).await?,
            Candidate::command(&server, "ping", false).await?,
            Candidate::script(&server, gcra).await?,
            Candidate::read_then_count(&server, ENDLESS).await?,
            Candidate::actix_extensible(&server, ENDLESS).await?,
        ]
        .map(Arc::new);
        let mut by_load = Vec::new();
        for load in LOADS {
            by_load.push(rounds(&all, load, report.rounds(ROUNDS), &mut monitors).await?);
        }
        // This limiter connects for each request, so it has a shorter load.
        let limitation = Arc::new(Candidate::actix_limitation(&server, ENDLESS)?);
        let pair = [Arc::clone(&all[ours_packed]), limitation];
        let load = Load::on_all(SHOWN, 1_024);
        let connecting = rounds(&pair, load, report.rounds(3), &mut monitors).await?;

        let columns = ["thousand decisions per second, by requests in flight".to_owned()];
        let columns = columns.into_iter().chain(LOADS.map(|load| load.in_flight.to_string()));
        let columns = columns.chain([format!("µs of the server, {SHOWN}")]);
        let mut table = Table::new("one connection each, 10 000 subjects in turn", columns);
        for (place, candidate) in all.iter().enumerate() {
            let rates = by_load.iter().map(|rounds| 1e-3 / rounds.median(place, SECONDS));
            let micros = by_load[AT_SHOWN].median(place, COMMAND);
            table.row(&candidate.name, rates.chain([micros]));
        }
        report.table(table);
        let columns =
            ["requests in flight", "ours, six limits", "INCR, no limit", "script of six keys"];
        let mut table = Table::new("decisions per second", columns);
        for (load, rounds) in LOADS.iter().zip(&by_load) {
            let rates =
                [ours_packed, incr, six_keys].map(|place| 1.0 / rounds.median(place, SECONDS));
            table.row(load.in_flight, rates);
        }
        let chart = Chart {
            name: "in-flight",
            title: "Decisions on one Redis, by requests in flight",
            note: "One connection each, one thread for all clients, 10 000 subjects in turn.",
            unit: "decisions per second",
            is_logarithmic: true,
        };
        report.chart(&chart, table)?;
        let shown = &by_load[AT_SHOWN];
        for (place, floor) in [(incr, 0.35), (6, 0.6), (7, 5.0), (8, 1.0)] {
            let what = format!("six periods on Redis: rate beside {}", all[place].name);
            report.at_least(what, floor, shown.multiple(place, ours_packed, SECONDS));
        }
        let what = "six periods on Redis: rate beside actix-limitation, one period";
        report.at_least(what, 10.0, connecting.multiple(1, 0, SECONDS));
        let what = "six periods on Redis: server time of the usual script beside ours";
        report.at_least(what, 2.0, shown.multiple(six_keys, ours_packed, COMMAND));
        let latency = by_load[ONE_BY_ONE].multiple(ours_packed, ping, SECONDS);
        report.at_most("one at a time on Redis: time beside PING", 1.25, latency);
        for layout in [Layout::Packed, Layout::Readable] {
            let beyond = too_many(ours("", layout, PRESSED).await?).await;
            let what = format!("six periods on Redis, {layout:?}: allowed beyond the limits");
            report.at_most(what, 0.0, beyond as f64);
        }
        Ok(())
    })
}

/// Compares our store with `INCR` for many tasks on one subject, for a flood of denials, and for
/// leased units.
pub(crate) fn shortcuts(report: &mut Report) -> Result {
    /// The requests that a subject of the flood may make, of a hundred and more.
    const PASSING: u32 = 6;
    const HOT: Load = Load { in_flight: 256, decisions: 25_600, subjects: 1 };
    const FLOOD: Load = Load { in_flight: SHOWN, decisions: 64_000, subjects: 100 };
    const LEASED: Load = Load { in_flight: SHOWN, decisions: 51_200, subjects: 16 };
    run(async {
        let server = Server::start()?;
        let mut monitors = [server.monitor().await?];
        let incr = Arc::new(Candidate::command(&server, "incr", true).await?);
        let mut table =
            Table::new("shortcuts", ["", "thousand/s", "INCR thousand/s", "calls each", "allowed"]);
        for (name, (max, lease), load, floor) in [
            ("one subject, 256 in flight", (ENDLESS, 0), HOT, 3.0),
            ("denied flood of 100 subjects, 64 in flight", (PASSING, 0), FLOOD, 30.0),
            ("leases of 100, 16 subjects, 64 in flight", (ENDLESS, 100), LEASED, 20.0),
        ] {
            let store = store(&server).lease(lease).connect().await?;
            let ours = Arc::new(Candidate::ours(name, store, six(max)?));
            if max == PASSING {
                // These requests use up the limits before the measurement.
                let passed = count_allowed(&ours, load).await;
                assert_eq!(passed, PASSING as usize * load.subjects, "the limits are set so");
            }
            let pair = [ours, Arc::clone(&incr)];
            let rounds = rounds(&pair, load, report.rounds(ROUNDS), &mut monitors).await?;
            let [ours, incr] = [0, 1].map(|place| 1e-3 / rounds.median(place, SECONDS));
            table.row(name, [ours, incr, rounds.median(0, CALLS), rounds.median(0, ALLOWED)]);
            let faster = rounds.multiple(1, 0, SECONDS);
            report.at_least(format!("{name}: rate beside INCR"), floor, faster);
            if max == PASSING {
                let calls = Estimate::of(&rounds.samples(0, CALLS));
                report.at_most(format!("{name}: calls for each request"), 0.02, calls);
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
        let ours = async |name, policy| -> Result<Candidate> {
            Ok(Candidate::ours(name, store(&server).connect().await?, policy))
        };
        let counters =
            policy(Period::NAMED.map(|period| format!("9/{period}:sliding-window-counter")))?;
        let script = Script::six_keys(9, &Period::NAMED.map(Period::as_millis));
        let mut table = Table::new("memory of six limits on Redis", ["", "bytes for each subject"]);
        let mut bytes = Vec::new();
        for candidate in [
            ours("the first requests, for which the server also allocates buffers", six(9)?)
                .await?,
            Candidate::script(&server, script).await?,
            ours("ours, six fixed windows", six(9)?).await?,
            ours("ours, six sliding window counters", counters).await?,
        ] {
            let (name, before) = (candidate.name.clone(), monitor.memory().await?);
            count_allowed(&Arc::new(candidate), LOAD).await;
            bytes.push((monitor.memory().await? - before) / LOAD.subjects as f64);
            table.row(name, bytes.last().copied());
        }
        report.table(table);
        report.at_least("bytes of six keys beside ours", 3.5, bytes[1] / bytes[2]);
        let what = "bytes of twelve keys beside our counters";
        report.at_least(what, 6.0, 2.0 * bytes[1] / bytes[3]);
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
            let limits = policy((1..=count).map(|minutes| format!("{ENDLESS}/{minutes}m")))?;
            let periods: Vec<u64> = (1..=count as u64).map(|minutes| 60_000 * minutes).collect();
            let script = Script::six_keys(ENDLESS.into(), &periods);
            let ours = Candidate::ours("ours", store(&server).connect().await?, limits);
            candidates.push(Arc::new(ours));
            candidates.push(Arc::new(Candidate::script(&server, script).await?));
        }
        let (load, mut monitors) = (LOADS[AT_SHOWN], [server.monitor().await?]);
        let rounds = rounds(&candidates, load, report.rounds(3), &mut monitors).await?;
        let columns = ["limits in the policy", "ours", "script, a key for each"];
        let mut table = Table::new("µs of the server for each decision, 64 in flight", columns);
        for (place, count) in COUNTS.into_iter().enumerate() {
            table.row(count, [0, 1].map(|kind| rounds.median(2 * place + kind, COMMAND)));
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
