//! The heaviest policies for each algorithm and for each operation.

use std::error::Error;
use std::time::Duration;

use rl_core::store::{
    DecideRequest, Layout, Mode, Namespace, Part, RefundOf, Reservations, Reset, Store,
};
use rl_core::{Cost, Policy, Subject};
use tokio::task::JoinSet;

use super::super::fixtures::id;
use super::bench::{Bench, MANY_SAMPLES, SAMPLES, decide, policy};
use crate::table::Table;

type Done = Result<(), Box<dyn Error>>;

const HOUR: u64 = 3_600_000_000;

const BESIDE_OTHERS: &str = "windows beside windows of others";

/// Measures all cases.
pub(super) async fn all(table: &mut Table) -> Done {
    others(table).await?;
    windows(table).await?;
    counters(table).await?;
    batches(table).await?;
    readable(table).await?;
    reservations(table).await?;
    many_logs(table).await?;
    places(table).await?;
    for entries in [60_000, 100_000] {
        one_log(table, entries).await?;
    }
    two_logs(table).await
}

/// Measures refunds and requests in a log with this many entries.
async fn one_log(table: &mut Table, entries: usize) -> Done {
    let name = if entries == 60_000 { "log of 60 000" } else { "log of 100 000" };
    let mut bench = Bench::new(name, policy(["100000/hour:sliding-log"])?).await?;
    let mut charged = bench.fill(0, entries, 1_000).await;
    for n in 0..=MANY_SAMPLES {
        let refund =
            bench.refund_of(0, &charged.swap_remove(n * 7_919 % charged.len()), RefundOf::All);
        bench.forget_calls().await?;
        refund.make().await?;
        bench.note().await?;
    }
    bench.show(table, "refund");
    sample_decisions(&mut bench, table).await
}

/// Measures a policy of two logs of 100 000 units each. A third log would exceed the maximum weight
/// of a policy. At first the logs are full. Then half of the entries of the longer log have
/// expired, and then nearly all.
async fn two_logs(table: &mut Table) -> Done {
    let limits = ["100000/hour:sliding-log", "100000/2h:sliding-log"];
    let mut bench = Bench::new("two logs of 100 000", policy(limits)?).await?;
    bench.fill(0, 50_000, 1_000).await;
    bench.advance(HOUR / 2);
    bench.fill(0, 50_000, 1_000).await;
    sample_decisions(&mut bench, table).await?;
    leave(&mut bench, table, 2 * HOUR - HOUR / 2 - 1_000_000, "half leaves").await?;
    leave(&mut bench, table, 49_000_000 + HOUR / 2, "nearly all leaves").await
}

/// Measures a policy with the maximum number of logs. Each log has as many units as the maximum
/// weight of a policy allows.
async fn many_logs(table: &mut Table) -> Done {
    let limits =
        (2..=8_u64).rev().flat_map(|logs| (1_u64..=120).rev().map(move |max| (logs, max * 100)));
    let of = |(logs, max): (u64, u64)| {
        policy((1..=logs).map(|hours| format!("{max}/{hours}h:sliding-log"))).ok().map(|p| (p, max))
    };
    let (policy, max) = limits.into_iter().find_map(of).ok_or("a policy of logs")?;
    let mut bench = Bench::new("many logs", policy).await?;
    bench.fill(0, max as usize / 256 * 256, 1_000).await;
    sample_decisions(&mut bench, table).await?;
    bench.advance(1);
    // A policy has at most six logs, so no log here covers more than 6 hours. After this pause, all
    // entries have expired.
    leave(&mut bench, table, 8 * HOUR - 100_000, "nearly all leaves").await
}

/// Measures a semaphore whose 10 000 permits are all held.
async fn places(table: &mut Table) -> Done {
    let limits = policy(["10000:concurrency:lease=1h"])?;
    let mut bench = Bench::new("10 000 places", limits).await?;
    let mut charged = bench.fill(0, 10_000, 1_000).await;
    for n in 0..=MANY_SAMPLES {
        let place = n * 7_919 % charged.len();
        let renewal = bench.refund_of(0, &charged.swap_remove(place), RefundOf::All);
        bench.advance(1_000);
        bench.forget_calls().await?;
        renewal.renew().await?.ok_or("the permit was lost")?;
        bench.note().await?;
    }
    bench.show(table, "renewal");
    for n in 0..=MANY_SAMPLES {
        let place = n * 7_919 % charged.len();
        let release = bench.refund_of(0, &charged.swap_remove(place), RefundOf::Permits);
        bench.forget_calls().await?;
        release.make().await?;
        bench.note().await?;
    }
    bench.show(table, "release");
    Ok(())
}

/// Returns a policy with the maximum number of sliding windows of 200 buckets. The periods are
/// `first` hours, `first + 1` hours, and so on.
fn windows_of(first: u64) -> Result<Policy, Box<dyn Error>> {
    let windows = |count| {
        (first..first + count)
            .map(|hours| format!("1000000/{hours}h:sliding-window:precision={}s", 18 * hours))
    };
    (1..=16).rev().find_map(|count| policy(windows(count)).ok()).ok_or("windows".into())
}

/// Charges the subject under eight other policies, each with the maximum number of windows. These
/// windows last longer than a measurement.
async fn charge_others(bench: &Bench) -> Done {
    for other in 1..=8 {
        bench.decide_under(&windows_of(20 * other + 1)?, 0, Mode::Charge, 1).await;
    }
    Ok(())
}

async fn windows(table: &mut Table) -> Done {
    let mut bench = Bench::new("windows of 200 buckets", windows_of(1)?).await?;
    let mut charged = Vec::new();
    for _ in 0..200 {
        charged.push(bench.decide(0, Mode::Check, 1).await);
        bench.advance(18_000_000);
    }
    sample_decisions(&mut bench, table).await?;
    for decision in charged.iter().rev().take(SAMPLES + 1) {
        let refund = bench.refund_of(0, decision, RefundOf::All);
        bench.forget_calls().await?;
        refund.make().await?;
        bench.note().await?;
    }
    bench.show(table, "refund");
    Ok(())
}

/// Measures requests for a subject that other policies have charged too, so that its key also
/// contains the states of their limits. These are windows of 200 buckets at first, and then 16
/// token buckets.
async fn others(table: &mut Table) -> Done {
    let mut bench = Bench::new(BESIDE_OTHERS, windows_of(1)?).await?;
    charge_others(&bench).await?;
    for _ in 0..=MANY_SAMPLES {
        bench.advance(19_000_000);
        bench.forget_calls().await?;
        bench.decide(0, Mode::Check, 1).await;
        bench.note().await?;
    }
    bench.show(table, "check");
    let own = policy((1..=16).map(|hours| format!("100/{hours}h:sliding-window-counter")))?;
    let mut bench = Bench::new("16 states beside 16 of others", own).await?;
    let other = policy((21..=36).map(|hours| format!("100/{hours}h:token-bucket")))?;
    bench.decide_under(&other, 0, Mode::Check, 1).await;
    sample_decisions(&mut bench, table).await
}

/// Measures policies of sixteen limits under the algorithms with the longest arithmetic.
async fn counters(table: &mut Table) -> Done {
    let max = 9_007_199_254_740_991_u64;
    let counters = (1..=16).map(|n| format!("{max}/{}days:sliding-window-counter", 18_000 + n));
    let mut bench = Bench::new("16 counters of long periods", policy(counters)?).await?;
    bench.decide(0, Mode::Charge, max / 3).await;
    bench.advance(18_200 * 24 * HOUR);
    sample_decisions(&mut bench, table).await?;
    let gcra = (1..=16).map(|n| format!("94906265/{n}days:gcra:burst=94906265"));
    let mut bench = Bench::new("16 GCRA", policy(gcra)?).await?;
    bench.decide(0, Mode::Charge, 90_000_000).await;
    sample_decisions(&mut bench, table).await
}

/// Measures batches of one subject, and batches of many subjects.
async fn batches(table: &mut Table) -> Done {
    let max = 9_007_199_254_740_991_u64;
    let kinds: [(&'static str, Policy); 6] = [
        ("log of 1 000", policy(["1000/day:sliding-log"])?),
        ("16 fixed windows", policy((1..=16).map(|h| format!("1000000/{h}h")))?),
        ("12 fixed windows", policy((1..=12).map(|h| format!("1000000/{h}h")))?),
        ("16 buckets", policy((1..=16).map(|h| format!("1000000/{h}h:token-bucket")))?),
        ("windows of 200 buckets", windows_of(1)?),
        (
            "16 counters of long periods",
            policy((1..=16).map(|n| format!("{max}/{}days:sliding-window-counter", 18_000 + n)))?,
        ),
    ];
    for (name, policy) in kinds {
        let mut bench = Bench::with(name, policy, Layout::Packed, true).await?;
        let entries = if name.starts_with("log") { 999 } else { 3 };
        bench.fill(0, entries, 1_000).await;
        bench.advance(HOUR);
        for (operation, subjects, costs) in [
            ("128 requests of one subject", 1, 1),
            ("128 requests of one subject, of many costs", 1, 7),
            ("128 subjects", 128, 1),
        ] {
            if subjects > 1 && !name.ends_with("fixed windows") {
                continue;
            }
            for n in 0..=SAMPLES {
                bench.advance(19_000_000);
                bench.forget_calls().await?;
                let mut calls = JoinSet::new();
                for call in 0..128 {
                    let (store, policy) = (bench.store.clone(), bench.policy.clone());
                    let (subject, cost) = (call % subjects, 1 + (call % costs) as u64);
                    // In every second sample, the cost is nearly the whole `max` of most kinds, so
                    // most calls are denied.
                    let cost = if n % 2 == 0 { cost } else { cost + 999_990 };
                    calls.spawn(async move {
                        decide(&store, &policy, subject, Mode::Check, cost).await
                    });
                }
                calls.join_all().await;
                bench.note().await?;
            }
            bench.show(table, operation);
        }
    }
    Ok(())
}

async fn readable(table: &mut Table) -> Done {
    let periods = ["second", "minute", "hour", "day", "week", "month"];
    let limits = periods.iter().flat_map(|p| [format!("1000/{p}"), format!("1000/{p}:requests")]);
    let policy = policy(limits)?;
    let mut bench = Bench::with("12 readable counters", policy, Layout::Readable, false).await?;
    sample_decisions(&mut bench, table).await?;
    for _ in 0..=MANY_SAMPLES {
        let charged = bench.decide(0, Mode::Charge, 1).await;
        let refund = bench.refund_of(0, &charged, RefundOf::All);
        bench.forget_calls().await?;
        refund.make().await?;
        bench.note().await?;
    }
    bench.show(table, "refund");
    Ok(())
}

/// Measures a request after many reservations have expired.
async fn reservations(table: &mut Table) -> Done {
    let windows = windows_of(1)?;
    let kinds: [(&'static str, Policy); 7] = [
        ("1 bucket", policy(["1000000/day:token-bucket"])?),
        ("14 fixed windows", policy((1..=14).map(|h| format!("1000000/{h}h")))?),
        ("16 buckets", policy((1..=16).map(|h| format!("1000000/{h}h:token-bucket")))?),
        ("16 counters", policy((1..=16).map(|h| format!("1000000/{h}h:sliding-window-counter")))?),
        ("windows of 200 buckets", windows.clone()),
        (BESIDE_OTHERS, windows),
        ("6 logs", policy((1..=6).map(|h| format!("1000/{h}h:sliding-log")))?),
    ];
    for (name, policy) in kinds {
        let mut bench = Bench::new(name, policy).await?;
        let subject = Subject::consumer(&id(0));
        let lifetime = Some(Duration::from_secs(5));
        if name == BESIDE_OTHERS {
            charge_others(&bench).await?;
        }
        for _ in 0..=MANY_SAMPLES {
            for _ in 0..64 {
                bench.advance(1_000);
                reserve(&bench, &subject, lifetime).await?;
            }
            bench.advance(6_000_000);
            bench.forget_calls().await?;
            reserve(&bench, &subject, lifetime).await?;
            bench.note().await?;
        }
        bench.show(table, "64 expired reservations");
    }
    Ok(())
}

async fn reserve(bench: &Bench, subject: &Subject, lifetime: Option<Duration>) -> Done {
    let (namespace, parts) =
        (&Namespace::default(), [Part::new(subject, &bench.policy, Cost::ONE)]);
    let reservations = lifetime.map_or(Reservations::ReturnExpired, Reservations::Reserve);
    let request = DecideRequest::new(namespace, &parts, Mode::Check);
    bench.store.decide(request.with_reservations(reservations)).await?;
    Ok(())
}

/// Measures requests that are granted, denied, or granted only a part of their cost, and a charge
/// beyond the limits. Then measures resets on copies of the keys.
async fn sample_decisions(bench: &mut Bench, table: &mut Table) -> Done {
    let used = bench.decide(0, Mode::Peek, 0).await;
    let fits = used.limits().map(|limit| limit.remaining()).min().unwrap_or_default();
    let max = used.limits().map(|limit| limit.max()).min().unwrap_or_default();
    let asked = [
        ("check", Mode::Check, 1),
        ("check of more than fits", Mode::Check, fits + (max - fits) / 2 + 1),
        ("check of the max", Mode::Check, max),
        ("charge beyond the limits", Mode::Charge, 1),
        ("check up to 2^53", Mode::CheckUpTo, 9_007_199_254_740_991),
    ];
    for (operation, mode, cost) in asked {
        for _ in 0..=MANY_SAMPLES {
            bench.advance(1);
            bench.forget_calls().await?;
            bench.decide(0, mode, cost).await;
            bench.note().await?;
        }
        bench.show(table, operation);
    }
    bench.copy(2 * SAMPLES + 2).await?;
    for (operation, limit) in [("reset", None), ("reset of a limit", Some(0))] {
        for n in 0..=SAMPLES {
            let subject = &Subject::consumer(&id(2 * n + 1 + usize::from(limit.is_some())));
            let (namespace, policy) = (&Namespace::default(), &bench.policy);
            let reset = Reset { namespace, subject, policy, limit };
            redis::cmd("SLOWLOG").arg("RESET").exec_async(&mut bench.operator.clone()).await?;
            bench.store.reset(&[reset]).await?;
            // In the readable layout, a reset runs no script. `note` then returns an error, which
            // is no failure here.
            let _ = bench.note().await;
        }
        if !bench.samples.is_empty() {
            bench.show(table, operation);
        }
    }
    Ok(())
}

/// Measures the first request after a pause of `micros`, which removes the entries that have
/// expired. Each sample runs on a copy of the keys.
async fn leave(bench: &mut Bench, table: &mut Table, micros: u64, operation: &str) -> Done {
    bench.copy(SAMPLES + 1).await?;
    bench.advance(micros);
    for n in 0..=SAMPLES {
        bench.forget_calls().await?;
        bench.decide(n + 1, Mode::Check, 1).await;
        bench.note().await?;
    }
    bench.show(table, operation);
    Ok(())
}
