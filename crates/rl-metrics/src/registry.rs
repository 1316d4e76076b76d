//! The limiters and sources whose counts are exported.

use std::sync::Arc;

use rl_core::RateLimiter;
use rl_core::stats::OTHER_NAME;
#[cfg(feature = "records")]
use rl_records::RecordSource;

use crate::catalogue;
use crate::consumers::ConsumerCounts;
use crate::limiter_samples::LimiterSamples;
use crate::overflow::{MAX_LIMITERS, combine};
use crate::sample::Sample;
use crate::text;

/// The limiters on a page of metrics, with their rule files, lists of consumers, and sources of
/// records.
///
/// Each limiter has a name, the value of the label `limiter`. No label has a value from a request,
/// so clients cannot add series. The first 100 limiters have series of their own. Further ones are
/// added up under the name `(other)`, with their stores, rule files, rules and limits.
///
/// # Examples
///
/// ```
/// use rl_core::{Limit, RateLimiter, Subject};
/// use rl_metrics::Metrics;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::builder().limit(Limit::per_minute(100)).build()?;
/// let metrics = Metrics::new().limiter(&limiter);
/// limiter.check(&Subject::consumer("abc123"), 1).await;
/// let line = "rl_decisions_total{limiter=\"default\",origin=\"store\",outcome=\"allowed\"} 1";
/// assert!(metrics.render().contains(line));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Metrics {
    limiters: Vec<(String, RateLimiter)>,
    consumers: Vec<Arc<ConsumerCounts>>,
    #[cfg(feature = "records")]
    sources: Vec<(String, RecordSource)>,
}

impl Metrics {
    /// Creates a registry without limiters. It exports only the version of this crate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a limiter under the name of its namespace, with the readings of its rule file.
    pub fn limiter(self, limiter: &RateLimiter) -> Self {
        let name = limiter.namespace().to_string();
        self.named_limiter(&name, limiter)
    }

    /// Adds a limiter under a name of its own. If the name is taken, a number is appended, such as
    /// `-2`.
    pub fn named_limiter(mut self, name: &str, limiter: &RateLimiter) -> Self {
        // Limiters beyond the cap have the common name.
        let taken = self.limiters.iter().map(|(name, _)| name.as_str()).chain([OTHER_NAME]);
        let name = free_name(name, taken);
        self.limiters.push((name, limiter.clone()));
        self
    }

    /// Adds the counts of a list of consumers. Consumers of several lists are added up if they have
    /// the same name, and a list that was added before is not added again.
    pub fn consumers(mut self, consumers: &Arc<ConsumerCounts>) -> Self {
        if !self.consumers.iter().any(|other| Arc::ptr_eq(other, consumers)) {
            self.consumers.push(Arc::clone(consumers));
        }
        self
    }

    /// Adds a source of records under a name.
    #[cfg(feature = "records")]
    #[cfg_attr(docsrs, doc(cfg(feature = "records")))]
    pub fn records(mut self, name: &str, source: &RecordSource) -> Self {
        let name = free_name(name, self.sources.iter().map(|(name, _)| name.as_str()));
        self.sources.push((name, source.clone()));
        self
    }

    /// Returns all numbers, sorted by the names of their series.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        let version = env!("CARGO_PKG_VERSION");
        let mut samples = vec![Sample::new(catalogue::BUILD_INFO, [version], 1)];
        let mut of_limiters = LimiterSamples::default();
        let (named, others) = self.limiters.split_at(self.limiters.len().min(MAX_LIMITERS));
        for (name, limiter) in named {
            of_limiters.add(name, &limiter.stats(), &mut samples);
        }
        let mut of_others = Vec::new();
        for (name, limiter) in others {
            of_limiters.add(name, &limiter.stats(), &mut of_others);
        }
        samples.extend(combine(of_others));
        samples.extend(ConsumerCounts::samples(&self.consumers));
        #[cfg(feature = "records")]
        for (name, source) in &self.sources {
            let stats = source.stats();
            let lookups = catalogue::RECORDS_LOOKUPS;
            samples.push(Sample::new(catalogue::RECORDS_CACHED, [name], stats.consumers));
            let lag = stats.lag.map(|lag| lag.as_secs_f64());
            samples.extend(lag.map(|lag| Sample::new(catalogue::RECORDS_LAG, [name], lag)));
            samples.push(Sample::new(lookups, ["cached", name], stats.cached));
            samples.push(Sample::new(lookups, ["failed", name], stats.failed));
            samples.push(Sample::new(lookups, ["waited", name], stats.waited));
        }
        samples.sort_by_key(|sample| sample.series.name);
        samples
    }

    /// Returns all numbers in the text format of Prometheus. Serve it as
    /// [`CONTENT_TYPE`](crate::CONTENT_TYPE).
    #[must_use]
    pub fn render(&self) -> String {
        text::render(&self.samples())
    }
}

/// Returns `name`, with a number appended if it is taken.
fn free_name<'a>(name: &str, taken: impl Iterator<Item = &'a str> + Clone) -> String {
    let candidates = (1_u64..).map(|number| match number {
        1 => name.to_owned(),
        number => format!("{name}-{number}"),
    });
    let is_free = |candidate: &String| taken.clone().all(|other| other != candidate);
    candidates.into_iter().find(is_free).unwrap_or_default()
}
