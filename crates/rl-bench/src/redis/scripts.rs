//! The longest time that one script blocks a Redis server, under the heaviest policies that the builder
//! accepts.
//!
//! The measurement sets the clock, so that half of a log expires between two calls. `SLOWLOG` reports the
//! duration of each script in whole µs of wall time, so it includes stalls of the machine. After each
//! sample a control script of constant work runs. It reads no key, so its slowest calls show the stalls
//! alone.

mod cases;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use rl_core::store::redis::Layout;
use rl_core::store::{
    DecideRequest, Mode, Namespace, Part, RedisStore, Refund, RefundOf, Renewal, Store,
};
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{Cost, Decision, LimitSet, Policy, Subject};
use tokio::task::JoinSet;

use super::candidate::patient;
use super::fixtures::id;
use super::server::Server;
use crate::machine;
use crate::measure::sorted;
use crate::table::Table;

/// An hour after midnight, in the middle of every window.
const START: Timestamp = Timestamp::from_secs(1_769_905_800);
/// Samples of operations that need a copy of the state each.
const SAMPLES: usize = 21;
/// Samples of the other operations.
const MANY_SAMPLES: usize = 101;
/// The control script takes about as long as the longest of the others.
const CONTROL: &str = "local x = 0 for i = 1, 14000 do x = (x * 31 + i) % 65537 end return x";

/// Measures all cases and prints them.
pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    println!("the longest scripts under the heaviest policies: µs of the server for each call\n");
    println!("machine   {}", machine::cores());
    println!("versions  {}, {}", machine::program("redis-server"), machine::profile());
    println!(
        "measured  SLOWLOG of EVALSHA, {MANY_SAMPLES} samples each, {SAMPLES} of copies, no first call of a script"
    );
    println!("control   a script of constant work without keys, run after each sample\n");
    println!("{}", crate::memory::long_logs()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let columns = [
            "operation",
            "fastest",
            "median",
            "p99",
            "worst",
            "control: median",
            "p99",
            "worst",
            "of 1 ms and more",
        ];
        let mut table = Table::new("server time of one script: µs", columns);
        let measured = cases::all(&mut table).await;
        // Also prints the rows that were measured before a failure.
        println!("{table}");
        measured
    })
}

/// A server, a store on it, and the policy that is measured.
struct Bench {
    server: Server,
    operator: MultiplexedConnection,
    store: RedisStore,
    clock: Arc<ManualClock>,
    policy: Policy,
    name: &'static str,
    samples: Vec<f64>,
    control: Vec<f64>,
}

/// Returns the policy of limits in text form.
fn policy<S: AsRef<str>>(limits: impl IntoIterator<Item = S>) -> Result<Policy, Box<dyn Error>> {
    let limits = limits.into_iter().map(|text| text.as_ref().parse());
    Ok(Policy::new(limits.collect::<Result<Vec<_>, _>>()?)?)
}

impl Bench {
    async fn new(name: &'static str, policy: Policy) -> Result<Self, Box<dyn Error>> {
        Self::with(name, policy, Layout::Packed, false).await
    }

    async fn with(
        name: &'static str,
        policy: Policy,
        layout: Layout,
        coalesce: bool,
    ) -> Result<Self, Box<dyn Error>> {
        let (server, clock) = (Server::start()?, Arc::new(ManualClock::at(START)));
        let store = patient(RedisStore::builder(&server.url(0)).layout(layout));
        let store = store.coalesce(coalesce).local_denial(false).manual_clock(clock.clone());
        let (store, mut operator) = (store.connect().await?, server.connect(0).await?);
        for setting in [["slowlog-log-slower-than", "0"], ["slowlog-max-len", "4096"]] {
            redis::cmd("CONFIG").arg("SET").arg(&setting).exec_async(&mut operator).await?;
        }
        for script in RedisStore::scripts(layout) {
            // The manual clock is part of the script's text. A first call compiles it.
            redis::cmd("SCRIPT").arg("LOAD").arg(script.text()).exec_async(&mut operator).await?;
        }
        Ok(Self {
            server,
            operator,
            store,
            clock,
            policy,
            name,
            samples: Vec::new(),
            control: Vec::new(),
        })
    }

    fn advance(&self, micros: u64) {
        self.clock.advance(Duration::from_micros(micros));
    }

    async fn decide(&self, subject: usize, mode: Mode, cost: u64) -> Decision {
        self.decide_under(&self.policy, subject, mode, cost).await
    }

    async fn decide_under(
        &self,
        policy: &Policy,
        subject: usize,
        mode: Mode,
        cost: u64,
    ) -> Decision {
        decide(&self.store, policy, subject, mode, cost).await
    }

    /// Charges `units` times one unit, with pauses. Returns the decisions.
    async fn fill(&self, subject: usize, units: usize, pause: u64) -> Vec<Decision> {
        const AT_ONCE: usize = 256;
        let mut charged = Vec::with_capacity(units);
        while charged.len() < units {
            let mut calls = JoinSet::new();
            for _ in 0..AT_ONCE.min(units - charged.len()) {
                let (store, policy) = (self.store.clone(), self.policy.clone());
                let clock = Arc::clone(&self.clock);
                calls.spawn(async move {
                    clock.advance(Duration::from_micros(pause));
                    decide(&store, &policy, subject, Mode::Check, 1).await
                });
            }
            charged.extend(calls.join_all().await);
        }
        assert!(charged.iter().all(Decision::is_allowed), "{}: there is room", self.name);
        charged
    }

    async fn copy(&self, subjects: usize) -> Result<(), Box<dyn Error>> {
        self.server.copy(0, &id(0), (1..=subjects).map(id)).await
    }

    fn refund_of(&self, subject: usize, charged: &Decision, of: RefundOf) -> RefundNow {
        let (store, policy, at) = (self.store.clone(), self.policy.clone(), charged.at());
        RefundNow { store, policy, at, of, subject }
    }

    /// Begins a sample.
    async fn forget_calls(&mut self) -> Result<(), Box<dyn Error>> {
        Ok(redis::cmd("SLOWLOG").arg("RESET").exec_async(&mut self.operator).await?)
    }

    /// Ends a sample: records the scripts since the last [`Self::forget_calls`], and runs the
    /// control.
    async fn note(&mut self) -> Result<(), Box<dyn Error>> {
        redis::cmd("EVAL").arg(CONTROL).arg(0).exec_async(&mut self.operator).await?;
        let mut get = redis::cmd("SLOWLOG");
        let calls: Vec<Value> = get.arg("GET").arg(4096).query_async(&mut self.operator).await?;
        let of = |command: &[u8]| -> Vec<f64> {
            calls.iter().filter_map(|call| micros_of(command, call)).collect()
        };
        let scripts = of(b"evalsha");
        if scripts.is_empty() {
            return Err("no script was run".into());
        }
        self.samples.extend(scripts);
        self.control.extend(of(b"eval"));
        Ok(())
    }

    /// Adds the recorded samples except the first to the table.
    fn show(&mut self, table: &mut Table, operation: &str) {
        let (samples, control) = (sorted(&self.samples[1..]), sorted(&self.control[1..]));
        let at = |samples: &[f64], q: f64| {
            let nearest = (q * (samples.len() - 1) as f64).ceil() as usize;
            format!("{:.0}", samples[nearest])
        };
        let long = |samples: &[f64]| samples.iter().filter(|micros| **micros >= 1_000.0).count();
        let row = [0.0, 0.5, 0.99, 1.0].map(|q| at(&samples, q));
        let beside = [0.5, 0.99, 1.0].map(|q| at(&control, q));
        let long = format!("{} of {}", long(&samples), samples.len());
        let name = format!("{}: {operation}", self.name);
        table.row([name].into_iter().chain(row).chain(beside).chain([long]));
        self.samples.clear();
        self.control.clear();
    }
}

/// A refund or a renewal to be made.
struct RefundNow {
    store: RedisStore,
    policy: Policy,
    at: Timestamp,
    of: RefundOf,
    subject: usize,
}

impl RefundNow {
    async fn make(&self) -> Result<(), Box<dyn Error>> {
        let Self { policy, at: charged, of, subject, .. } = self;
        let (namespace, subject) = (&Namespace::default(), &Subject::consumer(&id(*subject)));
        let (charged, of, uncharged, units) = (*charged, *of, LimitSet::EMPTY, 1);
        let refund = Refund { namespace, subject, policy, charged, units, of, uncharged };
        Ok(self.store.refund(refund).await?)
    }

    async fn renew(&self) -> Result<Option<Timestamp>, Box<dyn Error>> {
        let Self { policy, at: charged, subject, .. } = self;
        let (namespace, subject) = (&Namespace::default(), &Subject::consumer(&id(*subject)));
        let (charged, uncharged, units) = (*charged, LimitSet::EMPTY, 1);
        let renewal = Renewal { namespace, subject, policy, charged, units, uncharged };
        Ok(self.store.renew(renewal).await?)
    }
}

async fn decide(
    store: &RedisStore,
    policy: &Policy,
    subject: usize,
    mode: Mode,
    cost: u64,
) -> Decision {
    let (namespace, subject) = (&Namespace::default(), &Subject::consumer(&id(subject)));
    let parts = [Part::new(subject, policy, Cost::new(cost))];
    let request = DecideRequest::new(namespace, &parts, mode);
    store.decide(request).await.expect("the server is up")
}

/// Returns the duration of a call of the command, from an entry of `SLOWLOG`.
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
