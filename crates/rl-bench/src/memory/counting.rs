//! Our limiter beside the same limiter without counts: the time that counting adds to a decision.

use std::hint::black_box;

use super::{BLOCK, SCARCE};
use crate::Result;
use crate::measure::{Race, time_on_processor};
use crate::report::{Bound, Report, Table};

/// The number of groups of limiters, and of rounds with each group. Each group lies elsewhere in
/// memory, which affects the times by some nanoseconds.
const GROUPS: usize = 16;
const ROUNDS: usize = 6;

/// A maximum that no measurement uses up. GCRA accepts no much larger burst.
const OPEN: u32 = 90_000_000;

/// A limiter, as a function that makes this number of requests of one subject. It returns how many
/// are allowed.
type Requests = Box<dyn Fn(usize) -> usize>;

const SIX: &[&str] = &["/second", "/minute", "/hour", "/day", "/week", "/month"];

/// The decisions: a name, each limit without its maximum, and whether the limits are used up.
const CASES: [(&str, &[&str], bool); 4] = [
    ("six windows", SIX, false),
    ("six windows, denied", SIX, true),
    ("one window", &["/month"], false),
    ("GCRA", &["/month:gcra"], false),
];

/// Defines a function that creates a limiter of this crate. Both crates have the same sources.
macro_rules! limiter_of {
    ($name:ident, $core:ident) => {
        fn $name(limits: &[&str], max: u32) -> Result<Requests> {
            let limits = limits.iter().map(|rest| format!("{max}{rest}").parse());
            let limits: Vec<$core::Limit> = limits.collect::<std::result::Result<_, _>>()?;
            let policy = $core::Policy::new(limits)?;
            let limiter = $core::RateLimiter::builder().policy(policy).build()?;
            let subject = $core::Subject::consumer("consumer-00000001");
            Ok(Box::new(move |requests| {
                let is_allowed = |_: &usize| match &limiter.check(&subject, 1) {
                    $core::MaybeReady::Ready(Some(decision)) => black_box(decision).is_allowed(),
                    _ => unreachable!("decisions in memory are there at once"),
                };
                (0..requests).filter(is_allowed).count()
            }))
        }
    };
}

limiter_of!(counted, rl_core);
limiter_of!(uncounted, rl_core_uncounted);

/// Measures by how many nanoseconds counting delays a decision.
pub(crate) fn measure(report: &mut Report) -> Result {
    let columns = ["", "ns with counts", "counting adds", "two without counts differ by"];
    let mut table = Table::new("counting, in ns for each decision", columns);
    for (name, limits, is_denied) in CASES {
        let mut race = Race::new(3);
        for group in 0..report.rounds(GROUPS) {
            // The limiter that is created first changes, because it may get better memory.
            let mut limiters = [const { None }; 3];
            for place in (0..3).map(|place| (place + group) % 3) {
                let new = if place == 0 { counted } else { uncounted };
                let limiter = new(limits, if is_denied { SCARCE } else { OPEN })?;
                limiter(SCARCE as usize);
                limiters[place] = Some(limiter);
            }
            for turn in race.turns(ROUNDS) {
                let limiter = limiters[turn.contender].as_ref().ok_or("no limiter")?;
                let (elapsed, allowed) = time_on_processor(|| limiter(BLOCK));
                assert_eq!(allowed, if is_denied { 0 } else { BLOCK }, "{name}");
                let round = if turn.round == 0 { 0 } else { group * ROUNDS + turn.round };
                race.record(
                    crate::measure::Turn { round, ..turn },
                    [elapsed.as_secs_f64() * 1e9 / BLOCK as f64],
                );
            }
        }
        let added = race.excess(0, 1, 0);
        table.row([
            name.into(),
            race.median(0, 0).into(),
            added.into(),
            race.excess(2, 1, 0).into(),
        ]);
        report.goal(&format!("{name}: counting adds"), Bound::AtMost(10.0), "ns", added);
    }
    report.table(table);
    Ok(())
}
