//! Requests of three parts from eight processes. Processes are killed, and connections are cut.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use rl_core::store::Namespace;
use rl_core::{
    Cost, Limit, Part, Policy, RateLimiter, RedisStore, RedisStoreBuilder, StoreError, Subject,
};
use rl_tests::{Bystander, RedisCluster, RedisServer};

const PROCESSES: usize = 8;

/// The numbers that `part-worker` uses.
const REQUESTS: u64 = 16;
const KEYS: usize = 4;
const CUSTOMERS: usize = 2;

/// The servers of a run, and its number of requests.
struct Run {
    /// The URLs of the servers, separated by commas.
    urls: String,
    /// The servers whose connections are cut.
    servers: Vec<Bystander>,
    store: RedisStoreBuilder,
    /// The limits of each key, of each customer and of the fleet in a day.
    limits: [u64; 3],
    /// Further limits of each key and each customer.
    further_limits: [&'static str; 2],
    /// The number of decisions after which the processes end, if the limit of the fleet is used up.
    decisions: u64,
    /// The numbers of decisions between two kills, and between two cuts of all connections.
    between_kills: u64,
    between_cuts: u64,
}

impl Run {
    async fn on_server(server: &RedisServer) -> Self {
        Self {
            urls: server.url(),
            servers: vec![Bystander::new(server).await],
            store: server.patient_store(),
            limits: [3_000, 4_500, 8_000],
            further_limits: [""; 2],
            decisions: 24_000,
            between_kills: 2_000,
            between_cuts: 700,
        }
    }

    /// Creates a run on the primaries of a cluster. Keys and customers also have limits per second.
    /// They deny many requests after other parts were charged, so that those charges are refunded.
    async fn on_cluster(cluster: &RedisCluster) -> Self {
        let patience = Duration::from_secs(60);
        Self {
            urls: cluster.urls().join(","),
            servers: cluster.operators().await.drain(..3).collect(),
            store: RedisStore::cluster(cluster.urls()).connection_wait(patience),
            limits: [900, 1_400, 2_400],
            further_limits: [",150/second", ",250/second"],
            decisions: 7_200,
            between_kills: 700,
            between_cuts: 300,
        }
    }

    /// Returns the limits of each key, of each customer and of the fleet. The limit per day is the
    /// first one.
    fn limits(&self) -> [String; 3] {
        let [key, customer, fleet] = self.limits.map(|max| format!("{max}/day"));
        let [of_key, of_customer] = self.further_limits;
        [key + of_key, customer + of_customer, fleet]
    }
}

/// A process that makes requests.
struct Worker {
    process: Child,
    input: Option<ChildStdin>,
    reading: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(run: &Run, lease: u32, results: &Sender<Vec<u64>>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_part-worker"));
        command.arg(&run.urls).args(run.limits()).arg(lease.to_string());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (process.stdin.take(), process.stdout.take().unwrap());
        let results = results.clone();
        let reading = spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
                // The last line of a killed process may be incomplete.
                if let Ok(numbers) = numbers
                    && numbers.len() == 3 + KEYS + CUSTOMERS
                {
                    let _ = results.send(numbers);
                }
            }
        });
        Self { process, input, reading: Some(reading) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.process.wait();
        let _ = self.reading.take().map(JoinHandle::join);
    }
}

/// The decisions that the processes have reported.
#[derive(Debug, Default)]
struct Reports {
    decided: u64,
    allowed: [u64; KEYS + CUSTOMERS],
    /// The number of requests without a decision, because a reply was lost.
    undecided: u64,
    /// The number of charges that could not be given back.
    unreturned: u64,
    kills: u64,
    cuts: u64,
}

impl Reports {
    fn add(&mut self, numbers: &[u64]) {
        self.decided += numbers[0];
        self.allowed.iter_mut().zip(&numbers[1..]).for_each(|(sum, allowed)| *sum += allowed);
        self.undecided += numbers[1 + KEYS + CUSTOMERS];
        self.unreturned += numbers[2 + KEYS + CUSTOMERS];
    }
}

/// Runs the processes. Repeatedly kills one of them, and cuts all connections.
async fn run(run: &mut Run, lease: u32) -> Reports {
    let (sender, results): (_, Receiver<Vec<u64>>) = channel();
    let start = |run: &Run| Worker::start(run, lease, &sender);
    let mut workers: Vec<_> = (0..PROCESSES).map(|_| start(run)).collect();
    let mut reports = Reports::default();
    while reports.decided < run.decisions || !is_exhausted(run).await {
        reports.add(&results.recv().unwrap());
        if reports.decided / run.between_cuts > reports.cuts {
            reports.cuts += 1;
            for operator in &mut run.servers {
                operator.query::<()>("CLIENT KILL TYPE normal SKIPME yes").await;
            }
        }
        if reports.decided / run.between_kills > reports.kills {
            let next = usize::try_from(reports.kills).unwrap() % PROCESSES;
            workers[next].process.kill().unwrap();
            workers[next] = start(run);
            reports.kills += 1;
        }
    }
    drop(workers);
    drop(sender);
    results.into_iter().for_each(|numbers| reports.add(&numbers));
    reports
}

/// Returns whether the limit of the fleet is used up, or false if a connection was cut.
async fn is_exhausted(run: &Run) -> bool {
    try_used(run).await.is_ok_and(|[.., fleet]| fleet[0] == run.limits[2])
}

/// Returns the used units of each key, of each customer and of the fleet.
async fn used(run: &Run) -> [Vec<u64>; 3] {
    try_used(run).await.unwrap()
}

async fn try_used(run: &Run) -> Result<[Vec<u64>; 3], StoreError> {
    let store = run.store.clone().connect().await.unwrap();
    // On a busy machine, a reply may take longer than the default deadline.
    let limiter = RateLimiter::builder().limit(Limit::per_second(1)).store(store);
    let limiter = limiter.deadline(Duration::from_secs(60)).build().unwrap();
    let mut used = [("keys", KEYS), ("customers", CUSTOMERS), ("fleet", 0)].map(|_| Vec::new());
    for (rule, (name, count)) in
        [("keys", KEYS), ("customers", CUSTOMERS), ("fleet", 0)].into_iter().enumerate()
    {
        let namespace: Namespace = limiter.namespace().rule(name).unwrap();
        let limits = run.limits();
        let limits = limits[rule].split(',').map(|limit| limit.parse::<Limit>().unwrap());
        let policy = Policy::new(limits).unwrap();
        let subjects = (0..count).map(|n| Subject::user(&n.to_string()));
        let fleet = (count == 0).then(Subject::global);
        for subject in subjects.chain(fleet) {
            let part = Part::new(&subject, &policy, Cost::ZERO).with_namespace(&namespace);
            let usage = limiter.request(&part).usage().await?;
            used[rule].extend(usage.limits().next().map(|limit| limit.used()));
        }
    }
    Ok(used)
}

/// Asserts what must hold with and without leases. No part is charged above its limit, and each
/// allowed request is charged to all its parts. At most `bound` units are charged for requests that
/// no process has reported as allowed.
fn audit(run: &Run, reports: &Reports, used: &[Vec<u64>; 3], bound: u64) {
    let [keys, customers, _] = used;
    for (units, limit) in used.iter().zip(run.limits) {
        assert!(units.iter().all(|units| *units <= limit), "{used:?}");
    }
    let (of_keys, of_customers) = reports.allowed.split_at(KEYS);
    let each = of_keys.iter().zip(keys).chain(of_customers.iter().zip(customers));
    for (allowed, charged) in each {
        assert!(allowed <= charged, "more than was charged: {:?} {used:?}", reports.allowed);
    }
    let allowed: u64 = of_keys.iter().sum();
    assert_eq!(allowed, of_customers.iter().sum::<u64>());
    for charged in used {
        let charged: u64 = charged.iter().sum();
        assert!(charged <= allowed + bound, "{charged} charged, {allowed} allowed, bound {bound}");
    }
    assert!(
        reports.kills >= 8 && reports.cuts >= 20,
        "{} kills, {} cuts",
        reports.kills,
        reports.cuts
    );
}

/// Returns the maximum number of requests that may have been charged without a report: those in
/// flight at a kill or a cut.
fn in_flight(reports: &Reports) -> u64 {
    REQUESTS * (reports.kills + reports.cuts * PROCESSES as u64)
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_processes_and_cut_connections_never_charge_one_part_without_the_others() {
    let server = RedisServer::start();
    let mut on_server = Run::on_server(&server).await;
    let reports = run(&mut on_server, 0).await;
    let used = used(&on_server).await;
    audit(&on_server, &reports, &used, in_flight(&reports));
    let sums = used.map(|used| used.iter().sum::<u64>());
    assert_eq!(sums, [on_server.limits[2]; 3], "every request charges all its parts, or none");
    assert_eq!(server.keys_without_expiry().await, [""; 0]);
}

/// A killed process loses its leases. A cut connection loses the leases whose replies were on their
/// way. Lost leases stay charged until their windows end.
#[tokio::test(flavor = "multi_thread")]
async fn killed_processes_lose_at_most_their_leases_and_grant_no_unit_twice() {
    const LEASE: u32 = 20;

    let server = RedisServer::start();
    let mut on_server = Run::on_server(&server).await;
    let reports = run(&mut on_server, LEASE).await;
    let leases = u64::from(LEASE) * (1 + KEYS + CUSTOMERS) as u64;
    let lost = leases * (reports.kills + reports.cuts * PROCESSES as u64);
    let used = used(&on_server).await;
    audit(&on_server, &reports, &used, lost + in_flight(&reports));
    assert_eq!(server.keys_without_expiry().await, [""; 0]);
}

/// On a cluster, the parts of a request are in several slots, and several calls charge them. So a
/// kill or a cut may leave charges of some parts only. In each rule, these are at most the sum of
/// three numbers: the requests that got no decision, the last requests of killed processes, and the
/// charges that could not be given back.
#[tokio::test(flavor = "multi_thread")]
async fn killed_processes_and_cut_connections_exceed_no_limit_across_slots() {
    let cluster = RedisCluster::start().await;
    let mut on_cluster = Run::on_cluster(&cluster).await;
    let reports = run(&mut on_cluster, 0).await;
    let used = used(&on_cluster).await;
    let mut primaries = 0;
    for operator in &mut on_cluster.servers {
        primaries += usize::from(operator.calls().await.contains_key("evalsha"));
    }
    assert_eq!(primaries, 3, "the parts of the requests are not spread over the primaries");
    // When a process is killed, `REQUESTS` requests may be in flight, and refunds of as many
    // earlier requests may be due.
    let killed = 2 * REQUESTS * reports.kills;
    println!("{reports:?}, used {used:?}");
    audit(&on_cluster, &reports, &used, reports.undecided + killed + reports.unreturned);
    for server in &cluster.servers[..3] {
        assert_eq!(server.keys_without_expiry().await, [""; 0]);
    }
}
