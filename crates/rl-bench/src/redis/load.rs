//! One block of decisions on a server, and the rounds in which candidates take turns.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use super::candidate::Candidate;
use super::fixtures::SUBJECTS;
use super::server::Monitor;
use crate::measure::{median, time_async};

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

/// The number of concurrent requests for which the report shows the processor time of a decision.
pub(super) const SHOWN: usize = 64;

/// A limit that no measurement uses up.
pub(super) const ENDLESS: u32 = 1_000_000_000;

/// The cost of one block, for each decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// The seconds from the first decision to the last, divided by the number of decisions.
    pub(super) seconds: f64,
    /// The µs that the server spent in the commands themselves, by the server's own statistics.
    pub(super) command: f64,
    /// The number of calls of these commands.
    pub(super) calls: f64,
    /// The processor time of the server in µs.
    pub(super) server: f64,
    /// The processor time of this process in µs.
    pub(super) client: f64,
    /// The share of requests that were allowed.
    pub(super) admitted: f64,
}

/// The two blocks of each candidate.
pub(super) type Round = Vec<[Block; 2]>;

pub(super) async fn rounds(
    candidates: &[Arc<Candidate>],
    load: Load,
    count: usize,
    monitor: &mut Monitor,
) -> Result<Vec<Round>, Box<dyn Error>> {
    let mut rounds = Vec::new();
    for _ in 0..=count {
        let (mut there, mut back) = (Vec::new(), Vec::new());
        for candidate in candidates {
            there.push(block(candidate, load, monitor).await?);
        }
        for candidate in candidates.iter().rev() {
            back.push(block(candidate, load, monitor).await?);
        }
        back.reverse();
        rounds.push(there.into_iter().zip(back).map(|(there, back)| [there, back]).collect());
    }
    // The first round only creates the keys.
    Ok(rounds.split_off(1))
}

async fn block(
    candidate: &Arc<Candidate>,
    load: Load,
    monitor: &mut Monitor,
) -> Result<Block, Box<dyn Error>> {
    monitor.forget_commands().await?;
    let (server, client) = (monitor.processor_time().await?, client_time()?);
    let (elapsed, admitted) = time_async(count_allowed(candidate, load)).await;
    let client = client_time()? - client;
    let server = monitor.processor_time().await? - server;
    let made = (load.decisions / load.in_flight * load.in_flight) as f64;
    let each = |total: Duration| total.as_secs_f64() * 1e6 / made;
    let (calls, command) = monitor.commands(candidate.commands).await?;
    Ok(Block {
        seconds: elapsed.as_secs_f64() / made,
        command: command / made,
        calls: calls / made,
        server: each(server),
        client: each(client),
        admitted: admitted as f64 / made,
    })
}

/// Makes the requests of the load. Returns how many are allowed.
pub(super) async fn count_allowed(candidate: &Arc<Candidate>, load: Load) -> usize {
    let Load { in_flight, decisions, subjects } = load;
    let task = |first: usize| {
        let candidate = Arc::clone(candidate);
        tokio::spawn(async move {
            let mut admitted = 0;
            for n in 0..decisions / in_flight {
                let subject = (first + n * in_flight) % subjects;
                admitted += usize::from(candidate.allows(subject).await);
            }
            admitted
        })
    };
    let tasks: Vec<_> = (0..in_flight).map(task).collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.expect("deciding does not panic");
    }
    admitted
}

/// Returns the processor time of this thread, on which all clients run.
fn client_time() -> Result<Duration, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos = stat.split(' ').next().ok_or("an empty schedstat")?;
    Ok(Duration::from_nanos(nanos.parse()?))
}

/// Returns the median of a quantity over all blocks of a candidate.
pub(super) fn typical(rounds: &[Round], candidate: usize, of: impl Fn(&Block) -> f64) -> f64 {
    median(&rounds.iter().flat_map(|round| &round[candidate]).map(of).collect::<Vec<_>>())
}

/// The limit in the measurement of exactness, which `PRESSED_LOAD` exceeds for each subject.
pub(super) const PRESSED: u32 = 20;

pub(super) const PRESSED_LOAD: Load = Load { in_flight: 64, decisions: 10_000, subjects: 100 };

/// Makes concurrent requests under limits of `PRESSED`. Returns how many are allowed, and how many
/// of these are beyond the limits.
pub(super) async fn too_many(candidate: Candidate) -> (usize, usize) {
    let allowed = PRESSED as usize * PRESSED_LOAD.subjects;
    let admitted = count_allowed(&Arc::new(candidate), PRESSED_LOAD).await;
    (admitted, admitted.saturating_sub(allowed))
}
