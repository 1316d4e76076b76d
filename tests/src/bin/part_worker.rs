//! One of several processes whose requests have three parts: `part-worker URLS KEY CUSTOMER FLEET
//! [LEASE]`. `URLS` is the URL of a server, or those of servers of a cluster, separated by commas.
//! `KEY`, `CUSTOMER` and `FLEET` are the limits of the parts, separated by commas, and `LEASE` is
//! the number of units in a lease.
//!
//! It makes rounds of concurrent requests until its input is closed. After each round, it prints a
//! line of numbers: the decided requests, the allowed requests of each key and of each customer,
//! the requests without a decision, and the charges that could not be given back. Before it ends,
//! it returns its leases and prints such a line once more.

#![expect(clippy::print_stdout, reason = "prints its results")]

use std::error::Error;
use std::time::Duration;

use rl_core::{Cost, Limit, OnFailure, Origin, Part, Policy, RateLimiter, RedisStore, Subject};
use tokio::io::AsyncReadExt;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

/// The number of concurrent requests. `tests/redis/parts.rs` contains the same three numbers.
const REQUESTS: usize = 16;
const KEYS: usize = 4;
const CUSTOMERS: usize = 2;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [urls, key, customer, fleet, lease @ ..] = &arguments[..] else {
        return Err("usage: part-worker URLS KEY CUSTOMER FLEET [LEASE]".into());
    };
    let lease = lease.first().map_or(Ok(0), |units| units.parse())?;
    let patience = Duration::from_secs(30);
    let store = match urls.split(',').collect::<Vec<_>>()[..] {
        [url] => RedisStore::builder(url),
        // With this wait, a denied request ends only after its charges are given back. So a process
        // that is killed leaves such charges only for its last requests. The denial cache is off,
        // because its denials never reach a server.
        ref urls => RedisStore::cluster(urls).status_wait(patience).local_denial(false),
    };
    let store = store.connection_wait(patience).lease(lease).connect().await?;
    let limiter = RateLimiter::builder()
        .limit(Limit::per_second(1))
        .store(store.clone())
        .on_store_failure(OnFailure::Reject)
        .deadline(patience)
        .build()?;
    let policy = |limit: &String| -> Result<Policy, Box<dyn Error>> {
        let limits: Result<Vec<Limit>, _> = limit.split(',').map(str::parse).collect();
        Ok(Policy::new(limits?)?)
    };
    let (of_key, of_customer, of_fleet) = (policy(key)?, policy(customer)?, policy(fleet)?);
    let rule = |name: &str| limiter.namespace().rule(name);
    let (keys, customers, all) = (rule("keys")?, rule("customers")?, rule("fleet")?);
    let key_subjects = (0..KEYS).map(|n| Subject::user(&n.to_string()));
    let key_subjects: Vec<_> = key_subjects.collect();
    let customer_subjects = (0..CUSTOMERS).map(|n| Subject::user(&n.to_string()));
    let customer_subjects: Vec<_> = customer_subjects.collect();
    let global = Subject::global();

    let (closed, mut is_closed) = oneshot::channel();
    tokio::spawn(async move {
        let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
        let _ = closed.send(());
    });
    let (mut number, mut unreturned) = (std::process::id() as usize, 0);
    while is_closed.try_recv() == Err(TryRecvError::Empty) {
        let mut calls = Vec::with_capacity(REQUESTS);
        for _ in 0..REQUESTS {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (key, customer) = ((number >> 33) % KEYS, (number >> 40) % CUSTOMERS);
            let one = Cost::ONE;
            let parts = [
                Part::new(&key_subjects[key], &of_key, one).with_namespace(&keys),
                Part::new(&customer_subjects[customer], &of_customer, one)
                    .with_namespace(&customers),
                Part::new(&global, &of_fleet, one).with_namespace(&all),
            ];
            let decided = limiter.request(&parts).check();
            calls.push((key, customer, tokio::spawn(decided)));
        }
        let (mut decided, mut allowed) = (0, [0; KEYS + CUSTOMERS]);
        for (key, customer, call) in calls {
            let decision = call.await?;
            let is_decided =
                matches!(decision.origin(), Origin::Store | Origin::LocalDeny | Origin::Leased);
            decided += usize::from(is_decided);
            if decision.is_allowed() {
                allowed[key] += 1;
                allowed[KEYS + customer] += 1;
            }
        }
        let allowed = allowed.map(|count: u32| count.to_string()).join(" ");
        let before = std::mem::replace(&mut unreturned, store.unreturned_charges());
        println!("{decided} {allowed} {} {}", REQUESTS - decided, unreturned - before);
        if decided == 0 {
            tokio::task::yield_now().await;
        }
    }
    let closed = limiter.close().await;
    let none = ["0"; 1 + KEYS + CUSTOMERS].join(" ");
    println!("{none} 0 {}", store.unreturned_charges() - unreturned);
    closed?;
    Ok(())
}
