//! One block of decisions on a server, and the rounds in which candidates take turns.

use std::sync::Arc;

use super::candidate::{Candidate, SUBJECTS};
use super::server::Monitor;
use crate::Result;
use crate::measure::{Race, time_async};

/// The requests of one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// The number of concurrent requests.
    pub(super) in_flight: usize,
    /// The total number of requests.
    pub(super) decisions: usize,
    /// The number of subjects, which are visited in turn.
    pub(super) subjects: usize,
}

impl Load {
    pub(super) const fn on_all(in_flight: usize, decisions: usize) -> Self {
        Self { in_flight, decisions, subjects: SUBJECTS }
    }
}

/// The number of concurrent requests for which the server's time is reported.
pub(super) const SHOWN: usize = 64;

/// The quantities of a block, for each decision: the elapsed seconds; the µs of the server in its
/// commands, by its own statistics; the number of these commands; the µs of the processor that the
/// server took; and the share of requests that were allowed.
pub(super) const SECONDS: usize = 0;
pub(super) const COMMAND: usize = 1;
pub(super) const CALLS: usize = 2;
pub(super) const SERVER: usize = 3;
pub(super) const ALLOWED: usize = 4;

/// A comparison of candidates.
pub(super) type Rounds = Race<5>;

/// Runs the load on all candidates in turns. All of them use the servers of these monitors.
pub(super) async fn rounds(
    candidates: &[Arc<Candidate>],
    load: Load,
    count: usize,
    monitors: &mut [Monitor],
) -> Result<Rounds> {
    let mut race = Race::new(candidates.len());
    for turn in race.turns(count) {
        race.record(turn, block(&candidates[turn.contender], load, monitors).await?);
    }
    Ok(race)
}

/// Runs one block. Returns its quantities.
pub(super) async fn block(
    candidate: &Arc<Candidate>,
    load: Load,
    monitors: &mut [Monitor],
) -> Result<[f64; 5]> {
    let (mut calls, mut command, mut server) = (0.0, 0.0, 0.0);
    for monitor in &mut *monitors {
        monitor.forget_commands().await?;
        server -= monitor.processor_time().await?.as_secs_f64();
    }
    let (elapsed, allowed) = time_async(count_allowed(candidate, load)).await;
    for monitor in monitors {
        server += monitor.processor_time().await?.as_secs_f64();
        let (count, micros) = monitor.commands(&candidate.commands).await?;
        (calls, command) = (calls + count, command + micros);
    }
    let made = (load.decisions / load.in_flight * load.in_flight) as f64;
    let totals = [elapsed.as_secs_f64(), command, calls, server * 1e6, allowed as f64];
    Ok(totals.map(|total| total / made))
}

/// Makes the requests of the load. Returns how many are allowed.
pub(super) async fn count_allowed(candidate: &Arc<Candidate>, load: Load) -> usize {
    let Load { in_flight, decisions, subjects } = load;
    let task = |first: usize| {
        let candidate = Arc::clone(candidate);
        tokio::spawn(async move {
            let mut allowed = 0;
            for n in 0..decisions / in_flight {
                let subject = (first + n * in_flight) % subjects;
                allowed += usize::from((candidate.allows)(subject).await);
            }
            allowed
        })
    };
    let tasks: Vec<_> = (0..in_flight).map(task).collect();
    let mut allowed = 0;
    for task in tasks {
        allowed += task.await.expect("deciding does not panic");
    }
    allowed
}

/// The limit in the measurement of exactness, which 64 concurrent requests exceed for each subject.
pub(super) const PRESSED: u32 = 20;

/// Makes concurrent requests under limits of [`PRESSED`]. Returns how many are allowed beyond the
/// limits.
pub(super) async fn too_many(candidate: Candidate) -> usize {
    let load = Load { in_flight: SHOWN, decisions: 10_000, subjects: 100 };
    let allowed = count_allowed(&Arc::new(candidate), load).await;
    allowed.saturating_sub(PRESSED as usize * load.subjects)
}
