//! Requests of several parts: a key, its address, and the fleet of all keys.

use std::error::Error;
use std::sync::Arc;

use rl_core::{Limit, Policy, RedisStore};

use super::candidate::{Candidate, patient};
use super::fixtures::limits;
use super::load::{Block, ENDLESS, Load, Round, rounds, typical};
use super::parts_call::PartsCall;
use super::server::Server;
use crate::goals::{Goal, Unit};
use crate::measure::Estimate;
use crate::report::Report;
use crate::table::Table;

pub(super) const GOALS: [&str; 1] = ["R14"];

const ROUNDS: usize = 7;
const ALONE: Load = Load::on_all(1, 1_500);
const SOME: Load = Load::on_all(64, 12_000);
const MANY: Load = Load::on_all(256, 16_000);

/// The indices of the candidates. In this order: a key with six limits, the key and the fleet in
/// one request, the key and the fleet in two requests, and three parts in one request.
const KEY: usize = 0;
const FLEET: usize = 1;
const NESTED: usize = 2;
const THREE: usize = 3;

pub(super) async fn measure(report: &mut Report) -> Result<Vec<Goal>, Box<dyn Error>> {
    if !report.wants(&GOALS) {
        return Ok(Vec::new());
    }
    let server = Server::start()?;
    let mut monitor = server.monitor().await?;
    let store =
        async |database| patient(RedisStore::builder(&server.url(database))).connect().await;
    let key = || -> Result<Policy, Box<dyn Error>> { Ok(Policy::new(limits(ENDLESS)?)?) };
    let one = || Policy::new([Limit::per_minute(ENDLESS)]);
    let parts = async |database| -> Result<PartsCall, Box<dyn Error>> {
        Ok(PartsCall::new(store(database).await?, key()?, one()?))
    };
    let candidates = [
        Candidate::of_store(store(0).await?, "key", key()?),
        Candidate::of_parts("key and fleet", parts(1).await?),
        Candidate::of_parts("key, then fleet", parts(2).await?.nested()),
        Candidate::of_parts("key, address and fleet", parts(3).await?.with_address(one()?)),
    ];
    let candidates = candidates.map(Arc::new);
    let mut measured = Vec::new();
    let columns = ["", "in flight", "thousand/s", "server µs", "client µs", "calls each"];
    let mut table = Table::new("requests of several parts", columns);
    for load in [ALONE, SOME, MANY] {
        let rounds = rounds(&candidates, load, ROUNDS, &mut monitor).await?;
        for (place, candidate) in candidates.iter().enumerate() {
            let show = |of: fn(&Block) -> f64| format!("{:.2}", typical(&rounds, place, of));
            table.row([
                candidate.name.to_owned(),
                load.in_flight.to_string(),
                format!("{:.1}", 1e-3 / typical(&rounds, place, |block| block.seconds)),
                show(|block| block.server),
                show(|block| block.client),
                show(|block| block.calls),
            ]);
        }
        measured.push(rounds);
    }
    report.table("redis-parts", table);
    let [alone, some, many] = &measured[..] else { unreachable!("one for each load") };
    let seconds = |rounds, ours, theirs| ratio(rounds, ours, theirs, |block| block.seconds);
    let goal = |what, goal, measured| Goal::measured("R14", what, goal, measured);
    let times = |floor, moon| (floor, moon, Unit::Times);
    Ok(vec![
        goal(
            "decisions with a fleet beside those without, 256 in flight",
            times(0.7, 0.9),
            seconds(many, FLEET, KEY),
        ),
        goal(
            "two parts beside two nested limiters, one at a time",
            times(1.7, 2.0),
            seconds(alone, FLEET, NESTED),
        ),
        goal(
            "two parts beside two nested limiters, 64 in flight",
            times(1.2, 1.5),
            seconds(some, FLEET, NESTED),
        ),
        goal(
            "server time of three parts beside one, one at a time",
            (2.2, 1.7, Unit::AtMost("x")),
            ratio(alone, KEY, THREE, |block| block.server),
        ),
    ])
}

/// Returns the factor by which the quantity `of` is larger for `theirs` than for `ours`.
fn ratio(rounds: &[Round], ours: usize, theirs: usize, of: fn(&Block) -> f64) -> Estimate {
    let sum = |blocks: &[Block; 2]| of(&blocks[0]) + of(&blocks[1]);
    let ratios = rounds.iter().map(|round| sum(&round[theirs]) / sum(&round[ours]));
    Estimate::of(&ratios.collect::<Vec<_>>())
}
