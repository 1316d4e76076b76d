//! Our limiter beside the same limiter without counts: the time that counting adds to a decision.

use std::error::Error;
use std::hint::black_box;

use super::block::WARM_BLOCK;
use super::limiters::SCARCE;
use crate::goals::{Goal, Unit};
use crate::measure::{Estimate, in_turns, median, time_on_processor};
use crate::report::Report;
use crate::table::Table;

/// The number of pairs of limiters, and of rounds with each pair. Each pair lies elsewhere in
/// memory, which affects the times by some nanoseconds.
const PAIRS: usize = 16;
const ROUNDS: usize = 6;

/// A maximum that no measurement uses up. GCRA accepts no much larger burst.
const OPEN: u32 = 90_000_000;

/// A limiter, as a function that makes this number of requests of one subject. It returns how many
/// are allowed.
type Requests = Box<dyn Fn(usize) -> usize>;

/// Creates a limiter under limits of `max` units.
type NewLimiter = fn(&DecisionCase, max: u32) -> Result<Requests, Box<dyn Error>>;

/// A decision to which counting adds time.
struct DecisionCase {
    name: &'static str,
    /// Each limit as text, without the number of units before the period.
    limits: &'static [&'static str],
    /// Whether the limits are used up.
    is_denied: bool,
}

const SIX: &[&str] = &["/second", "/minute", "/hour", "/day", "/week", "/month"];

const CASES: [DecisionCase; 4] = [
    DecisionCase { name: "six windows", limits: SIX, is_denied: false },
    DecisionCase { name: "six windows, denied", limits: SIX, is_denied: true },
    DecisionCase { name: "one window", limits: &["/month"], is_denied: false },
    DecisionCase { name: "GCRA", limits: &["/month:gcra"], is_denied: false },
];

/// Defines a function that creates a limiter of this crate. Both crates have the same sources.
macro_rules! limiter_of {
    ($name:ident, $core:ident) => {
        fn $name(case: &DecisionCase, max: u32) -> Result<Requests, Box<dyn Error>> {
            let limits = case.limits.iter().map(|rest| format!("{max}{rest}").parse());
            let limits: Vec<$core::Limit> = limits.collect::<Result<_, _>>()?;
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
pub(super) fn measure(report: &mut Report, goals: &mut Vec<Goal>) -> Result<(), Box<dyn Error>> {
    let columns = ["", "ns with counts", "counting adds", "two without counts differ by"];
    let mut table = Table::new("counting, in ns for each decision", columns);
    for case in CASES {
        let measured = rounds(&case, counted, uncounted)?;
        let added = difference(&measured);
        let noise = difference(&rounds(&case, uncounted, uncounted)?);
        let with_counts: Vec<f64> = measured.iter().map(|(counted, _)| *counted).collect();
        table.row([
            case.name.to_owned(),
            format!("{:.1}", median(&with_counts)),
            added.plain(),
            noise.plain(),
        ]);
        let what = format!("counting adds to {}", case.name);
        goals.push(Goal::measured("M14", &what, (3.0, 1.0, Unit::AtMost("ns")), added));
    }
    report.table("memory-counting", table);
    Ok(())
}

/// Runs the rounds of all pairs of limiters. Returns the nanoseconds of both in each round.
fn rounds(
    case: &DecisionCase,
    ours: NewLimiter,
    theirs: NewLimiter,
) -> Result<Vec<(f64, f64)>, Box<dyn Error>> {
    let create = |new: NewLimiter| -> Result<Requests, Box<dyn Error>> {
        if case.is_denied {
            let limiter = new(case, SCARCE)?;
            assert_eq!(limiter(WARM_BLOCK), SCARCE as usize, "the limits are used up here");
            return Ok(limiter);
        }
        new(case, OPEN)
    };
    let mut measured = Vec::new();
    for pair in 0..PAIRS {
        // The limiter that is created first alternates, because it may get better memory.
        let (ours, theirs) = if pair % 2 == 0 {
            let ours = create(ours)?;
            (ours, create(theirs)?)
        } else {
            let theirs = create(theirs)?;
            (create(ours)?, theirs)
        };
        measured.extend(in_turns(ROUNDS, |_| block(case, &ours), |_| block(case, &theirs)));
    }
    Ok(measured)
}

/// Makes the requests of a block. Returns the nanoseconds for each.
fn block(case: &DecisionCase, limiter: &Requests) -> f64 {
    let (elapsed, allowed) = time_on_processor(|| limiter(WARM_BLOCK));
    assert_eq!(allowed, if case.is_denied { 0 } else { WARM_BLOCK }, "{}", case.name);
    elapsed.as_secs_f64() * 1e9 / WARM_BLOCK as f64
}

/// Returns by how much the first time of a round is longer.
fn difference(measured: &[(f64, f64)]) -> Estimate {
    Estimate::of(&measured.iter().map(|(ours, theirs)| ours - theirs).collect::<Vec<_>>())
}
