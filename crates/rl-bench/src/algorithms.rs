//! The limits that are measured. Every table by algorithm has a row for each entry of this list.

use rl_core::{Limit, Period, Policy};

use crate::Result;

/// A limit that no measurement uses up.
pub(crate) const ENDLESS: u32 = 1_000_000_000;
/// The first row, with which rows of one limit are compared, and the row with which `SIX_KINDS` is.
pub(crate) const ONE_WINDOW: &str = "fixed window";
pub(crate) const SIX_WINDOWS: &str = "six fixed windows";
/// The row of six limits, each under a different algorithm.
pub(crate) const SIX_KINDS: &str = "six of different kinds";
pub(crate) const CONCURRENCY: &str = "concurrency";

/// All algorithms, each with a limit.
pub(crate) const ALGORITHMS: [(&str, &str); 10] = [
    (ONE_WINDOW, "10000/hour"),
    ("fixed window on the clock", "10000/hour:clock"),
    ("sliding log", "10000/hour:sliding-log"),
    ("sliding window, 60 buckets", "10000/hour:sliding-window:precision=minute"),
    ("sliding window, 10 buckets", "10000/hour:sliding-window:precision=6minutes"),
    ("sliding window counter", "10000/hour:sliding-window-counter"),
    ("token bucket", "10000/hour:token-bucket"),
    ("token bucket, interval refill", "10000/hour:token-bucket:refill=interval"),
    ("GCRA", "10000/hour:gcra"),
    (CONCURRENCY, "20:concurrency"),
];

/// The places of the algorithms that the row `SIX_KINDS` contains.
const MIXED: [usize; 6] = [0, 1, 3, 5, 7, 8];

/// Replaces the number at the beginning of a limit by `max`. A burst or a capacity in the text
/// stays; if there is none, it equals `max`.
pub(crate) fn with_max(limit: &str, max: u64) -> String {
    let rest = limit.trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{max}{rest}")
}

/// Returns a policy of these limits.
pub(crate) fn policy<S: AsRef<str>>(limits: impl IntoIterator<Item = S>) -> Result<Policy> {
    let limits = limits.into_iter().map(|text| text.as_ref().parse());
    Ok(Policy::new(limits.collect::<std::result::Result<Vec<_>, _>>()?)?)
}

/// Returns a policy of `max` units in each of six periods.
pub(crate) fn six(max: u32) -> Result<Policy> {
    policy(Period::NAMED.map(|period| format!("{max}/{period}")))
}

/// A row of a table: limits that one decision checks together.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) limits: Vec<String>,
}

impl Row {
    /// Returns a row for each algorithm, one for six of them together, and rows of several fixed
    /// windows.
    pub(crate) fn all() -> Vec<Self> {
        let one = ALGORITHMS.map(|(name, limit)| (name, vec![limit.to_owned()]));
        let windows = |count| (1..=count).map(|hours| format!("10000/{hours}h")).collect();
        let several = [
            (SIX_KINDS, MIXED.map(|place| ALGORITHMS[place].1.to_owned()).to_vec()),
            (SIX_WINDOWS, Period::NAMED.map(|period| format!("10000/{period}")).to_vec()),
            ("7 fixed windows", windows(7)),
            ("16 fixed windows", windows(16)),
        ];
        one.into_iter().chain(several).map(|(name, limits)| Self { name, limits }).collect()
    }

    /// Returns whether each request holds a unit of the limit until the request ends.
    pub(crate) fn is_held(&self) -> bool {
        self.name == CONCURRENCY
    }

    /// Returns a policy of the row's limits, with `max` units for each. The leases of permits last
    /// an hour, so that no permit expires while denials are measured.
    pub(crate) fn policy(&self, max: u64) -> Result<Policy> {
        let mut policy = Policy::builder();
        for (place, text) in self.limits.iter().enumerate() {
            let limit: Limit = with_max(text, max).parse()?;
            let limit = limit.with_lease(Period::HOUR).unwrap_or(limit);
            policy = policy.named(&place.to_string(), limit);
        }
        Ok(policy.build()?)
    }
}
