//! One of several processes that share limits: started by `nodes`, told what to do in its arguments.

use std::error::Error;
use std::fmt;
use std::io::stdin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rl_core::store::{DecideRequest, Mode, Namespace, Part, Store};
use rl_core::time::{Clock, SystemClock};
use rl_core::{Cost, Period, Policy, RedisStore, Subject};

use super::contender::limits;
use crate::measure::time_async;

/// What a node is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Orders {
    /// What each subject may in every period from an hour on.
    pub(super) max: u32,
    pub(super) subjects: usize,
    /// How many ask at once, and how often each.
    pub(super) tasks: usize,
    pub(super) calls: usize,
    /// Units of a lease; none, if 0.
    pub(super) lease: u32,
    pub(super) coalesces: bool,
    pub(super) remembers_denials: bool,
}

impl fmt::Display for Orders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max, subjects, tasks, calls, lease, coalesces, remembers_denials } = self;
        write!(f, "{max} {subjects} {tasks} {calls} {lease} {coalesces} {remembers_denials}")
    }
}

impl Orders {
    fn parse(words: &[&str]) -> Result<Self, Box<dyn Error>> {
        let [max, subjects, tasks, calls, lease, coalesces, remembers_denials] = words else {
            return Err(format!("a node wants seven orders, not {}", words.len()).into());
        };
        fn number<T: FromStr>(word: &str) -> Result<T, String> {
            word.parse().map_err(|_| format!("{word:?} is no order for a node"))
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

/// What a node has seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) seconds: f64,
    /// Calls that the store did not answer.
    pub(super) failed: u64,
    /// Units of each subject that passed.
    pub(super) admitted: Vec<u64>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.seconds, self.failed)?;
        self.admitted.iter().try_for_each(|admitted| write!(f, " {admitted}"))
    }
}

impl FromStr for Outcome {
    type Err = Box<dyn Error>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut words = text.split_whitespace();
        let mut word = || words.next().ok_or("a node says its time and its failures");
        let (seconds, failed) = (word()?.parse()?, word()?.parse()?);
        let admitted = words.map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self { seconds, failed, admitted })
    }
}

/// Says `ready` and what its clock says once it is connected, waits for a line, does as it is told, and
/// says what came of it.
pub(super) fn run(words: &[&str]) -> Result<(), Box<dyn Error>> {
    let [url, orders @ ..] = words else { return Err("a node wants a URL".into()) };
    let orders = Orders::parse(orders)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = RedisStore::builder(url)
            .connections(2)
            .lease(orders.lease)
            .coalesce(orders.coalesces)
            .local_denial(orders.remembers_denials)
            // Patient: a busy machine must not turn into a call without an answer.
            .connection_wait(Duration::from_secs(5))
            .connect()
            .await?;
        println!("ready {}", SystemClock.now().as_micros() / 1_000_000);
        stdin().read_line(&mut String::new())?;
        println!("{}", work(store, orders).await?);
        Ok(())
    })
}

async fn work(store: RedisStore, orders: Orders) -> Result<Outcome, Box<dyn Error>> {
    // Windows that do not end while it runs.
    let limits = limits(orders.max)?.into_iter().filter(|limit| limit.period() > Period::MINUTE);
    let policy = Arc::new(Policy::new(limits)?);
    let subjects: Arc<Vec<_>> =
        Arc::new((0..orders.subjects).map(|n| Subject::user(&n.to_string())).collect());
    let start = |first| {
        let (policy, subjects) = (Arc::clone(&policy), Arc::clone(&subjects));
        tokio::spawn(ask(store.clone(), policy, subjects, first, orders.calls))
    };
    let (elapsed, outcome) = time_async(async {
        let tasks: Vec<_> = (0..orders.tasks).map(start).collect();
        let mut outcome = Outcome { admitted: vec![0; orders.subjects], ..Outcome::default() };
        for task in tasks {
            let (admitted, failed) = task.await?;
            outcome.admitted.iter_mut().zip(admitted).for_each(|(sum, count)| *sum += count);
            outcome.failed += failed;
        }
        Ok::<_, Box<dyn Error>>(outcome)
    })
    .await;
    Ok(Outcome { seconds: elapsed.as_secs_f64(), ..outcome? })
}

/// Asks in turn for each subject; returns how many passed of each, and how many calls failed.
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
        // Denials that are known take no time: others should have their turn.
        tokio::task::yield_now().await;
    }
    (admitted, failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_arrive_as_they_were_given() {
        let orders = Orders {
            max: 2_000,
            subjects: 4,
            tasks: 16,
            calls: 375,
            lease: 100,
            coalesces: true,
            remembers_denials: false,
        };
        let text = orders.to_string();
        let words: Vec<&str> = text.split(' ').collect();
        assert_eq!(Orders::parse(&words).unwrap(), orders);
        let error = Orders::parse(&["many"; 7]).unwrap_err().to_string();
        assert_eq!(error, "\"many\" is no order for a node");
    }

    #[test]
    fn an_outcome_is_told_in_a_line() {
        let outcome = Outcome { seconds: 1.25, failed: 3, admitted: vec![2_000, 0, 1_999] };
        assert_eq!(outcome.to_string().parse::<Outcome>().unwrap(), outcome);
        assert!("1.25".parse::<Outcome>().is_err());
    }
}
