//! Ours beside others and beside itself, over sizes, mixes and threads.

use std::error::Error;
use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use rl_core::store::MemoryStore;
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{Eventual, Limit, Period, Policy, RateLimiter, Subject};

use super::contender::{Contender, ENDLESS, Governors, Keys, Ours};
use super::peers::{DirectGovernor, Extensible, FastGovernor, Limitador, ThrottleCrab};
use super::{MANY, WARM_BLOCK, WARM_ROUNDS, admitted_twice, block, cells, endless};
use crate::goals::{Goal, Unit};
use crate::measure::{Estimate, compare, median, time};
use crate::table::Table;

/// Keys that fit into the second cache.
const SOME: usize = 10_000;

/// The name of a goal, its floor and its moon.
type Lines = (&'static str, f64, f64);

/// Others with one key, and what is promised of them.
pub(super) fn peers(
    keys: &Keys,
    table: &mut Table,
    goals: &mut Vec<Goal>,
) -> Result<(), Box<dyn Error>> {
    let ours = endless(MANY)?;
    let limitador = Limitador::six(ENDLESS, keys, 1);
    let rows: [(&str, &dyn Contender, Option<Lines>); 4] = [
        ("one governor with ahash", &FastGovernor::new(ENDLESS), None),
        (
            "actix-extensible-rate-limit, one period",
            &Extensible::new(ENDLESS),
            Some(("M3", 1.5, 3.0)),
        ),
        ("limitador, six periods", &limitador, Some(("M4", 10.0, 30.0))),
        ("throttlecrab, one period, in a lock", &ThrottleCrab::new(1_000_000, 1), None),
    ];
    for (name, theirs, goal) in rows {
        // Some are so slow that blocks of them are shorter.
        let visits = [0; WARM_BLOCK / 10];
        let side = |side: &dyn Contender| block(side, keys, &visits, true);
        let compared = compare(WARM_ROUNDS, |_| side(&ours), |_| side(theirs));
        if let Some((goal, floor, moon)) = goal {
            let what = format!("six periods, one key, beside {name}");
            let lines = (floor, moon, Unit::Times);
            goals.push(Goal::measured(goal, &what, lines, compared.ratio));
        }
        table.row(cells(&format!("one key, {name}"), compared));
    }
    Ok(())
}

/// Ten thousand keys in turn, and a million of which some come often.
pub(super) fn working_sets(keys: &Keys, table: &mut Table) -> Result<(), Box<dyn Error>> {
    let (ours, one) = (endless(MANY)?, Governors::one(ENDLESS, Period::SECOND));
    let six = Governors::six([ENDLESS; 6]);
    let some = keys.order[..SOME].repeat(WARM_BLOCK / SOME);
    let often = zipf(keys, WARM_BLOCK);
    for (set, visits) in [("ten thousand keys", &some), ("a million, as Zipf says", &often)] {
        for (name, theirs) in [("one governor", &one), ("six governors", &six)] {
            let side = |side: &dyn Contender| block(side, keys, visits, true);
            let compared = compare(WARM_ROUNDS, |_| side(&ours), |_| side(theirs));
            table.row(cells(&format!("{set}, {name}"), compared));
        }
    }
    // Of two requests one is over the limit: of all in the second half of the keys.
    let mut month_is_full = [ENDLESS; 6];
    month_is_full[5] = 1;
    let half = |full: &dyn Contender, open: &dyn Contender| {
        let visits = [0; WARM_BLOCK / 2];
        (block(full, keys, &visits, false) + block(open, keys, &visits, true)) / 2.0
    };
    let (full, governor) = (Ours::new(month_is_full, MANY)?, Governors::one(1, Period::MONTH));
    block(&full, keys, &[0], true);
    block(&governor, keys, &[0], true);
    let compared = compare(WARM_ROUNDS, |_| half(&full, &ours), |_| half(&governor, &one));
    table.row(cells("half denied, one governor", compared));
    Ok(())
}

/// So many visits of all keys, the n-th most frequent with a probability of about 1 / n.
fn zipf(keys: &Keys, count: usize) -> Vec<u32> {
    let (mut rng, most) = (Rng::with_seed(2), (keys.order.len() as f64).ln());
    let rank = |rng: &mut Rng| (rng.f64() * most).exp() as usize - 1;
    (0..count).map(|_| keys.order[rank(&mut rng).min(keys.order.len() - 1)]).collect()
}

/// What a denial costs beside what is granted.
pub(super) fn denial(keys: &Keys, goals: &mut Vec<Goal>) -> Result<(), Box<dyn Error>> {
    let mut month_is_full = [ENDLESS; 6];
    month_is_full[5] = 1;
    let (full, open) = (Ours::new(month_is_full, MANY)?, endless(MANY)?);
    block(&full, keys, &[0], true);
    let visits = [0; WARM_BLOCK];
    let compared = compare(
        WARM_ROUNDS,
        |_| block(&full, keys, &visits, false),
        |_| block(&open, keys, &visits, true),
    );
    let lines = (1.0, 1.5, Unit::Times);
    goals.push(Goal::measured("M5", "a denial beside what is granted", lines, compared.ratio));
    Ok(())
}

/// One key of two threads.
pub(super) fn hot_key(
    keys: &Keys,
    table: &mut Table,
    goals: &mut Vec<Goal>,
) -> Result<(), Box<dyn Error>> {
    let (ours, direct) = (endless(MANY)?, DirectGovernor::new(ENDLESS));
    let visits = [0; WARM_BLOCK];
    let side = |side: &dyn Contender| {
        let (elapsed, _) = time(|| admitted_twice(side, keys, [&visits, &visits]));
        elapsed.as_secs_f64() * 1e9 / WARM_BLOCK as f64
    };
    let compared = compare(WARM_ROUNDS, |_| side(&ours), |_| side(&direct));
    let lines = (1.0, 4.0, Unit::Times);
    let what = "six periods of one key, two threads, beside governor without keys";
    goals.push(Goal::measured("M12", what, lines, compared.ratio));
    table.row(cells("two threads on one key, governor without keys", compared));
    Ok(())
}

/// Policies of one limit to sixteen.
pub(super) fn counts(keys: &Keys) -> Result<Table, Box<dyn Error>> {
    let mut table =
        Table::new("ns per decision by the number of limits (one key)", ["limits", "ns"]);
    for count in [1, 2, 4, 6, 8, 16] {
        let periods = (1..=count).map(|n| Period::from_millis(n * 3_600_000));
        let limits: Result<Vec<_>, Box<dyn Error>> =
            periods.map(|period| Ok(Limit::new(ENDLESS.into(), period?)?)).collect();
        let ours = Ours::under(&Policy::new(limits?)?, MANY)?;
        let nanos: Vec<f64> =
            (0..WARM_ROUNDS).map(|_| block(&ours, keys, &[0; WARM_BLOCK / 10], true)).collect();
        table.row([count.to_string(), format!("{:.0}", median(&nanos))]);
    }
    Ok(table)
}

/// Full logs of ten entries and of a hundred thousand: for each request one leaves.
pub(super) fn logs(goals: &mut Vec<Goal>) -> Result<(), Box<dyn Error>> {
    let log = |entries: u64| -> Result<_, Box<dyn Error>> {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_767_225_600)));
        let limits =
            (1..=6).map(|hours| format!("{entries}/{hours}h:sliding-log").parse::<Limit>());
        let policy = Policy::new(limits.collect::<Result<Vec<_>, _>>()?)?;
        let store = MemoryStore::builder().clock(Arc::clone(&clock)).build();
        let limiter = RateLimiter::builder().store(store).policies(policy).build()?;
        // Six hours for as many as all logs may hold.
        let pause = Duration::from_micros(6 * 3_600_000_000 / entries + 1);
        Ok(move |times: u64| {
            let subject = Subject::user("alice");
            let (elapsed, ()) = time(|| {
                for _ in 0..times {
                    clock.advance(pause);
                    let answer = limiter.check(black_box(&subject), 1);
                    let Eventual::Ready(Some(decision)) = &answer else { unreachable!() };
                    assert!(decision.is_allowed(), "one has left");
                }
            });
            elapsed.as_secs_f64() * 1e9 / times as f64
        })
    };
    let (short, long) = (log(10)?, log(100_000)?);
    // Until the longest is full.
    let _ = (short(100), long(100_000));
    let times = WARM_BLOCK as u64 / 10;
    let compared = compare(WARM_ROUNDS, |_| short(times), |_| long(times));
    let lines = (1.3, 1.1, Unit::AtMost("x"));
    let what = "six logs of 100 000 entries beside six of 10";
    goals.push(Goal::measured("M11", what, lines, compared.ratio));
    Ok(())
}

/// Instructions of a decision, as the tests count them; nothing if there is no valgrind.
pub(super) fn instructions() -> Goal {
    let count = || -> Option<f64> {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let build = ["build", "--release", "-p", "rl-instructions", "--message-format=json"];
        let built = Command::new(cargo).args(build).output().ok()?;
        let built = String::from_utf8(built.stdout).ok()?;
        let program = built.split("\"executable\":\"").nth(1)?.split('"').next()?.to_owned();
        let counted = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .args(["--toggle-collect=rl_instructions::counted*", &program, "allowed", "3000"])
            .output()
            .ok()?;
        let told = String::from_utf8(counted.stderr).ok()?;
        let count: f64 =
            told.split("Collected :").nth(1)?.split_whitespace().next()?.parse().ok()?;
        Some(count / 3_000.0)
    };
    let lines = (500.0, 300.0, Unit::AtMost("instructions"));
    let what = "six periods, a known subject, hash and clock included";
    Goal { measured: count(), ..Goal::counted("M7", what, lines, 0.0) }
}

/// The noise: what one limiter beside another of the same kind would be said to be.
pub(super) fn noise(keys: &Keys) -> Result<Estimate, Box<dyn Error>> {
    let (ours, again) = (endless(MANY)?, endless(MANY)?);
    let side = |side: &dyn Contender| block(side, keys, &[0; WARM_BLOCK / 10], true);
    Ok(compare(WARM_ROUNDS, |_| side(&ours), |_| side(&again)).ratio)
}
