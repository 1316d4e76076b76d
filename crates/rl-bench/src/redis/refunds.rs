//! The server's cost of a refund in a long log, and of the release of one of many permits.

use std::error::Error;

use rl_core::store::{DecideRequest, Mode, Namespace, Part, Refund, RefundOf, Store};
use rl_core::{Cost, Decision, LimitSet, Policy, RedisStore, Subject};

use super::candidate::patient;
use super::server::{Monitor, Server};
use crate::measure::median;
use crate::table::Table;

/// The cases: a name, a limit, the number of entries in each log, and the number of logs.
const CASES: [(&str, &str, usize, usize); 4] = [
    ("log of 10", "100000/hour:sliding-log", 10, 200),
    ("log of 60 000", "100000/hour:sliding-log", 60_000, 1),
    ("10 places taken", "10000:concurrency:lease=1h", 10, 200),
    ("10 000 places taken", "10000:concurrency:lease=1h", 10_000, 1),
];
/// The number of refunds in each round, and the number of rounds.
const REFUNDS: usize = 200;
const ROUNDS: usize = 5;

/// Returns a table of the server's processor time in µs for each script.
pub(super) async fn speed() -> Result<Table, Box<dyn Error>> {
    let title = "server CPU per refund or release in no order: µs of the script, one at a time";
    let mut table = Table::new(title, ["", "median", "worst"]);
    for (name, limit, entries, subjects) in CASES {
        let server = Server::start()?;
        let store = patient(RedisStore::builder(&server.url(0)).coalesce(false)).connect().await?;
        let policy = Policy::new([limit.parse()?])?;
        let mut charged = Vec::new();
        for n in 0..subjects {
            let subject = Subject::consumer(&format!("consumer-{n}"));
            for _ in 0..entries {
                let decision = charge(&store, &policy, &subject).await?;
                charged.push((subject.clone(), decision));
            }
        }
        let (mut monitor, mut micros, mut random) = (server.monitor().await?, Vec::new(), 1);
        for _ in 0..ROUNDS {
            micros.push(round(&store, &policy, &mut charged, &mut monitor, &mut random).await?);
        }
        let worst = micros.iter().copied().fold(0.0, f64::max);
        let cells = [median(&micros), worst].map(|micros| format!("{micros:.1}"));
        table.row([name.to_owned()].into_iter().chain(cells));
    }
    Ok(table)
}

async fn charge(
    store: &RedisStore,
    policy: &Policy,
    subject: &Subject,
) -> Result<Decision, Box<dyn Error>> {
    let (namespace, mode, cost) = (&Namespace::default(), Mode::Check, Cost::ONE);
    Ok(store
        .decide(DecideRequest::new(namespace, &[Part::new(subject, policy, cost)], mode))
        .await?)
}

/// Refunds randomly chosen charges. Returns the server's time in µs for each.
async fn round(
    store: &RedisStore,
    policy: &Policy,
    charged: &mut Vec<(Subject, Decision)>,
    monitor: &mut Monitor,
    random: &mut u64,
) -> Result<f64, Box<dyn Error>> {
    let namespace = &Namespace::default();
    monitor.forget_commands().await?;
    for _ in 0..REFUNDS {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let place = (*random >> 33) as usize % charged.len();
        let (subject, decision) = charged.swap_remove(place);
        let (subject, of, uncharged) = (&subject, RefundOf::All, LimitSet::EMPTY);
        let charged = decision.at();
        let refund = Refund { namespace, subject, policy, charged, units: 1, of, uncharged };
        store.refund(refund).await?;
    }
    let (calls, micros) = monitor.command("evalsha").await?;
    Ok(micros / calls)
}
