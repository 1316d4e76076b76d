//! A node: one of several processes that share limits. `nodes` starts it, and passes its settings
//! as arguments.

use std::error::Error;
use std::fmt;
use std::io::stdin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rl_core::store::{DecideRequest, Mode, Namespace, Part, Store};
use rl_core::time::{Clock, SystemClock};
use rl_core::{Cost, Period, Policy, RedisStore, Subject};

use super::fixtures::limits;
use crate::measure::time_async;

/// The settings of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeSettings {
    /// The limit of each subject, in every period of at least an hour.
    pub(super) max: u32,
    pub(super) subjects: usize,
    /// The number of concurrent tasks.
    pub(super) tasks: usize,
    pub(super) calls: usize,
    /// The units of a lease; 0 switches leases off.
    pub(super) lease: u32,
    pub(super) coalesces: bool,
    pub(super) remembers_denials: bool,
}

impl fmt::Display for NodeSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max, subjects, tasks, calls, lease, coalesces, remembers_denials } = self;
        write!(f, "{max} {subjects} {tasks} {calls} {lease} {coalesces} {remembers_denials}")
    }
}

impl NodeSettings {
    fn parse(words: &[&str]) -> Result<Self, Box<dyn Error>> {
        let [max, subjects, tasks, calls, lease, coalesces, remembers_denials] = words else {
            return Err(format!("a node needs seven settings, not {}", words.len()).into());
        };
        fn number<T: FromStr>(word: &str) -> Result<T, String> {
            word.parse().map_err(|_| format!("invalid node setting {word:?}"))
        }
        Ok(Self {
            max: number(max)?,
            subjects: number(subjects)?,
            tasks: number(tasks)?,
            calls: number(calls)?,
            lease: number(lease)?,
            coalesces: number(coalesces)?,
            remembers_denials: number(remembers_denials)?,
        })
    }
}

/// The result that a node reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeResult {
    pub(super) seconds: f64,
    /// The number of calls without a decision.
    pub(super) failed: u64,
    /// The number of allowed units of each subject.
    pub(super) admitted: Vec<u64>,
}

impl fmt::Display for NodeResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.seconds, self.failed)?;
        self.admitted.iter().try_for_each(|admitted| write!(f, " {admitted}"))
    }
}

impl FromStr for NodeResult {
    type Err = Box<dyn Error>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut words = text.split_whitespace();
        let mut word = || words.next().ok_or("a node prints its time and its failures");
        let (seconds, failed) = (word()?.parse()?, word()?.parse()?);
        let admitted = words.map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self { seconds, failed, admitted })
    }
}

/// Runs a node. Once it is connected, it prints `ready` and its clock. It then waits for a line,
/// does its work, and prints the result.
pub(super) fn run(words: &[&str]) -> Result<(), Box<dyn Error>> {
    let [url, settings @ ..] = words else { return Err("a node needs a URL".into()) };
    let settings = NodeSettings::parse(settings)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = RedisStore::builder(url)
            .connections(2)
            .lease(settings.lease)
            .coalesce(settings.coalesces)
            .local_denial(settings.remembers_denials)
            // The wait is long, so that no call fails because the machine is busy.
            .connection_wait(Duration::from_secs(5))
            .connect()
            .await?;
        println!("ready {}", SystemClock.now().as_micros() / 1_000_000);
        stdin().read_line(&mut String::new())?;
        println!("{}", work(store, settings).await?);
        Ok(())
    })
}

async fn work(store: RedisStore, settings: NodeSettings) -> Result<NodeResult, Box<dyn Error>> {
    // Shorter windows could end during the run.
    let limits = limits(settings.max)?.into_iter().filter(|limit| limit.period() > Period::MINUTE);
    let policy = Arc::new(Policy::new(limits)?);
    let subjects: Arc<Vec<_>> =
        Arc::new((0..settings.subjects).map(|n| Subject::user(&n.to_string())).collect());
    let start = |first| {
        let (policy, subjects) = (Arc::clone(&policy), Arc::clone(&subjects));
        tokio::spawn(ask(store.clone(), policy, subjects, first, settings.calls))
    };
    let (elapsed, outcome) = time_async(async {
        let tasks: Vec<_> = (0..settings.tasks).map(start).collect();
        let mut outcome =
            NodeResult { admitted: vec![0; settings.subjects], ..NodeResult::default() };
        for task in tasks {
            let (admitted, failed) = task.await?;
            outcome.admitted.iter_mut().zip(admitted).for_each(|(sum, count)| *sum += count);
            outcome.failed += failed;
        }
        Ok::<_, Box<dyn Error>>(outcome)
    })
    .await;
    Ok(NodeResult { seconds: elapsed.as_secs_f64(), ..outcome? })
}

/// Makes requests for each subject in turn. Returns the allowed units of each subject, and the
/// number of failed calls.
async fn ask(
    store: RedisStore,
    policy: Arc<Policy>,
    subjects: Arc<Vec<Subject>>,
    first: usize,
    calls: usize,
) -> (Vec<u64>, u64) {
    let (namespace, mut admitted, mut failed) = (Namespace::default(), vec![0; subjects.len()], 0);
    for call in 0..calls {
        let place = (first + call) % subjects.len();
        let subject = &subjects[place];
        let (namespace, policy, mode, cost) = (&namespace, &*policy, Mode::Check, Cost::ONE);
        match store
            .decide(DecideRequest::new(namespace, &[Part::new(subject, policy, cost)], mode))
            .await
        {
            Ok(decision) => admitted[place] += decision.granted(),
            Err(_) => failed += 1,
        }
        // Cached denials are decided without waiting. Without a yield, the other tasks would not
        // run.
        tokio::task::yield_now().await;
    }
    (admitted, failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_settings_survive_the_round_trip_through_arguments() {
        let settings = NodeSettings {
            max: 2_000,
            subjects: 4,
            tasks: 16,
            calls: 375,
            lease: 100,
            coalesces: true,
            remembers_denials: false,
        };
        let text = settings.to_string();
        let words: Vec<&str> = text.split(' ').collect();
        assert_eq!(NodeSettings::parse(&words).unwrap(), settings);
        let error = NodeSettings::parse(&["many"; 7]).unwrap_err().to_string();
        assert_eq!(error, "invalid node setting \"many\"");
    }

    #[test]
    fn a_node_result_survives_the_round_trip_through_a_line() {
        let outcome = NodeResult { seconds: 1.25, failed: 3, admitted: vec![2_000, 0, 1_999] };
        assert_eq!(outcome.to_string().parse::<NodeResult>().unwrap(), outcome);
        assert!("1.25".parse::<NodeResult>().is_err());
    }
}
