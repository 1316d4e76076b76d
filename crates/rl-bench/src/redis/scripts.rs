//! Measures the longest time that one script blocks a Redis server, and operations on long logs in
//! memory.
//!
//! `SLOWLOG` reports the duration of each script in whole µs of wall time, which includes stalls of
//! the machine. The fastest sample and the median show the scripts.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use redis::Value;
use redis::aio::MultiplexedConnection;
use rl_core::store::{
    DecideRequest, Layout, Mode, Namespace, Part, Refund, RefundOf, Reset, Store,
};
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{Cost, Decision, LimitSet, MemoryStore, Policy, RedisStore, Subject};
use tokio::task::JoinSet;

use super::candidate::{id, store};
use super::server::Server;
use crate::Result;
use crate::algorithms::policy;
use crate::measure::{median, quantile, sorted, time_on_processor};
use crate::report::{Report, Table};

/// Half an hour after midnight. No window of whole hours begins at this time.
const START: Timestamp = Timestamp::from_secs(1_769_905_800);
const HOUR: Duration = Duration::from_secs(3_600);
/// The number of samples of an operation, if each sample needs its own copy of the keys, and of
/// every other operation. The first sample is a warm-up.
const COPIES: usize = 21;
const SAMPLES: usize = 101;

/// The logs whose operations are measured: a name, a limit, the number of entries, and the units
/// that are refunded.
const LOGS: [(&str, &str, usize, RefundOf); 4] = [
    ("log of 10", "10/hour:sliding-log", 10, RefundOf::All),
    ("log of 60 000", "100000/hour:sliding-log", 60_000, RefundOf::All),
    ("log of 100 000", "100000/hour:sliding-log", 100_000, RefundOf::All),
    ("10 000 places", "10000:concurrency:lease=1h", 10_000, RefundOf::Permits),
];

/// Makes a request of this cost for a subject.
async fn check(store: &impl Store, policy: &Policy, subject: usize, cost: u64) -> Result<Decision> {
    let (namespace, subject) = (&Namespace::default(), &Subject::consumer(&id(subject)));
    let parts = [Part::new(subject, policy, Cost::new(cost))];
    Ok(store.decide(DecideRequest::new(namespace, &parts, Mode::Check)).await?)
}

/// Refunds one unit of a decision about the first subject.
async fn refund(store: &impl Store, policy: &Policy, charged: &Decision, of: RefundOf) -> Result {
    let (namespace, subject) = (&Namespace::default(), &Subject::consumer(&id(0)));
    let (charged, units, uncharged) = (charged.at(), 1, LimitSet::EMPTY);
    let refund = Refund { namespace, subject, policy, charged, units, of, uncharged };
    store.settle(&[refund.into()]).await?;
    Ok(())
}

/// Adds a row about samples in µs.
fn row(table: &mut Table, name: &str, operation: &str, samples: &[f64]) {
    let samples = sorted(samples.to_vec());
    table.row(format!("{name}: {operation}"), [0.0, 0.5, 0.99, 1.0].map(|q| quantile(&samples, q)));
}

/// Measures refunds and requests in long logs in memory.
pub(super) fn in_memory(report: &mut Report) -> Result {
    let title = "one operation in this process, in no order: µs of a processor";
    let mut table = Table::new(title, ["operation", "fastest", "median", "p99", "worst"]);
    for (name, limit, entries, of) in LOGS {
        let clock = Arc::new(ManualClock::at(START));
        let store = MemoryStore::builder().clock(Arc::clone(&clock)).build();
        let policy = policy([limit])?;
        let check = || {
            clock.advance(Duration::from_millis(1));
            check(&store, &policy, 0, 1).now_or_never().ok_or("memory answers at once")?
        };
        let mut charged = (0..entries).map(|_| check()).collect::<Result<Vec<_>>>()?;
        let mut samples = [Vec::new(), Vec::new()];
        for n in 0..report.size(1_001, 11) {
            let refunded = charged.swap_remove(n * 7_919 % charged.len());
            let (refund_time, done) =
                time_on_processor(|| refund(&store, &policy, &refunded, of).now_or_never());
            done.ok_or("memory answers at once")??;
            let (check_time, decision) = time_on_processor(check);
            charged.push(decision?);
            samples[0].push(refund_time.as_secs_f64() * 1e6);
            samples[1].push(check_time.as_secs_f64() * 1e6);
        }
        for (operation, samples) in ["refund", "check"].into_iter().zip(samples) {
            row(&mut table, name, operation, &samples);
        }
    }
    report.table(table);
    Ok(())
}

/// Measures scripts on long logs, and batches of many costs under many limits.
pub(super) async fn on_redis(report: &mut Report) -> Result {
    let title = "server time of one script: µs";
    let mut table = Table::new(title, ["operation", "fastest", "median", "p99", "worst"]);
    for (name, limit, entries, of) in LOGS {
        let entries = report.size(entries, entries.min(1_000));
        let mut bench = ScriptBench::new(name, policy([limit])?, false, report).await?;
        let charged = bench.fill(entries).await?;
        let refund = async |bench: &ScriptBench, n: usize| {
            let charged = &charged[n * 7_919 % entries];
            refund(&bench.store, &bench.policy, charged, of).await
        };
        let refunds = bench.sample(&mut table, "refund", SAMPLES.min(entries - 1), refund).await?;
        let check = async |bench: &ScriptBench, _| bench.check(0, 1).await;
        let checks = bench.sample(&mut table, "check", SAMPLES, check).await?;
        bench.server.copy(&id(0), (1..=COPIES + 1).map(id)).await?;
        let reset = async |bench: &ScriptBench, n| bench.reset(n + 1).await;
        bench.sample(&mut table, "reset of a limit", COPIES, reset).await?;
        if name == "log of 100 000" {
            for (operation, samples) in [("refund", refunds), ("check", checks)] {
                let what = format!("{name}: µs of the server for a {operation}");
                report.at_most(what, 200.0, median(samples));
            }
            // Half of the entries have expired at the first request after this pause.
            bench.server.copy(&id(0), (1..=COPIES + 1).map(id)).await?;
            bench.clock.advance(HOUR - Duration::from_millis(entries as u64 / 2));
            let check = async |bench: &ScriptBench, n| bench.check(n + 1, 1).await;
            bench.sample(&mut table, "expiry of many", COPIES, check).await?;
        }
    }
    let most = (1_u64 << 53) - 1;
    let days = |n| format!("{most}/{}days:sliding-window-counter", 18_000 + n);
    for (name, policy) in [
        ("16 buckets", policy((1..=16).map(|n| format!("1000000/{n}h:token-bucket")))?),
        ("16 counters of long periods", policy((1..=16).map(days))?),
    ] {
        let mut bench = ScriptBench::new(name, policy, true, report).await?;
        bench.fill(3).await?;
        let requests = async |bench: &ScriptBench, n| bench.requests_of_many_costs(n % 2 > 0).await;
        bench.sample(&mut table, "128 requests of many costs", COPIES, requests).await?;
    }
    report.table(table);
    Ok(())
}

/// A server, a store on it, and the policy that is measured.
struct ScriptBench {
    server: Server,
    operator: MultiplexedConnection,
    store: RedisStore,
    clock: Arc<ManualClock>,
    policy: Policy,
    name: &'static str,
    is_short: bool,
}

impl ScriptBench {
    async fn new(
        name: &'static str,
        policy: Policy,
        coalesces: bool,
        report: &Report,
    ) -> Result<Self> {
        let (server, clock) = (Server::start()?, Arc::new(ManualClock::at(START)));
        let store = store(&server).coalesce(coalesces).local_denial(false);
        let store = store.manual_clock(clock.clone()).connect().await?;
        let mut operator = Server::connect(&server.url(0)).await?;
        for setting in [["slowlog-log-slower-than", "0"], ["slowlog-max-len", "4096"]] {
            redis::cmd("CONFIG").arg("SET").arg(&setting).exec_async(&mut operator).await?;
        }
        for script in RedisStore::scripts(Layout::Packed, []) {
            redis::cmd("SCRIPT").arg("LOAD").arg(script.text()).exec_async(&mut operator).await?;
        }
        let is_short = report.options.is_short;
        Ok(Self { server, operator, store, clock, policy, name, is_short })
    }

    /// Makes a request, after a pause of a ms.
    async fn check(&self, subject: usize, cost: u64) -> Result {
        self.clock.advance(Duration::from_millis(1));
        check(&self.store, &self.policy, subject, cost).await.map(drop)
    }

    async fn reset(&self, subject: usize) -> Result {
        let (namespace, subject) = (&Namespace::default(), &Subject::consumer(&id(subject)));
        let (policy, limit) = (&self.policy, Some(0));
        Ok(self.store.reset(&[Reset { namespace, subject, policy, limit }]).await?)
    }

    /// Makes requests of seven different costs at the same time. If `are_large` is true, a cost is
    /// nearly the whole maximum of a bucket, so most requests are denied.
    async fn requests_of_many_costs(&self, are_large: bool) -> Result {
        self.clock.advance(Duration::from_secs(19));
        let mut calls = JoinSet::new();
        for call in 0..128 {
            let (store, policy) = (self.store.clone(), self.policy.clone());
            let cost = 1 + call % 7 + if are_large { 999_990 } else { 0 };
            calls.spawn(async move { check(&store, &policy, 0, cost).await.is_ok() });
        }
        assert!(calls.join_all().await.into_iter().all(|decided| decided), "the server is up");
        Ok(())
    }

    /// Makes this number of charges of one unit each, with pauses of a ms in between.
    async fn fill(&self, units: usize) -> Result<Vec<Decision>> {
        const AT_ONCE: usize = 256;
        let mut charged = Vec::with_capacity(units);
        while charged.len() < units {
            let mut calls = JoinSet::new();
            for _ in 0..AT_ONCE.min(units - charged.len()) {
                let (store, policy) = (self.store.clone(), self.policy.clone());
                let clock = Arc::clone(&self.clock);
                calls.spawn(async move {
                    clock.advance(Duration::from_millis(1));
                    check(&store, &policy, 0, 1).await.expect("the server is up")
                });
            }
            charged.extend(calls.join_all().await);
        }
        assert!(charged.iter().all(Decision::is_allowed), "{}: there is room", self.name);
        Ok(charged)
    }

    /// Runs an operation several times, and adds a row with the times of its scripts. Returns the
    /// times in µs.
    async fn sample(
        &mut self,
        table: &mut Table,
        operation: &str,
        count: usize,
        call: impl AsyncFn(&Self, usize) -> Result,
    ) -> Result<Vec<f64>> {
        let mut samples = Vec::new();
        for n in 0..=if self.is_short { count.min(2) } else { count } {
            redis::cmd("SLOWLOG").arg("RESET").exec_async(&mut self.operator).await?;
            call(self, n).await?;
            let mut log = redis::cmd("SLOWLOG");
            let calls: Vec<Value> =
                log.arg("GET").arg(4096).query_async(&mut self.operator).await?;
            if n > 0 {
                samples.extend(calls.iter().filter_map(micros_of_script));
            }
        }
        row(table, self.name, operation, &samples);
        Ok(samples)
    }
}

/// Returns the duration of the command from an entry of `SLOWLOG`, if the entry is about a script.
fn micros_of_script(entry: &Value) -> Option<f64> {
    let Value::Array(fields) = entry else { return None };
    let (Value::Int(micros), Value::Array(words)) = (fields.get(2)?, fields.get(3)?) else {
        return None;
    };
    let is_script = *words.first()? == Value::BulkString(b"EVALSHA".to_vec());
    is_script.then_some(*micros as f64)
}
