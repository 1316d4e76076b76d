//! All series, with their names, labels and meanings.

use std::fmt::Write;

/// A series: a name, and the meaning of its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Series {
    /// The name in the text format of Prometheus. Names of counters end with `_total`.
    pub name: &'static str,
    /// The kind of number.
    pub kind: SeriesKind,
    /// The names of the labels.
    pub labels: &'static [&'static str],
    /// The meaning, in one sentence.
    pub help: &'static str,
}

/// The kind of number of a [`Series`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SeriesKind {
    /// A number that only grows.
    Counter,
    /// A number that grows and shrinks.
    Gauge,
    /// Numbers that are counted by their size.
    Histogram,
}

impl SeriesKind {
    /// Returns the name of the kind in the text format of Prometheus.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

macro_rules! catalogue {
    ($($id:ident = $name:literal $kind:ident [$($label:literal),*] $help:literal;)*) => {
        $(pub(crate) const $id: Series = Series {
            name: $name,
            kind: SeriesKind::$kind,
            labels: &[$($label),*],
            help: $help,
        };)*

        /// All series in alphabetical order. `METRICS.md` lists the same series.
        pub const CATALOGUE: &[Series] = &[$($id),*];
    };
}

catalogue! {
    BUILD_INFO = "rl_build_info" Gauge ["version"]
        "1, with the version of rl-metrics.";
    CONFIG_REFUSED = "rl_config_refused" Gauge ["file"]
        "1 while the rule file of a limiter is not valid, so that the last valid rules apply.";
    CONFIG_RELOADS = "rl_config_reloads_total" Counter ["file", "result"]
        "Readings of the rule file of a limiter, by result: applied or refused.";
    CONSUMER_DECISIONS = "rl_consumer_decisions_total" Counter ["consumer", "outcome"]
        "Decisions about a consumer of the list that the service follows.";
    DECISION_SECONDS = "rl_decision_seconds" Histogram ["limiter"]
        "Time of decisions. It is sampled.";
    DECISIONS = "rl_decisions_total" Counter ["limiter", "origin", "outcome"]
        "Decisions by outcome (allowed or denied) and by origin.";
    DEGRADED = "rl_degraded_total" Counter ["limiter"]
        "Denied requests that were forwarded to get a reduced response.";
    IN_FLIGHT = "rl_in_flight" Gauge ["limiter"]
        "Decisions that wait for the store.";
    LIMIT_DENIALS = "rl_limit_denials_total" Counter ["limit", "limiter", "mode", "rule"]
        "Requests that a limit denied (mode enforced), or would have denied (mode shadow).";
    LIMIT_MAX = "rl_limit_max" Gauge ["limit", "limiter", "rule", "tier"]
        "Units that the limit allows in each period. The tier is empty for clients without a tier, and if all tiers of the rule have the same limit.";
    LIMIT_PERIOD = "rl_limit_period_seconds" Gauge ["limit", "limiter", "rule", "tier"]
        "Period of the limit, with the tier of `rl_limit_max`.";
    LIMIT_UTILIZATION = "rl_limit_utilization_ratio" Histogram ["limit", "limiter", "rule"]
        "Used fraction of the limit after a decision. It is sampled.";
    MEMORY_CAPACITY = "rl_memory_capacity_subjects" Gauge ["store"]
        "Largest number of subjects of a store in memory.";
    MEMORY_EVICTED = "rl_memory_evicted_subjects_total" Counter ["store"]
        "Subjects that a store in memory evicted for others because it was full.";
    MEMORY_SUBJECTS = "rl_memory_subjects" Gauge ["store"]
        "Subjects that a store in memory holds.";
    PERMIT_SECONDS = "rl_permit_seconds" Histogram ["limiter"]
        "Time for which permits were held. It is sampled.";
    PERMITS_HELD = "rl_permits_held" Gauge ["limiter"]
        "Permits that are not settled.";
    RECORDS_CACHED = "rl_records_cached" Gauge ["source"]
        "Consumers whose limits are cached.";
    RECORDS_LAG = "rl_records_lag_seconds" Gauge ["source"]
        "Time since the change log of the database was last read.";
    RECORDS_LOOKUPS = "rl_records_lookups_total" Counter ["result", "source"]
        "Look-ups of limits by result: cached, waited for the database, or failed.";
    REDIS_CALL_SUBJECTS = "rl_redis_call_subjects_total" Counter ["store"]
        "Subjects in the script calls that decide.";
    REDIS_CALLS = "rl_redis_calls_total" Counter ["result", "store"]
        "Script calls that decide, by result: ok or failed.";
    REDIS_CONNECTS = "rl_redis_connects_total" Counter ["result", "store"]
        "Attempts to open a connection, by result: ok or failed.";
    REDIS_HEALED = "rl_redis_healed_total" Counter ["store"]
        "Counters that were found without expiry, and given one.";
    REDIS_LEASED = "rl_redis_leased_units_total" Counter ["store"]
        "Units that were charged ahead.";
    REDIS_REDIRECTS = "rl_redis_redirects_total" Counter ["store"]
        "Replies of a cluster that sent a command to another server.";
    RULE_EVALUATIONS = "rl_rule_evaluations_total" Counter ["limiter", "result", "rule"]
        "Requests by rule and by result: within, over or shadow_over.";
    SOURCE_FAILURES = "rl_source_failures_total" Counter ["kind", "limiter"]
        "Failed look-ups of policies by kind.";
    STORE_FAILURES = "rl_store_failures_total" Counter ["kind", "limiter", "store"]
        "Failures of the store and of the fallback by kind.";
    STORE_SECONDS = "rl_store_seconds" Histogram ["limiter", "store"]
        "Time of calls to the store that had to be waited for, also if they failed. It is sampled.";
    STORE_UP = "rl_store_up" Gauge ["limiter", "store"]
        "1 while the circuit breaker is closed, so that the store is called.";
    UNCOUNTED = "rl_uncounted_requests_total" Counter ["limiter", "reason"]
        "Requests that an adapter did not count: exempt, missing_key, ambiguous_key, too_many_rules or unknown_address.";
    UNITS = "rl_units_total" Counter ["kind", "limiter"]
        "Units by kind: granted, charged_after or refunded.";
    WAIT_SECONDS = "rl_wait_seconds" Histogram ["limiter"]
        "Time for which requests waited in a queue.";
    WAITING = "rl_waiting_requests" Gauge ["limiter"]
        "Requests that wait in a queue.";
}

/// Returns the content of `METRICS.md`.
#[must_use]
pub fn catalogue_as_markdown() -> String {
    let mut text = "# Series\n\n\
        The catalogue in `src/catalogue.rs` is the source of this file. `UPDATE_METRICS=1` with the test\n\
        `the_document_lists_the_catalogue` writes it again.\n\n\
        | name | kind | labels | meaning |\n|---|---|---|---|\n"
        .to_owned();
    for Series { name, kind, labels, help } in CATALOGUE {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let (kind, labels) = (kind.as_str(), labels.join(", "));
        let _ = writeln!(text, "| `{name}` | {kind} | {labels} | {help} |");
    }
    text
}
