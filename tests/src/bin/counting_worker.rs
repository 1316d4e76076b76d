//! One of several processes that make decisions of every kind and count them: `counting-worker URL
//! CLOSED CALLS`. `URL` is a Redis, and `CLOSED` is the URL of a port on which no server listens.
//!
//! When it has made its calls, it prints one line of JSON: the address at which it serves
//! `/metrics`, the numbers of its decisions as series (`seen`), and the same numbers from `stats()`
//! (`stats`). It ends when its input is closed.

#![expect(clippy::print_stdout, reason = "prints its results")]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use rl_core::store::Namespace;
use rl_core::{
    Decision, Limit, MemoryStore, OnFailure, Part, Policy, RateLimiter, RedisStore, Share, Subject,
};
use rl_metrics::Metrics;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

/// The number of tasks that call at the same time.
const TASKS: u64 = 32;

/// A timeout longer than any pause of a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The numbers that callers saw, by the text of their series.
type Seen = BTreeMap<String, u64>;

struct Limiters {
    memory: RateLimiter,
    redis: RateLimiter,
    leased: RateLimiter,
    fallback: RateLimiter,
    open: RateLimiter,
    closed: RateLimiter,
    places: RateLimiter,
    of_key: Policy,
    of_fleet: Policy,
}

impl Limiters {
    async fn new(url: &str, closed: &str) -> Result<Self, Box<dyn Error>> {
        let named = |name: &str| RateLimiter::builder().namespace(name).deadline(PATIENCE);
        let patient = || RedisStore::builder(url).connection_wait(PATIENCE);
        let down = async || {
            let wait = Duration::from_millis(50);
            RedisStore::builder(closed).connection_wait(wait).connect_timeout(wait).connect().await
        };
        let hourly = Limit::per_hour;
        Ok(Self {
            memory: named("memory").limit(hourly(200)).limit(Limit::per_day(250)).build()?,
            redis: named("redis").limit(hourly(900)).store(patient().connect().await?).build()?,
            leased: named("leased")
                .limit(hourly(5_000))
                .store(patient().lease(20).connect().await?)
                .build()?,
            fallback: named("fallback")
                .limit(hourly(800))
                .store(down().await?)
                .fallback(MemoryStore::new(), Share::with_instances(8))
                .build()?,
            open: named("open").limit(hourly(5)).store(down().await?).build()?,
            closed: named("closed")
                .limit(hourly(5))
                .store(down().await?)
                .on_store_failure(OnFailure::Reject)
                .build()?,
            places: named("places").limit(Limit::concurrency(3)?).build()?,
            of_key: Policy::new([hourly(60), Limit::per_day(90)])?,
            of_fleet: Policy::new([hourly(4_000)])?,
        })
    }

    fn all(&self) -> [&RateLimiter; 7] {
        let Self { memory, redis, leased, fallback, open, closed, places, .. } = self;
        [memory, redis, leased, fallback, open, closed, places]
    }

    /// Makes one call of a kind that depends on `number`, and adds its result to `seen`.
    async fn call(&self, number: u64, seen: &mut Seen) -> Result<(), Box<dyn Error + Send + Sync>> {
        let subject = Subject::consumer(&format!("consumer-{}", number % 17));
        match number % 20 {
            0..4 => {
                add(seen, &self.memory, &self.memory.check(&subject, 1 + number % 3).await, &[])
            }
            4 => add(
                seen,
                &self.memory,
                &self.memory.request(&subject).cost(7).check_up_to().await,
                &[],
            ),
            5 => self.in_parts(&self.memory, &subject, seen).await?,
            6 => {
                let charged = self.memory.request(&subject).cost(2).charge().await;
                count(seen, units("charged_after", "memory"), charged.charged_units());
                self.memory.peek(&subject, 1).await;
            }
            7..13 => add(seen, &self.redis, &self.redis.check(&subject, 1).await, &[]),
            13 => self.in_parts(&self.redis, &subject, seen).await?,
            14 | 15 => add(seen, &self.leased, &self.leased.check(&subject, 1).await, &[]),
            16 => {
                let decision = self.redis.check(&subject, 2).await;
                add(seen, &self.redis, &decision, &[]);
                let refunded = decision.charged_units().min(1);
                // The refund counts even if its reply is late, so an error is ignored.
                let _ = self.redis.request(&subject).refund(&decision, &[1]).await;
                count(seen, units("refunded", "redis"), refunded);
            }
            17 => add(seen, &self.fallback, &self.fallback.check(&subject, 1).await, &[]),
            18 => {
                let one = if (number / 20).is_multiple_of(2) { &self.open } else { &self.closed };
                add(seen, one, &one.check(&subject, 1).await, &[]);
            }
            _ => {
                let permit = self.places.acquire(&subject, 1).await;
                add(seen, &self.places, permit.decision(), &[]);
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    async fn in_parts(
        &self,
        limiter: &RateLimiter,
        subject: &Subject,
        seen: &mut Seen,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let rule = |name: &str| -> Result<Namespace, _> { limiter.namespace().rule(name) };
        let (keys, fleet, all) = (rule("keys")?, rule("fleet")?, Subject::global());
        let parts = [
            Part::new(subject, &self.of_key, 1.into()).with_namespace(&keys),
            Part::new(&all, &self.of_fleet, 1.into()).with_namespace(&fleet),
        ];
        add(seen, limiter, &limiter.request(&parts).check().await, &["keys", "fleet"]);
        Ok(())
    }
}

trait ChargedUnits {
    /// Returns the sum of the units that were charged to the parts.
    fn charged_units(&self) -> u64;
}

impl ChargedUnits for Decision {
    fn charged_units(&self) -> u64 {
        self.parts().map(|part| part.charged()).sum()
    }
}

fn count(seen: &mut Seen, series: String, number: u64) {
    *seen.entry(series).or_default() += number;
}

fn units(kind: &str, limiter: &str) -> String {
    format!("rl_units_total{{kind=\"{kind}\",limiter=\"{limiter}\"}}")
}

fn decisions(limiter: &str, origin: &str, is_allowed: bool) -> String {
    let outcome = if is_allowed { "allowed" } else { "denied" };
    format!("rl_decisions_total{{limiter=\"{limiter}\",origin=\"{origin}\",outcome=\"{outcome}\"}}")
}

/// Adds a decision to `seen`, as its caller sees it. `rules` contains the name of the rule of each
/// part.
fn add(seen: &mut Seen, limiter: &RateLimiter, decision: &Decision, rules: &[&str]) {
    let limiter = limiter.namespace().as_str();
    let (origin, is_allowed) = (decision.origin().as_str(), decision.is_allowed());
    count(seen, decisions(limiter, origin, is_allowed), 1);
    count(seen, units("granted", limiter), decision.charged_units());
    if decision.origin().is_failure() {
        return;
    }
    for (index, part) in decision.parts().enumerate() {
        let rule = rules.get(index).copied().unwrap_or_default();
        for limit in part.limits().filter(|limit| limit.is_over()) {
            let limit = limit.name();
            let of_limit = format!("limit=\"{limit}\",limiter=\"{limiter}\"");
            let series = "rl_limit_denials_total";
            count(seen, format!("{series}{{{of_limit},mode=\"enforced\",rule=\"{rule}\"}}"), 1);
        }
        if !rule.is_empty() {
            let result = if part.is_over() { "over" } else { "within" };
            let of_rule = format!("limiter=\"{limiter}\",result=\"{result}\",rule=\"{rule}\"");
            count(seen, format!("rl_rule_evaluations_total{{{of_rule}}}"), 1);
        }
    }
}

/// Returns the decisions that the limiters have counted.
fn stats(limiters: &Limiters) -> Seen {
    let mut counted = Seen::new();
    for limiter in limiters.all() {
        let stats = limiter.stats();
        for one in stats.decisions.iter().filter(|one| one.count > 0) {
            count(&mut counted, decisions(&stats.name, one.origin, one.is_allowed), one.count);
        }
    }
    counted
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, closed, calls] = &arguments[..] else {
        return Err("usage: counting-worker URL CLOSED CALLS".into());
    };
    let limiters = Arc::new(Limiters::new(url, closed).await?);
    let metrics = limiters.all().into_iter().fold(Metrics::new(), Metrics::limiter);
    let app = Router::new().route("/metrics", rl_metrics::axum::handler(&metrics));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(async move { axum::serve(listener, app).await });

    let calls: u64 = calls.parse()?;
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let limiters = Arc::clone(&limiters);
            tokio::spawn(async move {
                let mut seen = Seen::new();
                for number in (task..calls).step_by(TASKS as usize) {
                    limiters.call(number, &mut seen).await?;
                }
                Ok::<_, Box<dyn Error + Send + Sync>>(seen)
            })
        })
        .collect();
    let mut seen = Seen::new();
    for task in tasks {
        let of_task = task.await?.map_err(|error| error.to_string())?;
        of_task.into_iter().for_each(|(series, number)| count(&mut seen, series, number));
    }
    println!("{}", json!({ "address": address, "seen": seen, "stats": stats(&limiters) }));
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    Ok(())
}
