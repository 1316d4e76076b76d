//! The cost in this process of operations on long logs: a refund, the release of one of many
//! permits, and a request after half of a log has expired.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use rl_core::store::{DecideRequest, Mode, Namespace, Part, Refund, RefundOf, Store};
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{Cost, Decision, LimitSet, MaybeReady, MemoryStore, Policy, Subject};

use crate::measure::{sorted, time_on_processor};
use crate::table::Table;

/// The cases: a name, a limit, and the number of entries in its log.
const CASES: [(&str, &str, u64); 3] = [
    ("log of 60 000", "100000/hour:sliding-log", 60_000),
    ("log of 100 000", "100000/hour:sliding-log", 100_000),
    ("10 000 places", "10000:concurrency:lease=1h", 10_000),
];
/// The number of refunds in each case, and of requests after half of a log has expired.
const REFUNDS: usize = 1_001;
const LEAVES: usize = 11;
const HOUR: u64 = 3_600_000_000;

struct Log {
    store: MemoryStore<Arc<ManualClock>>,
    clock: Arc<ManualClock>,
    policy: Policy,
    charged: Vec<Decision>,
}

/// Returns a table of the processor time in µs for each operation.
pub(crate) fn speed() -> Result<Table, Box<dyn Error>> {
    let title = "one operation in this process, in no order: µs of a processor";
    let mut table = Table::new(title, ["operation", "fastest", "median", "worst"]);
    let mut show = |what: String, samples: &[f64]| {
        let samples = sorted(samples);
        let row = [samples[0], samples[samples.len() / 2], samples[samples.len() - 1]];
        table.row([what].into_iter().chain(row.map(|micros| format!("{micros:.1}"))));
    };
    for (name, limit, entries) in CASES {
        let mut log = Log::filled(limit, entries)?;
        let refunds: Vec<f64> = (0..REFUNDS).map(|n| log.refund(n)).collect();
        show(format!("{name}: refund"), &refunds);
        let checks: Vec<f64> = (0..REFUNDS).map(|_| log.check(1)).collect();
        show(format!("{name}: check"), &checks);
        let leaves: Result<Vec<f64>, Box<dyn Error>> = (0..LEAVES)
            .map(|_| {
                let mut log = Log::filled(limit, entries)?;
                log.clock.advance(Duration::from_micros(HOUR - 500 * entries));
                Ok(log.check(1))
            })
            .collect();
        show(format!("{name}: half leaves"), &leaves?);
    }
    Ok(table)
}

impl Log {
    /// Creates a log whose entries are a millisecond apart.
    fn filled(limit: &str, entries: u64) -> Result<Self, Box<dyn Error>> {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_769_905_800)));
        let store = MemoryStore::builder().clock(Arc::clone(&clock)).build();
        let policy = Policy::new([limit.parse()?])?;
        let mut log = Self { store, clock, policy, charged: Vec::new() };
        for _ in 0..entries {
            log.clock.advance(Duration::from_millis(1));
            let decision = log.decide(1);
            assert!(decision.is_allowed(), "there is room");
            log.charged.push(decision);
        }
        Ok(log)
    }

    fn decide(&self, cost: u64) -> Decision {
        let (namespace, subject) = (&Namespace::default(), &Subject::user("alice"));
        let (policy, mode, cost) = (&self.policy, Mode::Check, Cost::new(cost));
        let parts = [Part::new(subject, policy, cost)];
        let request = DecideRequest::new(namespace, &parts, mode);
        match self.store.decide(request) {
            MaybeReady::Ready(Some(Ok(decision))) => decision,
            _ => unreachable!("memory answers without waiting"),
        }
    }

    /// Makes a request. Returns its time in µs.
    fn check(&mut self, cost: u64) -> f64 {
        time_on_processor(|| self.decide(cost)).0.as_secs_f64() * 1e6
    }

    /// Refunds one charge. Returns the time in µs.
    fn refund(&mut self, n: usize) -> f64 {
        let place = n * 7_919 % self.charged.len();
        let charged = self.charged.swap_remove(place).at();
        let (namespace, subject) = (&Namespace::default(), &Subject::user("alice"));
        let (policy, units) = (&self.policy, 1);
        let (of, uncharged) = (RefundOf::All, LimitSet::EMPTY);
        let refund = Refund { namespace, subject, policy, charged, units, of, uncharged };
        let (elapsed, _) = time_on_processor(|| self.store.refund(refund));
        elapsed.as_secs_f64() * 1e6
    }
}
