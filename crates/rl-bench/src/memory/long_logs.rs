//! Compares the cost of operations in memory on a long and on a short log, and on semaphores with
//! many and with few permits. Also measures a request after half of a log has expired at once.

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use rl_core::store::{DecideRequest, Mode, Namespace, Part, Refund, RefundOf, Store};
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{Cost, Decision, LimitSet, MaybeReady, MemoryStore, Policy, Subject};

use crate::goals::Goal;
use crate::long_logs::{self, KINDS, LogKind, OPERATIONS, SHORT};
use crate::measure::{sorted, time, time_on_processor};
use crate::report::Report;
use crate::table::Table;

/// The cases: a name, a limit, and the number of entries in its log.
const CASES: [(&str, &str, u64); 3] = [
    ("log of 60 000", "100000/hour:sliding-log", 60_000),
    ("log of 100 000", "100000/hour:sliding-log", 100_000),
    ("10 000 places", "10000:concurrency:lease=1h", 10_000),
];
/// The number of refunds in each case, and of checks after them.
const REFUNDS: usize = 1_001;
/// The number of samples, in each case, of the first request after half of a log has expired.
const LEAVES: usize = 11;
const HOUR: u64 = 3_600_000_000;
/// The time of the first entry in µs.
const START_MICROS: u64 = 1_769_905_800_000_000;

/// The number of operations between two readings of the clock: half of the entries of a short log.
const BATCH: usize = SHORT / 2;
/// The number of batches in a block.
const BATCHES: usize = 40;
/// The number of rounds. Each has two blocks on the short log and two on the long one.
const ROUNDS: usize = 31;

/// Compares each operation on a long log with the same operation on a short one.
pub(super) fn beside_short(
    report: &mut Report,
    goals: &mut Vec<Goal>,
) -> Result<(), Box<dyn Error>> {
    let title = "long logs and semaphores in this process: ns for each operation";
    let mut table = Table::new(title, ["", "short", "long", "long beside short"]);
    let mut rng = Rng::with_seed(1);
    for kind in KINDS {
        let full = |entries: usize| Log::filled(&kind.limit(entries), entries as u64);
        let mut logs = [full(SHORT)?, full(kind.long)?];
        let mut times = long_logs::Times::default();
        for round in 0..=ROUNDS {
            let blocks = [0, 1, 1, 0].map(|place: usize| logs[place].block(kind, &mut rng));
            // The first round warms up the caches.
            if round > 0 {
                for (operation, (short, long)) in times.iter_mut().enumerate() {
                    short.push((blocks[0][operation] + blocks[3][operation]) / 2.0);
                    long.push((blocks[1][operation] + blocks[2][operation]) / 2.0);
                }
            }
        }
        long_logs::compare(kind, "memory", times, &mut table, goals);
    }
    let mut by_hand = [SHORT, KINDS[0].long].map(ByHand::filled);
    let (mut short, mut long) = (Vec::new(), Vec::new());
    for _ in 0..=ROUNDS {
        let [one, two, three, four] =
            [0, 1, 1, 0].map(|place: usize| by_hand[place].block(&mut rng));
        short.push((one + four) / 2.0);
        long.push((two + three) / 2.0);
    }
    long_logs::show("times in a Vec: refund", &short[1..], &long[1..], &mut table);
    report.table("memory-beside-short", table);
    Ok(())
}

/// The simplest log that can refund: sorted times with their units. Its refunds show how long the
/// search for an entry takes at least.
struct ByHand {
    times: Vec<u64>,
    units: Vec<u64>,
}

impl ByHand {
    fn filled(entries: usize) -> Self {
        let times = (0..entries as u64).map(|entry| START_MICROS + 1_000 * entry).collect();
        Self { times, units: vec![1; entries] }
    }

    /// Returns the ns of a refund.
    fn block(&mut self, rng: &mut Rng) -> f64 {
        let mut spent = Duration::ZERO;
        for _ in 0..BATCHES {
            let charged: [u64; BATCH] =
                std::array::from_fn(|_| *rng.choice(&self.times).unwrap_or(&0));
            let Self { times, units } = self;
            let mut set = |time: &u64, now: u64| match black_box(&*times).binary_search(time) {
                Ok(place) => units[place] = now,
                Err(_) => unreachable!("each time has an entry"),
            };
            spent += time(|| charged.iter().for_each(|time| set(time, 0))).0;
            charged.iter().for_each(|time| set(time, 1));
        }
        spent.as_secs_f64() * 1e9 / (BATCH * BATCHES) as f64
    }
}

struct Log {
    store: MemoryStore<Arc<ManualClock>>,
    clock: Arc<ManualClock>,
    policy: Policy,
    charged: Vec<Timestamp>,
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
        let refunds: Vec<f64> = (0..REFUNDS).map(|n| log.refund_one(n)).collect();
        show(format!("{name}: refund"), &refunds);
        let checks: Vec<f64> = (0..REFUNDS).map(|_| log.check()).collect();
        show(format!("{name}: check"), &checks);
        let leaves: Result<Vec<f64>, Box<dyn Error>> = (0..LEAVES)
            .map(|_| {
                let log = Log::filled(limit, entries)?;
                log.clock.advance(Duration::from_micros(HOUR - 500 * entries));
                Ok(log.check())
            })
            .collect();
        show(format!("{name}: half leaves"), &leaves?);
    }
    Ok(table)
}

impl Log {
    /// Creates a log whose entries are a millisecond apart.
    fn filled(limit: &str, entries: u64) -> Result<Self, Box<dyn Error>> {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(START_MICROS)));
        let store = MemoryStore::builder().clock(Arc::clone(&clock)).build();
        let policy = Policy::new([limit.parse()?])?;
        let mut log = Self { store, clock, policy, charged: Vec::new() };
        for _ in 0..entries {
            log.clock.advance(Duration::from_millis(1));
            let decision = log.decide(Mode::Check);
            assert!(decision.is_allowed(), "there is room");
            log.charged.push(decision.at());
        }
        Ok(log)
    }

    fn decide(&self, mode: Mode) -> Decision {
        let (namespace, subject) = (&Namespace::default(), &Subject::user("alice"));
        let parts = [Part::new(subject, &self.policy, Cost::ONE)];
        let request = DecideRequest::new(namespace, &parts, mode);
        match self.store.decide(request) {
            MaybeReady::Ready(Some(Ok(decision))) => decision,
            _ => unreachable!("memory answers without waiting"),
        }
    }

    /// Makes a request. Returns its time in µs.
    fn check(&self) -> f64 {
        time_on_processor(|| self.decide(Mode::Check)).0.as_secs_f64() * 1e6
    }

    /// Refunds one charge. Returns the time in µs.
    fn refund_one(&mut self, n: usize) -> f64 {
        let charged = self.charged.swap_remove(n * 7_919 % self.charged.len());
        time_on_processor(|| self.refund(charged, RefundOf::All)).0.as_secs_f64() * 1e6
    }

    fn refund(&self, charged: Timestamp, of: RefundOf) {
        let (namespace, subject) = (&Namespace::default(), &Subject::user("alice"));
        let (policy, units, uncharged) = (&self.policy, 1, LimitSet::EMPTY);
        let refund = Refund { namespace, subject, policy, charged, units, of, uncharged };
        drop(self.store.settle(&[refund.into()]));
    }

    /// Returns the ns of each operation on a full log, which is full again at the end.
    fn block(&mut self, kind: LogKind, rng: &mut Rng) -> [f64; OPERATIONS] {
        let mut spent = [Duration::ZERO; OPERATIONS];
        for _ in 0..BATCHES {
            let mut leaving = [Timestamp::from_secs(0); BATCH];
            leaving.fill_with(|| self.charged.swap_remove(rng.usize(..self.charged.len())));
            let operations: [&mut dyn FnMut(&mut Timestamp); OPERATIONS] = [
                &mut |charged| self.refund(*charged, kind.refund_of),
                &mut |charged| {
                    self.clock.advance(Duration::from_micros(1));
                    let decision = self.decide(Mode::Check);
                    assert!(decision.is_allowed(), "one has left");
                    *charged = decision.at();
                },
                &mut |_| assert!(!self.decide(Mode::Check).is_allowed(), "it is full again"),
                &mut |_| drop(black_box(self.decide(Mode::Peek))),
            ];
            for (operation, spent) in operations.into_iter().zip(&mut spent) {
                *spent += time(|| leaving.iter_mut().for_each(operation)).0;
            }
            self.charged.extend(leaving);
        }
        spent.map(|spent| spent.as_secs_f64() * 1e9 / (BATCH * BATCHES) as f64)
    }
}
