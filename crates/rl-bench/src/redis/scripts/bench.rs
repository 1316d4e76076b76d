//! A server, a store and a policy, and the times of their scripts.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use rl_core::store::{DecideRequest, Layout, Lease, Mode, Namespace, Part, Refund, RefundOf, Renewal, Store};
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{Cost, Decision, LimitSet, Policy, RedisStore, Subject};
use tokio::task::JoinSet;

use super::super::candidate::patient;
use super::super::fixtures::id;
use super::super::server::Server;
use crate::measure::sorted;
use crate::table::Table;

/// Half an hour after midnight. No window of whole hours begins at this time.
const START: Timestamp = Timestamp::from_secs(1_769_905_800);
/// The number of samples of an operation, if each sample needs its own copy of the keys.
pub(super) const SAMPLES: usize = 21;
/// The number of samples of every other operation.
pub(super) const MANY_SAMPLES: usize = 101;
/// The control script takes about as long as the longest other script.
const CONTROL: &str = "local x = 0 for i = 1, 14000 do x = (x * 31 + i) % 65537 end return x";

/// A server, a store on it, and the policy that is measured.
pub(super) struct Bench {
    server: Server,
    pub(super) operator: MultiplexedConnection,
    pub(super) store: RedisStore,
    clock: Arc<ManualClock>,
    pub(super) policy: Policy,
    name: &'static str,
    pub(super) samples: Vec<f64>,
    control: Vec<f64>,
}

/// Parses limits in text form into a policy.
pub(super) fn policy<S: AsRef<str>>(
    limits: impl IntoIterator<Item = S>,
) -> Result<Policy, Box<dyn Error>> {
    let limits = limits.into_iter().map(|text| text.as_ref().parse());
    Ok(Policy::new(limits.collect::<Result<Vec<_>, _>>()?)?)
}

impl Bench {
    pub(super) async fn new(name: &'static str, policy: Policy) -> Result<Self, Box<dyn Error>> {
        Self::with(name, policy, Layout::Packed, false).await
    }

    pub(super) async fn with(
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
        for script in RedisStore::scripts(layout, []) {
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

    pub(super) fn advance(&self, micros: u64) {
        self.clock.advance(Duration::from_micros(micros));
    }

    pub(super) async fn decide(&self, subject: usize, mode: Mode, cost: u64) -> Decision {
        self.decide_under(&self.policy, subject, mode, cost).await
    }

    pub(super) async fn decide_under(
        &self,
        policy: &Policy,
        subject: usize,
        mode: Mode,
        cost: u64,
    ) -> Decision {
        decide(&self.store, policy, subject, mode, cost).await
    }

    /// Makes `units` charges of one unit each, with pauses of `pause` µs in between. Returns the
    /// decisions.
    pub(super) async fn fill(&self, subject: usize, units: usize, pause: u64) -> Vec<Decision> {
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

    pub(super) async fn copy(&self, subjects: usize) -> Result<(), Box<dyn Error>> {
        self.server.copy(0, &id(0), (1..=subjects).map(id)).await
    }

    pub(super) fn refund_of(&self, subject: usize, charged: &Decision, of: RefundOf) -> RefundNow {
        let (store, policy, at) = (self.store.clone(), self.policy.clone(), charged.at());
        RefundNow { store, policy, at, of, subject }
    }

    /// Begins a sample.
    pub(super) async fn forget_calls(&mut self) -> Result<(), Box<dyn Error>> {
        Ok(redis::cmd("SLOWLOG").arg("RESET").exec_async(&mut self.operator).await?)
    }

    /// Ends a sample: records how long each script has taken since the last call of
    /// [`Self::forget_calls`], and runs the control script.
    pub(super) async fn note(&mut self) -> Result<(), Box<dyn Error>> {
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

    /// Adds a row for the recorded samples to the table. The first sample is left out as a warm-up.
    pub(super) fn show(&mut self, table: &mut Table, operation: &str) {
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

/// A charge of one unit, which `make` refunds or `renew` renews.
pub(super) struct RefundNow {
    store: RedisStore,
    policy: Policy,
    at: Timestamp,
    of: RefundOf,
    subject: usize,
}

impl RefundNow {
    pub(super) async fn make(&self) -> Result<(), Box<dyn Error>> {
        let Self { policy, at: charged, of, subject, .. } = self;
        let (namespace, subject) = (&Namespace::default(), &Subject::consumer(&id(*subject)));
        let (charged, of, uncharged, units) = (*charged, *of, LimitSet::EMPTY, 1);
        let refund = Refund { namespace, subject, policy, charged, units, of, uncharged };
        self.store.settle(&[refund.into()]).await?;
        Ok(())
    }

    pub(super) async fn renew(&self) -> Result<Option<Timestamp>, Box<dyn Error>> {
        let Self { policy, at: charged, subject, .. } = self;
        let (namespace, subject) = (&Namespace::default(), &Subject::consumer(&id(*subject)));
        let (charged, uncharged, units) = (*charged, LimitSet::EMPTY, 1);
        let renewal = Renewal { namespace, subject, policy, charged, units, uncharged, lease: Lease::Permits };
        Ok(self.store.renew(renewal).await?.held())
    }
}

pub(super) async fn decide(
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
