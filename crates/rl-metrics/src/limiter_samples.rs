//! The numbers of limiters and their stores.

use std::collections::BTreeSet;

use rl_core::stats::{LimiterStats, MemoryStats, RedisStats, StoreStats};

use crate::catalogue as series;
use crate::sample::Sample;

/// The stores that have been added, each with the value of the label `store`. A store that several
/// limiters share is added once.
#[derive(Debug, Default)]
pub(crate) struct LimiterSamples {
    stores: Vec<u64>,
    names: BTreeSet<String>,
    /// The paths of the rule files that have been added.
    files: BTreeSet<String>,
}

impl LimiterSamples {
    /// Adds the numbers of a limiter called `name`.
    pub(crate) fn add(&mut self, name: &str, stats: &LimiterStats, samples: &mut Vec<Sample>) {
        let store = &*stats.store_name;
        for count in &stats.decisions {
            let outcome = if count.is_allowed { "allowed" } else { "denied" };
            let labels = [name, count.origin, outcome];
            samples.push(Sample::new(series::DECISIONS, labels, count.count));
        }
        let (units, uncounted) = (stats.units, stats.uncounted);
        samples.extend([
            Sample::new(series::DEGRADED, [name], stats.degraded),
            Sample::new(series::IN_FLIGHT, [name], stats.in_flight),
            Sample::new(series::WAITING, [name], stats.waiting),
            Sample::new(series::PERMITS_HELD, [name], stats.permits_held),
            Sample::new(series::STORE_UP, [name, store], stats.is_breaker_closed),
            Sample::new(series::UNITS, ["granted", name], units.granted),
            Sample::new(series::UNITS, ["charged_after", name], units.charged_after),
            Sample::new(series::UNITS, ["refunded", name], units.refunded),
            Sample::new(series::UNCOUNTED, [name, "exempt"], uncounted.exempt),
            Sample::new(series::UNCOUNTED, [name, "missing_key"], uncounted.missing_key),
            Sample::new(series::UNCOUNTED, [name, "ambiguous_key"], uncounted.ambiguous_key),
            Sample::new(series::UNCOUNTED, [name, "too_many_rules"], uncounted.too_many_rules),
            Sample::new(series::UNCOUNTED, [name, "unknown_address"], uncounted.unknown_address),
            Sample::new(series::DECISION_SECONDS, [name], stats.decision_seconds.clone()),
            Sample::new(series::STORE_SECONDS, [name, store], stats.store_seconds.clone()),
            Sample::new(series::WAIT_SECONDS, [name], stats.wait_seconds.clone()),
            Sample::new(series::PERMIT_SECONDS, [name], stats.permit_seconds.clone()),
        ]);
        for failure in &stats.store_failures {
            let labels = [failure.kind.as_str(), name, store];
            samples.push(Sample::new(series::STORE_FAILURES, labels, failure.count));
        }
        for failure in &stats.source_failures {
            let labels = [failure.kind.as_str(), name];
            samples.push(Sample::new(series::SOURCE_FAILURES, labels, failure.count));
        }
        add_rules_and_limits(name, stats, samples);
        // Limiters that follow one file report the same readings.
        if let Some(file) = &stats.rules_file
            && self.files.insert(file.path.clone())
        {
            let path = &*file.path;
            samples.extend([
                Sample::new(series::CONFIG_RELOADS, [path, "applied"], file.applied),
                Sample::new(series::CONFIG_RELOADS, [path, "refused"], file.refused),
                Sample::new(series::CONFIG_REFUSED, [path], file.is_refused),
            ]);
        }
        match stats.store {
            StoreStats::Memory(memory) => self.add_memory(memory, samples),
            StoreStats::Redis(redis) => self.add_redis(store, redis, samples),
            _ => {}
        }
    }

    /// Returns whether the store has not been added before.
    fn is_new(&mut self, id: u64) -> bool {
        let is_new = !self.stores.contains(&id);
        if is_new {
            self.stores.push(id);
        }
        is_new
    }

    /// Returns a value of the label `store` that no other store has: `kind`, with a number appended
    /// if another store has it already.
    fn name_of(&mut self, kind: &str) -> String {
        let mut name = kind.to_owned();
        let mut number = 1;
        while !self.names.insert(name.clone()) {
            number += 1;
            name = format!("{kind}-{number}");
        }
        name
    }

    fn add_memory(&mut self, memory: MemoryStats, samples: &mut Vec<Sample>) {
        if self.is_new(memory.id) {
            let store = &*self.name_of("memory");
            samples.extend([
                Sample::new(series::MEMORY_SUBJECTS, [store], memory.subjects),
                Sample::new(series::MEMORY_CAPACITY, [store], memory.capacity),
                Sample::new(series::MEMORY_EVICTED, [store], memory.evicted),
            ]);
        }
    }

    fn add_redis(&mut self, label: &str, redis: RedisStats, samples: &mut Vec<Sample>) {
        if self.is_new(redis.id) {
            let store = &*self.name_of(label);
            let ok = |all: u64, failed: u64| all.saturating_sub(failed);
            samples.extend([
                Sample::new(
                    series::REDIS_CALLS,
                    ["ok", store],
                    ok(redis.calls, redis.failed_calls),
                ),
                Sample::new(series::REDIS_CALLS, ["failed", store], redis.failed_calls),
                Sample::new(series::REDIS_CALL_SUBJECTS, [store], redis.call_subjects),
                Sample::new(series::REDIS_CONNECTS, ["ok", store], redis.connects),
                Sample::new(series::REDIS_CONNECTS, ["failed", store], redis.failed_connects),
                Sample::new(series::REDIS_HEALED, [store], redis.healed),
                Sample::new(series::REDIS_LEASED, [store], redis.leased_units),
                Sample::new(series::REDIS_REDIRECTS, [store], redis.redirects),
            ]);
        }
    }
}

fn add_rules_and_limits(name: &str, stats: &LimiterStats, samples: &mut Vec<Sample>) {
    for rule in &stats.rules {
        let results =
            [("within", rule.within), ("over", rule.over), ("shadow_over", rule.shadow_over)];
        for (result, count) in results {
            let labels = [name, result, &*rule.rule];
            samples.push(Sample::new(series::RULE_EVALUATIONS, labels, count));
        }
    }
    for one in &stats.limits {
        let (limit, rule) = (&*one.name, &*one.rule);
        for (mode, count) in [("enforced", one.over), ("shadow", one.shadow_over)] {
            let labels = [limit, name, mode, rule];
            samples.push(Sample::new(series::LIMIT_DENIALS, labels, count));
        }
        for (tier, setting) in &one.by_tier {
            let labels = [limit, name, rule, tier];
            let seconds = setting.period().as_micros() as f64 / 1e6;
            samples.push(Sample::new(series::LIMIT_MAX, labels, setting.max()));
            samples.push(Sample::new(series::LIMIT_PERIOD, labels, seconds));
        }
        let labels = [limit, name, rule];
        samples.push(Sample::new(series::LIMIT_UTILIZATION, labels, one.utilization.clone()));
    }
}
