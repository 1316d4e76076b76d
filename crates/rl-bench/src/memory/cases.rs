//! Goals for which our limiter is compared with itself, and the cost by the number of limits.

use std::error::Error;
use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use burster::Limiter;
use rl_core::time::{ManualClock, Timestamp};
use rl_core::{Limit, MaybeReady, MemoryStore, Period, Policy, RateLimiter, Subject};

use super::block::{MANY, WARM_BLOCK, WARM_ROUNDS, block, endless};
use super::limiters::{ENDLESS, Keys, Ours};
use crate::charts::{Axis, Chart, Line, Lines, Plot};
use crate::goals::{Goal, Unit};
use crate::measure::{compare, median, time_on_processor};
use crate::report::Report;
use crate::table::Table;

/// Compares a denial with an allowed request.
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
    goals.push(Goal::measured("M5", "a denial beside what is granted", lines, compared));
    Ok(())
}

/// Measures decisions under policies of one to sixteen limits. The policies take turns.
pub(super) fn counts(keys: &Keys, report: &mut Report) -> Result<(), Box<dyn Error>> {
    const COUNTS: [u64; 8] = [1, 2, 3, 4, 6, 8, 12, 16];
    let mut all = Vec::new();
    for count in COUNTS {
        let periods = (1..=count).map(|n| Period::from_millis(n * 3_600_000));
        let limits: Result<Vec<_>, Box<dyn Error>> =
            periods.map(|period| Ok(Limit::new(ENDLESS.into(), period?)?)).collect();
        all.push((Ours::under(&Policy::new(limits?)?, MANY)?, Vec::new()));
    }
    let visits = [0; WARM_BLOCK / 10];
    for _ in 0..=WARM_ROUNDS {
        for place in (0..all.len()).chain((0..all.len()).rev()) {
            let (ours, nanos) = &mut all[place];
            nanos.push(block(ours, keys, &visits, true));
        }
    }
    let title = "by the number of limits: ns for each decision, one subject";
    let mut table = Table::new(title, ["limits", "ns"]);
    // The first round, which has two blocks, only warms up the caches.
    let nanos: Vec<f64> = all.iter().map(|(_, nanos)| median(&nanos[2..])).collect();
    for (count, nanos) in COUNTS.into_iter().zip(&nanos) {
        table.row([count.to_string(), format!("{nanos:.0}")]);
    }
    report.table("memory-by-limits", table);
    report.chart(Chart {
        name: "limits-memory".to_owned(),
        title: "A decision in memory, by the number of limits".to_owned(),
        note: "Fixed windows of one subject, one thread, all requests pass.".to_owned(),
        plot: Plot::Lines(Lines {
            x: Axis::linear("limits in the policy"),
            y: Axis::linear("ns for each decision"),
            lines: vec![Line::new("ours", COUNTS.map(|count| count as f64).into_iter().zip(nanos))],
        }),
    });
    Ok(())
}

/// Compares full logs of ten entries with full logs of 100 000 entries. One entry expires for each
/// request.
pub(super) fn logs(goals: &mut Vec<Goal>) -> Result<(), Box<dyn Error>> {
    let log = |entries: u64| -> Result<_, Box<dyn Error>> {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_767_225_600)));
        let limits =
            (1..=2).map(|hours| format!("{entries}/{hours}h:sliding-log").parse::<Limit>());
        let policy = Policy::new(limits.collect::<Result<Vec<_>, _>>()?)?;
        let store = MemoryStore::builder().clock(Arc::clone(&clock)).build();
        let limiter = RateLimiter::builder().store(store).policy(policy).build()?;
        // At most `entries` requests are made within two hours. So the longer log stays full, and
        // one entry expires for each request.
        let pause = Duration::from_micros(2 * 3_600_000_000 / entries + 1);
        Ok(move |times: u64| {
            let subject = Subject::user("alice");
            let (elapsed, ()) = time_on_processor(|| {
                for _ in 0..times {
                    clock.advance(pause);
                    let answer = limiter.check(black_box(&subject), 1);
                    let MaybeReady::Ready(Some(decision)) = &answer else { unreachable!() };
                    assert!(decision.is_allowed(), "one has left");
                }
            });
            elapsed.as_secs_f64() * 1e9 / times as f64
        })
    };
    let (short, long) = (log(10)?, log(100_000)?);
    // These requests fill both logs.
    let _ = (short(100), long(100_000));
    let times = WARM_BLOCK as u64 / 10;
    let compared = compare(WARM_ROUNDS, |_| short(times), |_| long(times));
    let lines = (1.3, 1.1, Unit::AtMost("x"));
    let what = "two logs of 100 000 entries beside two of 10";
    goals.push(Goal::measured("M11", what, lines, compared));

    // For comparison: burster keeps a count for each millisecond, and adds up all counts at each
    // request.
    let mut burster = Box::new(burster::sliding_window_log::<60_000>(u64::MAX));
    let mut theirs = |times: u64| {
        let (elapsed, passed) =
            time_on_processor(|| (0..times).all(|_| burster.try_consume_one().is_ok()));
        assert!(passed, "its limit is out of reach");
        elapsed.as_secs_f64() * 1e9 / times as f64
    };
    let compared = compare(WARM_ROUNDS / 2, |_| long(times), |_| theirs(times / 50));
    let what = "six logs of 100 000 entries beside one of burster over a minute";
    goals.push(Goal::measured("M11", what, (10.0, 50.0, Unit::Times), compared));
    Ok(())
}

/// Counts the instructions of a decision, as the performance tests do. Without valgrind, the goal
/// has no value.
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
        let text = String::from_utf8(counted.stderr).ok()?;
        let count: f64 =
            text.split("Collected :").nth(1)?.split_whitespace().next()?.parse().ok()?;
        Some(count / 3_000.0)
    };
    let lines = (500.0, 300.0, Unit::AtMost("instructions"));
    let what = "six periods, a known subject, hash and clock included";
    Goal { measured: count(), ..Goal::counted("M7", what, lines, 0.0) }
}
