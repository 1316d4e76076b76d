//! The cost of the operations that are a part of every decision by key: reading the clock, hashing,
//! locking, and a look-up in a table.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use rl_core::time::{Clock, SystemClock};

use super::limiters::Keys;
use crate::measure::{median, time_on_processor};
use crate::table::Table;

const BLOCK: u32 = 50_000;
const ROUNDS: usize = 15;

/// One operation.
type Operation<'a> = Box<dyn FnMut() + 'a>;

/// Measures each operation on one key. Returns a table of the nanoseconds.
#[expect(clippy::disallowed_methods, reason = "measures the cost of clocks")]
pub(super) fn measure(keys: &Keys) -> Table {
    let name = keys.names[0].as_str();
    let (sip, fast) = (std::hash::RandomState::new(), ahash::RandomState::new());
    let locked = Mutex::new(0_u64);
    let map: Mutex<HashMap<&str, u64, ahash::RandomState>> =
        Mutex::new(keys.names[..100].iter().map(|name| (name.as_str(), 0)).collect());
    let quanta = quanta::Clock::new();
    let mut all: [(&str, Operation<'_>); 8] = [
        (
            "Instant::now",
            Box::new(|| {
                black_box(Instant::now());
            }),
        ),
        (
            "SystemTime::now",
            Box::new(|| {
                black_box(SystemTime::now());
            }),
        ),
        (
            "quanta, governor's clock",
            Box::new(|| {
                black_box(quanta.now());
            }),
        ),
        (
            "our clock",
            Box::new(|| {
                black_box(SystemClock.now());
            }),
        ),
        (
            "SipHash of a name",
            Box::new(|| {
                black_box(hash(&sip, black_box(name)));
            }),
        ),
        (
            "ahash of a name",
            Box::new(|| {
                black_box(hash(&fast, black_box(name)));
            }),
        ),
        (
            "a lock without contention",
            Box::new(|| *locked.lock().unwrap_or_else(PoisonError::into_inner) += 1),
        ),
        (
            "a clock, a lock, a count in a map",
            Box::new(|| {
                black_box(Instant::now());
                let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(count) = map.get_mut(black_box(name)) {
                    *count += 1;
                }
            }),
        ),
    ];
    let mut nanos = [const { Vec::new() }; 8];
    for _ in 0..ROUNDS {
        for place in (0..all.len()).chain((0..all.len()).rev()) {
            let work = &mut all[place].1;
            let (elapsed, ()) = time_on_processor(|| (0..BLOCK).for_each(|_| work()));
            nanos[place].push(elapsed.as_secs_f64() * 1e9 / f64::from(BLOCK));
        }
    }
    let mut table =
        Table::new("floors: the cost of each operation of a decision by itself", ["", "ns"]);
    for ((name, _), nanos) in all.iter().zip(nanos) {
        table.row([(*name).to_owned(), format!("{:.1}", median(&nanos))]);
    }
    table
}

fn hash(hasher: &impl std::hash::BuildHasher, name: &str) -> u64 {
    hasher.hash_one(name)
}
