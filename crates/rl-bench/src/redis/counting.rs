//! Our limiter on Redis beside the same limiter without counts: the time that counting adds to a
//! decision.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use super::candidate::{Candidate, Decide};
use super::fixtures::{SUBJECTS, id};
use super::load::{Block, ENDLESS, Load, Round, SHOWN, rounds};
use super::server::Server;
use crate::goals::{Goal, Unit};
use crate::measure::Estimate;
use crate::report::Report;
use crate::table::Table;

pub(super) const GOALS: [&str; 1] = ["R15"];

const ROUNDS: usize = 60;
const LOAD: Load = Load::on_all(SHOWN, 8_192);

/// The indices of the candidates. The second limiter without counts shows the noise.
const COUNTED: usize = 0;
const UNCOUNTED: usize = 1;
const UNCOUNTED_TOO: usize = 2;

/// Defines a function that creates a limiter of this crate. Both crates have the same sources.
macro_rules! limiter_of {
    ($name:ident, $core:ident) => {
        async fn $name(url: &str) -> Result<Decide, Box<dyn Error>> {
            let patience = Duration::from_secs(20);
            let store = $core::RedisStore::builder(url).connections(1);
            let store = store.connection_wait(patience).response_timeout(patience);
            let six = $core::Period::NAMED.map(|period| $core::Limit::new(ENDLESS.into(), period));
            let policy = $core::Policy::new(six.into_iter().collect::<Result<Vec<_>, _>>()?)?;
            let limiter = $core::RateLimiter::builder()
                .policy(policy)
                .store(store.connect().await?)
                .deadline(patience)
                .on_store_failure($core::OnFailure::Reject)
                .build()?;
            let subjects: Vec<_> =
                (0..SUBJECTS).map(|n| $core::Subject::consumer(&id(n))).collect();
            Ok(Box::new(move |subject| {
                let decision = limiter.check(&subjects[subject], 1);
                Box::pin(async move { decision.await.is_allowed() })
            }))
        }
    };
}

limiter_of!(counted, rl_core);
limiter_of!(uncounted, rl_core_uncounted);

/// Measures by how much counting delays decisions under a load.
pub(super) async fn measure(report: &mut Report) -> Result<Vec<Goal>, Box<dyn Error>> {
    if !report.wants(&GOALS) {
        return Ok(Vec::new());
    }
    let server = Server::start()?;
    let mut monitor = server.monitor().await?;
    let candidates = [
        Candidate::of_function("with counts", counted(&server.url(0)).await?),
        Candidate::of_function("without counts", uncounted(&server.url(1)).await?),
        Candidate::of_function("without counts, too", uncounted(&server.url(2)).await?),
    ];
    let rounds = rounds(&candidates.map(Arc::new), LOAD, ROUNDS, &mut monitor).await?;
    let (elapsed, client) = (|block: &Block| block.seconds, |block: &Block| block.client);
    let mut table = Table::new(
        "counting, 64 in flight, in % of the time without counts",
        ["", "elapsed", "processor of the client"],
    );
    for (name, place) in
        [("counting adds", COUNTED), ("two without counts differ by", UNCOUNTED_TOO)]
    {
        let [elapsed, client] = [added(&rounds, place, elapsed), added(&rounds, place, client)];
        table.row([name.to_owned(), elapsed.plain(), client.plain()]);
    }
    report.table("redis-counting", table);
    let what = "counting adds to the time of six windows, 64 in flight";
    let goal = (1.0, 0.5, Unit::AtMost("%"));
    Ok(vec![Goal::measured("R15", what, goal, added(&rounds, COUNTED, elapsed))])
}

/// Returns by how many percent a candidate exceeds [`UNCOUNTED`].
fn added(rounds: &[Round], place: usize, of: fn(&Block) -> f64) -> Estimate {
    let sum = |blocks: &[Block; 2]| of(&blocks[0]) + of(&blocks[1]);
    let percent = |round: &Round| (sum(&round[place]) / sum(&round[UNCOUNTED]) - 1.0) * 100.0;
    Estimate::of(&rounds.iter().map(percent).collect::<Vec<_>>())
}
