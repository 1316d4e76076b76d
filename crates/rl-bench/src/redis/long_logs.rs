//! Compares the server's cost of operations on a long and on a short log, and on semaphores with
//! many and with few permits.

use std::error::Error;

use fastrand::Rng;
use futures::future::try_join_all;
use rl_core::store::{DecideRequest, Mode, Namespace, Part, Refund, Store};
use rl_core::time::Timestamp;
use rl_core::{Cost, Decision, LimitSet, Policy, RedisStore, Subject};

use super::bare_refunds;
use super::candidate::patient;
use super::fixtures::subjects;
use super::server::{Monitor, Server};
use crate::goals::Goal;
use crate::long_logs::{self, KINDS, LogKind, OPERATIONS, SHORT};
use crate::report::Report;
use crate::table::Table;

/// The number of short logs.
const SHORT_LOGS: usize = 20;
/// The number of requests in flight while the logs are filled.
const IN_FLIGHT: usize = 64;
/// The number of operations in a block: half of the entries of all short logs.
const CALLS: usize = 100;
const ROUNDS: usize = 11;

/// The commands by which a store decides, refunds and reads.
const COMMANDS: &[&str] = &["evalsha", "evalsha_ro"];

/// Compares each operation on a long log with the same operation on short ones.
pub(super) async fn beside_short(
    report: &mut Report,
    goals: &mut Vec<Goal>,
) -> Result<(), Box<dyn Error>> {
    let title = "long logs and semaphores: server µs for each operation, one at a time";
    let mut table = Table::new(title, ["", "short", "long", "long beside short"]);
    let mut rng = Rng::with_seed(1);
    for kind in KINDS {
        let server = Server::start()?;
        let mut monitor = server.monitor().await?;
        let mut logs = Vec::new();
        for (database, (entries, count)) in
            [(SHORT, SHORT_LOGS), (kind.long, 1)].into_iter().enumerate()
        {
            logs.push(Logs::filled(&server, database, kind, entries, count).await?);
        }
        let mut times = long_logs::Times::default();
        for round in 0..=ROUNDS {
            let mut sums = [[0.0; OPERATIONS]; 2];
            for place in [0, 1, 1, 0] {
                let micros = logs[place].block(kind, &mut monitor, &mut rng).await?;
                sums[place].iter_mut().zip(micros).for_each(|(sum, micros)| *sum += micros / 2.0);
            }
            // The first round warms up the caches.
            if round > 0 {
                for (operation, (short, long)) in times.iter_mut().enumerate() {
                    short.push(sums[0][operation]);
                    long.push(sums[1][operation]);
                }
            }
        }
        long_logs::compare(kind, "Redis", times, &mut table, goals);
    }
    bare_refunds::measure(&mut table).await?;
    report.table("redis-beside-short", table);
    Ok(())
}

/// Full logs or semaphores, with the same number of entries in each.
struct Logs {
    store: RedisStore,
    policy: Policy,
    subjects: Vec<Subject>,
    /// The entries of all logs: for each one, the number of its subject and the time of its charge.
    charged: Vec<(usize, Timestamp)>,
}

impl Logs {
    async fn filled(
        server: &Server,
        database: usize,
        kind: LogKind,
        entries: usize,
        count: usize,
    ) -> Result<Self, Box<dyn Error>> {
        // Without coalescing, each call adds its own entry. Calls in one script would share an
        // entry.
        let store = patient(RedisStore::builder(&server.url(database)));
        let store = store.coalesce(false).local_denial(false).connect().await?;
        let policy = Policy::new([kind.limit(entries).parse()?])?;
        let mut logs = Self { store, policy, subjects: subjects(count), charged: Vec::new() };
        let charges: Vec<usize> =
            (0..count).flat_map(|n| std::iter::repeat_n(n, entries)).collect();
        for charges in charges.chunks(IN_FLIGHT) {
            let decisions = charges.iter().map(|subject| logs.decide(*subject, Mode::Check));
            for (subject, decision) in charges.iter().zip(try_join_all(decisions).await?) {
                assert!(decision.is_allowed(), "there is room");
                logs.charged.push((*subject, decision.at()));
            }
        }
        // The first refund also loads the script of refunds, so it is made before the measurement.
        let (subject, charged) = logs.charged[0];
        logs.refund(subject, charged, kind).await?;
        logs.charged[0].1 = logs.decide(subject, Mode::Check).await?.at();
        Ok(logs)
    }

    async fn refund(
        &self,
        subject: usize,
        charged: Timestamp,
        kind: LogKind,
    ) -> Result<(), Box<dyn Error>> {
        let (subject, policy, units) = (&self.subjects[subject], &self.policy, 1);
        let (namespace, of, uncharged) = (&Namespace::default(), kind.refund_of, LimitSet::EMPTY);
        let refund = Refund { namespace, subject, policy, charged, units, of, uncharged };
        self.store.settle(&[refund.into()]).await?;
        Ok(())
    }

    async fn decide(&self, subject: usize, mode: Mode) -> Result<Decision, Box<dyn Error>> {
        let parts = [Part::new(&self.subjects[subject], &self.policy, Cost::ONE)];
        let namespace = &Namespace::default();
        Ok(self.store.decide(DecideRequest::new(namespace, &parts, mode)).await?)
    }

    /// Runs each operation on full logs, which are full again at the end. Returns the µs that each
    /// operation takes on the server.
    async fn block(
        &mut self,
        kind: LogKind,
        monitor: &mut Monitor,
        rng: &mut Rng,
    ) -> Result<[f64; OPERATIONS], Box<dyn Error>> {
        let mut leaving = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            leaving.push(self.charged.swap_remove(rng.usize(..self.charged.len())));
        }
        let mut micros = [0.0; OPERATIONS];
        for (operation, micros) in micros.iter_mut().enumerate() {
            monitor.forget_commands().await?;
            for (place, charged) in &mut leaving {
                match operation {
                    0 => self.refund(*place, *charged, kind).await?,
                    1 => {
                        let decision = self.decide(*place, Mode::Check).await?;
                        assert!(decision.is_allowed(), "one has left");
                        *charged = decision.at();
                    }
                    2 => {
                        let decision = self.decide(*place, Mode::Check).await?;
                        assert!(!decision.is_allowed(), "it is full again");
                    }
                    _ => drop(self.decide(*place, Mode::Peek).await?),
                }
            }
            let (calls, spent) = monitor.commands(COMMANDS).await?;
            assert_eq!(calls, CALLS as f64, "each operation is one call");
            *micros = spent / calls;
        }
        self.charged.extend(leaving);
        Ok(micros)
    }
}
