//! The algorithms that are measured. Every table by algorithm has a row for each entry of this
//! list.

use std::error::Error;

use rl_core::{Limit, ParseLimitError, Period, Policy};

/// An algorithm, and a limit under it. The limit is so large that no measurement of speed uses it
/// up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Algorithm {
    pub(crate) name: &'static str,
    pub(crate) limit: &'static str,
    /// Whether the row `SIX_KINDS` contains this algorithm.
    mixed: bool,
    /// Whether each request holds a unit of the limit until the request ends. Such a limit has no
    /// window, and so no window edge.
    pub(crate) is_held: bool,
}

const fn alone(name: &'static str, limit: &'static str) -> Algorithm {
    Algorithm { name, limit, mixed: false, is_held: false }
}

const fn mixed(name: &'static str, limit: &'static str) -> Algorithm {
    Algorithm { name, limit, mixed: true, is_held: false }
}

const fn held(name: &'static str, limit: &'static str) -> Algorithm {
    Algorithm { name, limit, mixed: false, is_held: true }
}

/// All algorithms.
pub(crate) const ALGORITHMS: &[Algorithm] = &[
    mixed("fixed window", "10000/hour"),
    mixed("fixed window on the clock", "10000/hour:clock"),
    alone("sliding log", "10000/hour:sliding-log"),
    mixed("sliding window, 60 buckets", "10000/hour:sliding-window:precision=minute"),
    alone("sliding window, 10 buckets", "10000/hour:sliding-window:precision=6minutes"),
    mixed("sliding window counter", "10000/hour:sliding-window-counter"),
    alone("token bucket", "10000/hour:token-bucket"),
    mixed("token bucket, interval refill", "10000/hour:token-bucket:refill=interval"),
    mixed("GCRA", "10000/hour:gcra"),
    held("concurrency", "20:concurrency"),
];

/// The pictures of decisions. All of them show the same requests. Each entry has the name of a
/// picture, which is also a heading in `ALGORITHMS.md`, and the limit that decides.
pub(crate) const PICTURES: &[(&str, &str)] = &[
    ("fixed-window", "10/minute"),
    ("sliding-log", "10/minute:sliding-log"),
    ("sliding-window", "10/minute:sliding-window:precision=10s"),
    ("sliding-window-counter", "10/minute:sliding-window-counter"),
    ("token-bucket", "10/minute:token-bucket"),
    ("gcra", "10/minute:gcra:burst=3"),
];

/// The name and the limit of the picture in which requests take some time.
pub(crate) const CONCURRENCY: (&str, &str) = ("concurrency", "4:concurrency");

/// Replaces the number at the beginning of a limit by `max`. A burst or a capacity in the text
/// stays; if there is none, it equals `max`.
pub(crate) fn with_max(limit: &str, max: u64) -> String {
    let rest = limit.trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{max}{rest}")
}

/// The rows with which the other rows are compared: rows of one limit with `ONE_WINDOW`, rows of
/// several limits with `SIX_WINDOWS`.
pub(crate) const ONE_WINDOW: &str = "fixed window";
pub(crate) const SIX_WINDOWS: &str = "six fixed windows";
/// The row of six limits, each under a different algorithm.
pub(crate) const SIX_KINDS: &str = "six of different kinds";

/// The rows of more than six fixed windows.
const MANY_WINDOWS: [(&str, usize); 4] = [
    ("7 fixed windows", 7),
    ("8 fixed windows", 8),
    ("12 fixed windows", 12),
    ("16 fixed windows", 16),
];

/// A row of a table: limits that one decision checks together.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) limits: Vec<String>,
    /// Whether a request releases its permit when it ends.
    pub(crate) is_held: bool,
}

impl Row {
    /// Returns a row for each algorithm, one for six of them together, and one for six fixed
    /// windows.
    pub(crate) fn all() -> Vec<Self> {
        let limit = |algorithm: &Algorithm| algorithm.limit.to_owned();
        let one = |algorithm: &Algorithm| {
            let Algorithm { name, is_held, .. } = *algorithm;
            Self { name, limits: vec![limit(algorithm)], is_held }
        };
        let six = ALGORITHMS.iter().filter(|algorithm| algorithm.mixed).map(limit).collect();
        let windows = Period::NAMED.map(|period| format!("10000/{period}")).to_vec();
        let mut rows: Vec<Self> = ALGORITHMS.iter().map(one).collect();
        for (name, limits) in [(SIX_KINDS, six), (SIX_WINDOWS, windows)] {
            rows.push(Self { name, limits, is_held: false });
        }
        rows
    }

    /// Returns the rows of more than six fixed windows.
    pub(crate) fn many_windows() -> impl Iterator<Item = Self> {
        MANY_WINDOWS.into_iter().map(|(name, count)| {
            let limits = (1..=count).map(|hours| format!("10000/{hours}h")).collect();
            Self { name, limits, is_held: false }
        })
    }

    /// Returns the name of the row with which this one is compared.
    pub(crate) const fn reference(&self) -> &'static str {
        if self.limits.len() == 1 { ONE_WINDOW } else { SIX_WINDOWS }
    }

    /// Returns a policy of the row's limits, which are not used up while speed is measured.
    pub(crate) fn roomy(&self) -> Result<Policy, Box<dyn Error>> {
        self.policy(str::parse)
    }

    /// Returns a policy of the row's limits, with `max` units for each. The leases of permits last
    /// an hour, so that no permit expires while denials are measured.
    pub(crate) fn of(&self, max: u64) -> Result<Policy, Box<dyn Error>> {
        self.policy(|limit| {
            let limit: Limit = with_max(limit, max).parse()?;
            Ok(limit.with_lease(Period::HOUR).unwrap_or(limit))
        })
    }

    fn policy(
        &self,
        limit: impl Fn(&str) -> Result<Limit, ParseLimitError>,
    ) -> Result<Policy, Box<dyn Error>> {
        let mut policy = Policy::builder();
        for (place, text) in self.limits.iter().enumerate() {
            policy = policy.named(&place.to_string(), limit(text)?);
        }
        Ok(policy.build()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_a_policy_and_two_are_of_six_limits() {
        let mut sizes = Vec::new();
        for row in Row::all() {
            let (roomy, tight) = (row.roomy().unwrap(), row.of(1).unwrap());
            assert!(roomy.limits().iter().all(|limit| limit.limit().capacity() > 17), "{roomy}");
            assert!(tight.limits().iter().all(|limit| limit.limit().capacity() == 1), "{tight}");
            sizes.push(roomy.limits().len());
        }
        assert_eq!(sizes.iter().filter(|size| **size == 6).count(), 2, "{sizes:?}");
        assert_eq!(sizes.len(), ALGORITHMS.len() + 2);
    }

    #[test]
    fn every_row_is_compared_with_one_that_is_measured() {
        let rows: Vec<Row> = Row::all().into_iter().chain(Row::many_windows()).collect();
        for row in &rows {
            assert!(rows.iter().any(|other| other.name == row.reference()), "{}", row.name);
        }
        for (row, (_, count)) in Row::many_windows().zip(MANY_WINDOWS) {
            assert_eq!((row.of(50).unwrap().limits().len(), row.reference()), (count, SIX_WINDOWS));
        }
    }

    #[test]
    fn another_max_leaves_the_rest_of_the_text() {
        assert_eq!(with_max("10000/hour:clock", 1), "1/hour:clock");
        assert_eq!(with_max("20:concurrency", 1), "1:concurrency");
    }
}
