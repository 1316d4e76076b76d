//! Requests of a key and the fleet of all keys. Their counters are in different slots of a cluster.

use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;

use futures::future::join_all;
use rl_core::store::{DecideRequest, Mode, Namespace, Part, Store};
use rl_core::{Cost, Decision, Limit, Period, Policy, RedisStore, RedisStoreBuilder, Subject};
use tokio::time::interval;

use super::candidate::patient;
use super::cluster::{THREE, start};
use super::fixtures::subjects;
use super::server::{Monitor, Server};
use crate::goals::{Goal, Unit};
use crate::measure::{Estimate, median, time_async};
use crate::report::Report;
use crate::table::{Cell, Table};

pub(super) const GOALS: [&str; 1] = ["R13"];

const KEYS: usize = 500;
const ROUNDS: usize = 7;
/// A limit that no measurement uses up.
const MAX: u64 = 1_000_000;
/// The settings of the test of exactness: the number of requests in flight, and the limits of the
/// fleet and of each key.
const IN_FLIGHT: usize = 64;
const FLEET: u64 = 2_000;
const KEY: u64 = 10;

/// A kind of request, with its own store and counters.
struct Case {
    name: &'static str,
    store: RedisStore,
    namespaces: [Namespace; 2],
    keys: Vec<Subject>,
    /// The subject of the second part. If `None`, it is the key, as in the first part.
    fleet: Option<Subject>,
    policies: [Policy; 2],
    parts: usize,
}

impl Case {
    /// Creates a case. `max` contains the limits per hour of each key and of the fleet.
    fn new(name: &'static str, store: RedisStore, max: [u64; 2]) -> Result<Self, Box<dyn Error>> {
        let rule = |rule| Namespace::default().rule(rule);
        let policy = |max| -> Result<Policy, Box<dyn Error>> {
            Ok(Policy::new([Limit::new(max, Period::HOUR)?])?)
        };
        Ok(Self {
            name,
            store,
            namespaces: [rule("keys")?, rule("fleet")?],
            keys: subjects(KEYS),
            fleet: Some(Subject::consumer("fleet")),
            policies: [policy(max[0])?, policy(max[1])?],
            parts: 2,
        })
    }

    async fn decide(&self, key: usize, mode: Mode, cost: u64) -> Result<Decision, Box<dyn Error>> {
        let (own, [keys, fleet]) = (Namespace::default(), &self.namespaces);
        let key = &self.keys[key % KEYS];
        let part = |subject, policy| Part::new(subject, policy, Cost::new(cost));
        let parts = [
            part(key, &self.policies[0]).with_namespace(keys),
            part(self.fleet.as_ref().unwrap_or(key), &self.policies[1]).with_namespace(fleet),
        ];
        let request = DecideRequest::new(&own, &parts[..self.parts], mode);
        Ok(self.store.decide(request).await?)
    }

    /// Makes a request of each key, one after the other. Returns the µs and the number of calls for
    /// each request.
    async fn block(&self, monitors: &mut [Monitor]) -> Result<(f64, f64), Box<dyn Error>> {
        let before = calls(monitors).await?;
        let (elapsed, result) = time_async(async {
            for key in 0..KEYS {
                let decision = self.decide(key, Mode::Check, 1).await?;
                assert!(decision.is_allowed(), "{}: the limits are out of reach", self.name);
            }
            Ok::<_, Box<dyn Error>>(())
        })
        .await;
        result?;
        let calls = calls(monitors).await? - before;
        Ok((elapsed.as_secs_f64() * 1e6 / KEYS as f64, calls / KEYS as f64))
    }
}

/// Measures the time and the calls of allowed requests. Counts the requests that are allowed above
/// a limit.
pub(super) async fn measure(report: &mut Report) -> Result<Vec<Goal>, Box<dyn Error>> {
    let (servers, mut monitors) = start(THREE).await?;
    let cases = cases(&servers).await?;
    let mut samples = vec![(Vec::new(), Vec::new()); cases.len()];
    for round in 0..=ROUNDS {
        for place in (0..cases.len()).chain((0..cases.len()).rev()) {
            let (micros, calls) = cases[place].block(&mut monitors).await?;
            // The first round creates the keys.
            if round > 0 {
                samples[place].0.push(micros);
                samples[place].1.push(calls);
            }
        }
    }
    let columns = ["allowed requests, one at a time", "calls", "µs", "beside one part"];
    let title = "a key and the fleet on a cluster of three primaries";
    let mut table = Table::new(title, columns);
    let (one, _) = &samples[0];
    let mut goals = Vec::new();
    for (case, (micros, calls)) in cases.iter().zip(&samples) {
        let ratios: Vec<f64> = micros.iter().zip(one).map(|(these, one)| these / one).collect();
        let ratio = Estimate::of(&ratios);
        table.row::<Cell>([
            case.name.into(),
            format!("{:.2}", median(calls)).into(),
            format!("{:.0}", median(micros)).into(),
            ratio.into(),
        ]);
        let of_goal = match case.name {
            SCARCE => Some((2.5, 2.0)),
            LEASED => Some((1.5, 1.2)),
            _ => None,
        };
        if let Some((floor, moon)) = of_goal {
            let what = format!("time of a request beside one part, {}", case.name);
            goals.push(Goal::measured("R13", &what, (floor, moon, Unit::AtMost("x")), ratio));
        }
    }
    report.table("redis-across-slots", table);
    let (above, stayed) = exactness(&servers).await?;
    for (what, count) in [
        ("requests above a limit, key and fleet in different slots", above),
        ("charges of denied requests that stay", stayed),
    ] {
        goals.push(Goal::counted("R13", what, (0.0, 0.0, Unit::AtMost("")), count as f64));
    }
    Ok(goals)
}

const SCARCE: &str = "key and fleet, fleet at 60 %";
const LEASED: &str = "key and leased fleet";

async fn cases(servers: &[Server]) -> Result<Vec<Case>, Box<dyn Error>> {
    let case = async |name, prefix, configure: fn(RedisStoreBuilder) -> RedisStoreBuilder| {
        let store = configure(store(servers, prefix)).connect().await?;
        Case::new(name, store, [MAX, MAX])
    };
    let same = |store| store;
    let one = Case { parts: 1, ..case("one part", "one", same).await? };
    let together = Case { fleet: None, ..case("two parts in one slot", "same", same).await? };
    let plenty = case("key and fleet, both below 50 %", "plenty", same).await?;
    let scarce = case(SCARCE, "scarce", same).await?;
    scarce.decide(0, Mode::Charge, MAX * 6 / 10).await?;
    let mut leased = case(LEASED, "leased", |store| store.lease(10_000)).await?;
    // Units of GCRA are not leased, so each request calls the server of its key.
    leased.policies[0] = Policy::new([format!("{MAX}/hour:gcra").parse()?])?;
    Ok(vec![one, together, plenty, scarce, leased])
}

fn store(servers: &[Server], prefix: &str) -> RedisStoreBuilder {
    let urls = servers.iter().map(|server| server.url(0)).collect::<Vec<_>>();
    patient(RedisStore::cluster(urls)).prefix(prefix).local_denial(false)
}

/// Sends many more requests than the limits allow, through two stores. Returns the number of
/// requests that were allowed above a limit, and of units that stay charged for denied requests.
async fn exactness(servers: &[Server]) -> Result<(u64, u64), Box<dyn Error>> {
    let mut instances = Vec::new();
    for _ in 0..2 {
        let store = store(servers, "exact").connect().await?;
        instances.push(Case::new("exactness", store, [KEY, FLEET])?);
    }
    let mut allowed = HashMap::<usize, u64>::new();
    for round in 0..(2 * KEYS * KEY as usize).div_ceil(IN_FLIGHT) {
        let requests = (0..IN_FLIGHT).map(|number| {
            let request = round * IN_FLIGHT + number;
            let (key, instance) = (request * 7 % KEYS, &instances[number % instances.len()]);
            async move { (key, instance.decide(key, Mode::Check, 1).await) }
        });
        for (key, decision) in join_all(requests).await {
            *allowed.entry(key).or_default() += u64::from(decision?.is_allowed());
        }
    }
    let fleet: u64 = allowed.values().sum();
    let above_keys: u64 = allowed.values().map(|allowed| allowed.saturating_sub(KEY)).sum();
    let above = above_keys + fleet.saturating_sub(FLEET);
    // A denied request is charged at first, and refunded later. The last refunds may arrive after
    // the last response.
    let mut stayed = u64::MAX;
    let mut ticks = interval(Duration::from_millis(20));
    for _ in 0..50 {
        stayed = 0;
        for key in 0..KEYS {
            let usage = instances[0].decide(key, Mode::Peek, 0).await?;
            let mut used = usage.parts().filter_map(|part| Some(part.limits().next()?.used()));
            let of_key = allowed.get(&key).copied().unwrap_or(0);
            stayed += used.next().unwrap_or(0).saturating_sub(of_key);
            if key == 0 {
                stayed += used.next().unwrap_or(0).saturating_sub(fleet);
            }
        }
        if stayed == 0 {
            break;
        }
        ticks.tick().await;
    }
    assert!(fleet > FLEET / 2, "the requests were decided");
    Ok((above, stayed))
}

async fn calls(monitors: &mut [Monitor]) -> Result<f64, Box<dyn Error>> {
    let mut sum = 0.0;
    for monitor in monitors {
        sum += monitor.commands(&["evalsha"]).await?.0;
    }
    Ok(sum)
}
