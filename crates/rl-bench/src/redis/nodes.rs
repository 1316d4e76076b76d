//! Several instances of a service on one server, whose connections are cut: how many pass, beside how
//! many may.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use rl_core::store::{Charge, Mode, Namespace, Store};
use rl_core::{Cost, Period, Policy, RedisStore, Subject};
use tokio::time::interval;

use super::contender::limits;
use super::server::Server;
use crate::goals::{Goal, Unit};
use crate::measure::time_async;
use crate::table::Table;

/// Under which settings nodes run.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    shortcuts: bool,
    lease: u32,
    is_cut: bool,
}

const WAYS: [Way; 5] = [
    Way { name: "each call by itself", shortcuts: false, lease: 0, is_cut: false },
    Way { name: "each call by itself, connections cut", shortcuts: false, lease: 0, is_cut: true },
    Way { name: "together, denials remembered", shortcuts: true, lease: 0, is_cut: false },
    Way { name: "the same, connections cut", shortcuts: true, lease: 0, is_cut: true },
    Way { name: "leases of 100, connections cut", shortcuts: true, lease: 100, is_cut: true },
];
const NODES: [usize; 4] = [1, 2, 4, 8];
/// What each subject may in every period but the second, and how much is asked for.
const MAX: u32 = 2_000;
const ASKED: usize = 3 * MAX as usize;
const SUBJECTS: usize = 4;
/// Tasks of each node.
const TASKS: usize = 16;

struct Outcome {
    rate: f64,
    admitted: u64,
    failed: u64,
    too_many: u64,
}

pub(super) async fn measure() -> Result<Vec<Goal>, Box<dyn Error>> {
    let title = format!(
        "nodes on one server: {SUBJECTS} subjects, {MAX} for each, three times as many asked for"
    );
    let head = ["", "nodes", "thousand/s", "allowed", "admitted", "failed", "too many"];
    let mut table = Table::new(&title, head);
    let (mut worst, mut worst_leased, mut fewest) = (0, 0, u64::MAX);
    for way in WAYS {
        for nodes in NODES {
            let outcome = run(way, nodes).await?;
            let allowed = u64::from(MAX) * SUBJECTS as u64;
            let numbers = [allowed, outcome.admitted, outcome.failed, outcome.too_many];
            let cells =
                [way.name.to_owned(), nodes.to_string(), format!("{:.1}", outcome.rate / 1e3)];
            table.row(cells.into_iter().chain(numbers.map(|number| number.to_string())));
            if way.lease > 0 {
                worst_leased = worst_leased.max(outcome.too_many);
                fewest = fewest.min(outcome.admitted);
            } else {
                worst = worst.max(outcome.too_many);
            }
        }
    }
    println!("{table}");
    println!(
        "under leases, with connections cut, {fewest} passed at the fewest: the rest was held, or lost with \
         a reply\n"
    );
    let none = (0.0, 0.0, Unit::AtMost(""));
    Ok(vec![
        Goal::counted("R10", "leases: admitted beyond the limits", none, worst_leased as f64),
        Goal::counted("R12", "1 to 8 nodes: admitted beyond the limits", none, worst as f64),
    ])
}

async fn run(way: Way, nodes: usize) -> Result<Outcome, Box<dyn Error>> {
    let server = Server::start()?;
    let mut bystander = server.bystander().await?;
    // Windows that do not end while it runs.
    let limits = limits(MAX)?.into_iter().filter(|limit| limit.period() > Period::MINUTE);
    let policy = Policy::new(limits)?;
    let mut stores = Vec::new();
    for _ in 0..nodes {
        let store = RedisStore::builder(&server.url(0)).connections(2).lease(way.lease);
        let store = store.coalesce(way.shortcuts).local_denial(way.shortcuts);
        stores.push(store.connection_wait(Duration::from_secs(5)).connect().await?);
    }
    let subjects: Arc<Vec<_>> =
        Arc::new((0..SUBJECTS).map(|n| Subject::user(&n.to_string())).collect());
    let tasks = stores.iter().flat_map(|store| (0..TASKS).map(move |_| store.clone()));
    let each = ASKED * SUBJECTS / (nodes * TASKS);
    let tasks: Vec<_> = tasks
        .map(|store| {
            let (policy, subjects) = (policy.clone(), Arc::clone(&subjects));
            tokio::spawn(ask(store, policy, subjects, each))
        })
        .collect();
    let cutting = way.is_cut.then(|| {
        tokio::spawn(async move {
            let mut ticks = interval(Duration::from_millis(5));
            for _ in 0..20 {
                ticks.tick().await;
                let _ = bystander.kill_connections().await;
            }
        })
    });
    let (elapsed, counts) = time_async(async {
        let mut counts = vec![0; SUBJECTS];
        let mut failed = 0;
        for task in tasks {
            let (admitted, errors) = task.await.expect("asking does not panic");
            counts.iter_mut().zip(admitted).for_each(|(sum, count)| *sum += count);
            failed += errors;
        }
        (counts, failed)
    })
    .await;
    if let Some(cutting) = cutting {
        cutting.abort();
    }
    let (counts, failed) = counts;
    Ok(Outcome {
        rate: (each * nodes * TASKS) as f64 / elapsed.as_secs_f64(),
        admitted: counts.iter().sum(),
        failed,
        too_many: counts.iter().map(|count| count.saturating_sub(u64::from(MAX))).sum(),
    })
}

/// Asks in turn for each subject; returns how many passed of each, and how many calls failed.
async fn ask(
    store: RedisStore,
    policy: Policy,
    subjects: Arc<Vec<Subject>>,
    calls: usize,
) -> (Vec<u64>, u64) {
    let (namespace, mut admitted, mut failed) = (Namespace::default(), vec![0; subjects.len()], 0);
    for call in 0..calls {
        let place = call % subjects.len();
        let subject = &subjects[place];
        let (namespace, policy, mode, cost) = (&namespace, &policy, Mode::Check, Cost::ONE);
        match store.decide(Charge { namespace, subject, policy, mode, cost }).await {
            Ok(decision) => admitted[place] += decision.granted(),
            Err(_) => failed += 1,
        }
        // Denials that are known take no time: others should have their turn.
        tokio::task::yield_now().await;
    }
    (admitted, failed)
}
