//! Measures the longest time that one script blocks a Redis server, under the heaviest policies
//! that the builder accepts, and operations on long logs in memory.
//!
//! `SLOWLOG` reports the duration of each script in whole µs of wall time, which includes stalls of
//! the machine. A control script with constant work therefore runs after each sample. It reads no
//! key, so its slowest calls show the effect of stalls alone.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use redis::Value;
use redis::aio::MultiplexedConnection;
use rl_core::store::{
    DecideRequest, Layout, Lease, Mode, Namespace, Part, Refund, RefundOf, Renewal, Reset, Store,
};
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{Cost, Decision, LimitSet, MemoryStore, Policy, RedisStore, Subject};
use tokio::task::JoinSet;

use super::candidate::{id, store};
use super::server::Server;
use crate::Result;
use crate::measure::{Estimate, median, quantile, sorted, time_on_processor};
use crate::report::{Bound, Report, Table};

const HOUR: u64 = 3_600_000_000;
/// Half an hour after midnight. No window of whole hours begins at this time.
const START: Timestamp = Timestamp::from_secs(1_769_905_800);
/// The number of samples of an operation, if each sample needs its own copy of the keys, and of
/// every other operation. The first sample is a warm-up.
const COPIES: usize = 21;
const SAMPLES: usize = 101;
/// The control script takes about as long as the longest other script.
const CONTROL: &str = "local x = 0 for i = 1, 14000 do x = (x * 31 + i) % 65537 end return x";
const MOST: u64 = 9_007_199_254_740_991;

/// Parses limits in text form into a policy.
fn policy<S: AsRef<str>>(limits: impl IntoIterator<Item = S>) -> Result<Policy> {
    let limits = limits.into_iter().map(|text| text.as_ref().parse());
    Ok(Policy::new(limits.collect::<std::result::Result<Vec<_>, _>>()?)?)
}

/// Returns a policy with the maximum number of sliding windows of 200 buckets.
fn windows_of_200() -> Result<Policy> {
    let window = |hours| format!("1000000/{hours}h:sliding-window:precision={}s", 18 * hours);
    let windows = |count| policy((1..=count).map(window)).ok();
    (1..=16).rev().find_map(windows).ok_or("no policy of windows".into())
}

/// Returns a policy of sixteen limits.
fn sixteen(rest: &str) -> Result<Policy> {
    policy((1..=16).map(|hours| format!("1000000/{hours}h{rest}")))
}

/// Returns a policy of sixteen counters whose arithmetic is the longest.
fn long_counters() -> Result<Policy> {
    policy((1..=16).map(|n| format!("{MOST}/{}days:sliding-window-counter", 18_000 + n)))
}

/// Makes a request for a subject.
async fn decide(
    store: &impl Store,
    policy: &Policy,
    subject: usize,
    mode: Mode,
    cost: u64,
) -> Result<Decision> {
    let (namespace, subject) = (&Namespace::default(), &Subject::consumer(&id(subject)));
    let parts = [Part::new(subject, policy, Cost::new(cost))];
    Ok(store.decide(DecideRequest::new(namespace, &parts, mode)).await?)
}

/// Refunds one unit of a decision about the first subject.
async fn refund(store: &impl Store, policy: &Policy, charged: &Decision, of: RefundOf) -> Result {
    let (namespace, subject) = (&Namespace::default(), &Subject::consumer(&id(0)));
    let (charged, units, uncharged) = (charged.at(), 1, LimitSet::EMPTY);
    let refund = Refund { namespace, subject, policy, charged, units, of, uncharged };
    store.settle(&[refund.into()]).await?;
    Ok(())
}

/// The logs whose operations are measured: a name, a limit, the number of entries, and the units
/// that are refunded.
const LOGS: [(&str, &str, usize, RefundOf); 4] = [
    ("log of 10", "10/hour:sliding-log", 10, RefundOf::All),
    ("log of 60 000", "100000/hour:sliding-log", 60_000, RefundOf::All),
    ("log of 100 000", "100000/hour:sliding-log", 100_000, RefundOf::All),
    ("10 000 places", "10000:concurrency:lease=1h", 10_000, RefundOf::Permits),
];

/// Measures refunds and requests in long logs in memory.
pub(super) fn in_memory(report: &mut Report) -> Result {
    let title = "one operation in this process, in no order: µs of a processor";
    let mut table = Table::new(title, ["operation", "median", "p99", "worst"]);
    for (name, limit, entries, of) in LOGS {
        let clock = Arc::new(ManualClock::at(START));
        let store = MemoryStore::builder().clock(Arc::clone(&clock)).build();
        let policy = policy([limit])?;
        let check = || {
            clock.advance(Duration::from_millis(1));
            decide(&store, &policy, 0, Mode::Check, 1)
                .now_or_never()
                .ok_or("memory answers at once")?
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
            let samples = sorted(samples);
            let of = [0.5, 0.99, 1.0].map(|q| quantile(&samples, q).into());
            table.row([format!("{name}: {operation}").into()].into_iter().chain(of));
        }
    }
    report.table(table);
    Ok(())
}

/// Measures the scripts of all cases.
pub(super) async fn on_redis(report: &mut Report) -> Result {
    let columns = [
        "operation",
        "fastest",
        "median",
        "p99",
        "worst",
        "control: p99",
        "worst",
        "of 1 ms and more",
    ];
    let mut table = Table::new("server time of one script: µs", columns);
    let measured = cases(report, &mut table).await;
    // The rows that were measured before a failure are printed too.
    report.table(table);
    measured
}

async fn cases(report: &mut Report, table: &mut Table) -> Result {
    for (name, limit, entries, of) in LOGS {
        let entries = report.size(entries, entries.min(1_000));
        let bench = ScriptBench::new(name, policy([limit])?, false, report).await?;
        let charged = bench.fill(entries, 1_000).await?;
        if of == RefundOf::Permits {
            bench
                .sample(table, "renewal", SAMPLES, async |n| {
                    bench.advance(1_000);
                    bench.renew(&charged[(n * 7_919 + 1) % entries]).await
                })
                .await?;
        }
        let refund = async |n: usize| {
            refund(&bench.store, &bench.policy, &charged[n * 7_919 % entries], of).await
        };
        let refunds = bench.sample(table, "refund", SAMPLES.min(entries - 1), refund).await?;
        let checks = bench.sample_decisions(table).await?;
        if name == "log of 100 000" {
            for (operation, samples) in [("refund", refunds), ("check", checks)] {
                let what = format!("{name}: server time of a {operation}");
                report.goal(&what, Bound::AtMost(200.0), "µs", Estimate::exact(median(samples)));
            }
            bench.sample_expiry(table, HOUR - 500 * entries as u64).await?;
        }
    }
    // A third log of this length would exceed the maximum weight of a policy. Half of its entries
    // expire when the clock has advanced by one and a half hours.
    let two_logs = policy(["100000/hour:sliding-log", "100000/2h:sliding-log"])?;
    let many_logs = policy((1..=6).map(|hours| format!("1000/{hours}h:sliding-log")))?;
    let gcra = policy((1..=16).map(|n| format!("94906265/{n}days:gcra:burst=94906265")))?;
    for (name, policy, (units, pause), charge, expiry) in [
        ("two logs of 100 000", two_logs, (100_000, 36_000), 0, Some(3 * HOUR / 2)),
        ("6 logs of 1 000", many_logs, (999, 1_000), 0, Some(6 * HOUR - 1_000)),
        ("windows of 200 buckets", windows_of_200()?, (200, 18_000_000), 0, None),
        ("16 counters of long periods", long_counters()?, (0, 18_200 * 24 * HOUR), MOST / 3, None),
        ("16 GCRA", gcra, (0, 0), 90_000_000, None),
    ] {
        let bench = ScriptBench::new(name, policy, false, report).await?;
        bench.fill(report.size(units, units.min(200)), pause).await?;
        if charge > 0 {
            bench.decide(Mode::Charge, charge).await?;
            bench.advance(pause);
        }
        bench.sample_decisions(table).await?;
        if let Some(pause) = expiry {
            bench.sample_expiry(table, pause).await?;
        }
    }
    batches(report, table).await
}

/// Measures batches of one subject, and batches of many subjects.
async fn batches(report: &Report, table: &mut Table) -> Result {
    for (name, policy, subjects) in [
        ("log of 1 000", policy(["1000/day:sliding-log"])?, 1),
        ("16 fixed windows", sixteen("")?, 128),
        ("16 buckets", sixteen(":token-bucket")?, 1),
        ("windows of 200 buckets", windows_of_200()?, 1),
        ("16 counters of long periods", long_counters()?, 1),
    ] {
        let bench = ScriptBench::new(name, policy, true, report).await?;
        bench.fill(if name.starts_with("log") { 999 } else { 3 }, 1_000).await?;
        bench.advance(HOUR);
        for (operation, subjects, costs) in [
            ("128 requests of one subject", 1, 1),
            ("128 requests of one subject, of many costs", 1, 7),
            ("128 subjects", subjects, 1),
        ] {
            if operation == "128 subjects" && subjects == 1 {
                continue;
            }
            bench
                .sample(table, operation, COPIES, async |n| {
                    bench.advance(19_000_000);
                    let mut calls = JoinSet::new();
                    for call in 0..128 {
                        let (store, policy) = (bench.store.clone(), bench.policy.clone());
                        // In every second sample, the cost is nearly the whole `max` of most kinds,
                        // so most calls are denied.
                        let cost = 1 + (call % costs) as u64 + if n % 2 == 0 { 0 } else { 999_990 };
                        calls.spawn(async move {
                            decide(&store, &policy, call % subjects, Mode::Check, cost)
                                .await
                                .is_ok()
                        });
                    }
                    assert!(
                        calls.join_all().await.into_iter().all(|is_decided| is_decided),
                        "the server is up"
                    );
                    Ok(())
                })
                .await?;
        }
    }
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
        let store = store(&server, 0).coalesce(coalesces).local_denial(false);
        let store = store.manual_clock(clock.clone()).connect().await?;
        let mut operator = server.connect(0).await?;
        for setting in [["slowlog-log-slower-than", "0"], ["slowlog-max-len", "4096"]] {
            redis::cmd("CONFIG").arg("SET").arg(&setting).exec_async(&mut operator).await?;
        }
        for script in RedisStore::scripts(Layout::Packed, []) {
            redis::cmd("SCRIPT").arg("LOAD").arg(script.text()).exec_async(&mut operator).await?;
        }
        let is_short = report.rounds(2) == 1;
        Ok(Self { server, operator, store, clock, policy, name, is_short })
    }

    fn advance(&self, micros: u64) {
        self.clock.advance(Duration::from_micros(micros));
    }

    /// Makes a request for the first subject.
    async fn decide(&self, mode: Mode, cost: u64) -> Result<Decision> {
        decide(&self.store, &self.policy, 0, mode, cost).await
    }

    async fn renew(&self, charged: &Decision) -> Result {
        let (namespace, subject, policy) =
            (&Namespace::default(), &Subject::consumer(&id(0)), &self.policy);
        let (charged, uncharged, units) = (charged.at(), LimitSet::EMPTY, 1);
        let lease = Lease::Permits;
        let renewal = Renewal { namespace, subject, policy, charged, units, uncharged, lease };
        self.store.renew(renewal).await?.held().ok_or("the permit was lost")?;
        Ok(())
    }

    /// Makes this number of charges of one unit each, with pauses of `pause` µs in between.
    async fn fill(&self, units: usize, pause: u64) -> Result<Vec<Decision>> {
        const AT_ONCE: usize = 256;
        let mut charged = Vec::with_capacity(units);
        while charged.len() < units {
            let mut calls = JoinSet::new();
            for _ in 0..AT_ONCE.min(units - charged.len()) {
                let (store, policy, clock) =
                    (self.store.clone(), self.policy.clone(), Arc::clone(&self.clock));
                calls.spawn(async move {
                    clock.advance(Duration::from_micros(pause));
                    decide(&store, &policy, 0, Mode::Check, 1).await.expect("the server is up")
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
        &self,
        table: &mut Table,
        operation: &str,
        count: usize,
        call: impl AsyncFn(usize) -> Result,
    ) -> Result<Vec<f64>> {
        let mut operator = self.operator.clone();
        let (mut scripts, mut control) = (Vec::new(), Vec::new());
        for n in 0..=if self.is_short { count.min(2) } else { count } {
            redis::cmd("SLOWLOG").arg("RESET").exec_async(&mut operator).await?;
            call(n).await?;
            redis::cmd("EVAL").arg(CONTROL).arg(0).exec_async(&mut operator).await?;
            let calls: Vec<Value> =
                redis::cmd("SLOWLOG").arg("GET").arg(4096).query_async(&mut operator).await?;
            if n > 0 {
                scripts.extend(calls.iter().filter_map(|call| micros_of(b"evalsha", call)));
                control.extend(calls.iter().filter_map(|call| micros_of(b"eval", call)));
            }
        }
        let long = scripts.iter().filter(|micros| **micros >= 1_000.0).count();
        let [all, beside] = [scripts.clone(), control].map(sorted);
        let of = |samples: &[f64], q: f64| {
            samples[(q * (samples.len() - 1) as f64).ceil() as usize].into()
        };
        let row = [0.0, 0.5, 0.99, 1.0].map(|q| of(&all, q)).into_iter();
        let row = row.chain([0.99, 1.0].map(|q| of(&beside, q)));
        let long = format!("{long} of {}", all.len()).into();
        table.row(
            [format!("{}: {operation}", self.name).into()].into_iter().chain(row).chain([long]),
        );
        Ok(scripts)
    }

    /// Measures requests that are granted, denied, or granted only a part of their cost, and a
    /// charge beyond the limits. Then measures resets on copies of the keys. Returns the times of
    /// the granted and the denied requests.
    async fn sample_decisions(&self, table: &mut Table) -> Result<Vec<f64>> {
        let used = self.decide(Mode::Peek, 0).await?;
        let fits = used.limits().map(|limit| limit.remaining()).min().unwrap_or_default();
        let max = used.limits().map(|limit| limit.max()).min().unwrap_or_default();
        let mut checks = Vec::new();
        for (operation, mode, cost) in [
            ("check", Mode::Check, 1),
            ("check of more than fits", Mode::Check, fits + (max - fits) / 2 + 1),
            ("charge beyond the limits", Mode::Charge, 1),
            ("check up to 2^53", Mode::CheckUpTo, MOST),
        ] {
            let samples = self.sample(table, operation, SAMPLES, async |_| {
                self.advance(1);
                self.decide(mode, cost).await.map(drop)
            });
            checks.extend(samples.await?.into_iter().filter(|_| mode == Mode::Check));
        }
        self.server.copy(&id(0), (1..=2 * COPIES + 2).map(id)).await?;
        for (operation, limit) in [("reset", None), ("reset of a limit", Some(0))] {
            self.sample(table, operation, COPIES, async |n| {
                let subject = &Subject::consumer(&id(2 * n + 1 + usize::from(limit.is_some())));
                let (namespace, policy) = (&Namespace::default(), &self.policy);
                Ok(self.store.reset(&[Reset { namespace, subject, policy, limit }]).await?)
            })
            .await?;
        }
        Ok(checks)
    }

    /// Measures the first request after a pause of `micros`, which removes the entries that have
    /// expired. Each sample runs on a copy of the keys.
    async fn sample_expiry(&self, table: &mut Table, micros: u64) -> Result {
        self.server.copy(&id(0), (1..=COPIES + 1).map(id)).await?;
        self.advance(micros);
        let check =
            async |n| decide(&self.store, &self.policy, n + 1, Mode::Check, 1).await.map(drop);
        self.sample(table, "expiry of many", COPIES, check).await.map(drop)
    }
}

/// Returns the duration of the command from an entry of `SLOWLOG`, if the entry is about this
/// command.
fn micros_of(command: &[u8], entry: &Value) -> Option<f64> {
    let Value::Array(fields) = entry else { return None };
    let (Value::Int(micros), Value::Array(words)) = (fields.get(2)?, fields.get(3)?) else {
        return None;
    };
    match words.first()? {
        Value::BulkString(name) if name.eq_ignore_ascii_case(command) => Some(*micros as f64),
        _ => None,
    }
}
