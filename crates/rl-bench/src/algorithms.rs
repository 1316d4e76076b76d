//! What is measured of each algorithm: one list, from which every table here has its rows.

use std::error::Error;

use rl_core::{Limit, Period, Policy};

/// An algorithm under a limit that the measurements do not reach in 17 requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Algorithm {
    pub(crate) name: &'static str,
    pub(crate) limit: &'static str,
    /// Whether it is one of the six that are decided together.
    mixed: bool,
}

const fn alone(name: &'static str, limit: &'static str) -> Algorithm {
    Algorithm { name, limit, mixed: false }
}

const fn mixed(name: &'static str, limit: &'static str) -> Algorithm {
    Algorithm { name, limit, mixed: true }
}

/// All of them. A line more here is a row more in every table.
pub(crate) const ALGORITHMS: &[Algorithm] = &[
    mixed("fixed window", "10000/hour"),
    mixed("fixed window on the clock", "10000/hour:clock"),
    mixed("sliding window, 60 buckets", "10000/hour:sliding-window:precision=minute"),
    alone("sliding window, 10 buckets", "10000/hour:sliding-window:precision=6minutes"),
    mixed("sliding window counter", "10000/hour:sliding-window-counter"),
    alone("token bucket", "10000/hour:token-bucket"),
    mixed("token bucket, interval refill", "10000/hour:token-bucket:refill=interval"),
    mixed("GCRA", "10000/hour:gcra"),
];

/// Which limits are drawn, under the name of the file and of the heading in `ALGORITHMS.md`.
pub(crate) const PICTURES: &[(&str, &str)] = &[
    ("fixed-window", "10/minute"),
    ("sliding-window", "10/minute:sliding-window:precision=10s"),
    ("sliding-window-counter", "10/minute:sliding-window-counter"),
    ("token-bucket", "10/minute:token-bucket"),
    ("gcra", "10/minute:gcra:burst=3"),
];

/// The same limit with another `max`, and a burst or capacity that follows it.
pub(crate) fn with_max(limit: &str, max: u64) -> String {
    let rest = limit.trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{max}{rest}")
}

/// Limits that are decided together.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    limits: Vec<String>,
}

impl Row {
    /// Every algorithm alone, six of them together, and six fixed windows beside them.
    pub(crate) fn all() -> Vec<Self> {
        let limit = |algorithm: &Algorithm| algorithm.limit.to_owned();
        let one =
            |algorithm: &Algorithm| Self { name: algorithm.name, limits: vec![limit(algorithm)] };
        let six = ALGORITHMS.iter().filter(|algorithm| algorithm.mixed).map(limit).collect();
        let windows = Period::NAMED.map(|period| format!("10000/{period}")).to_vec();
        let mut rows: Vec<Self> = ALGORITHMS.iter().map(one).collect();
        rows.push(Self { name: "six of different kinds", limits: six });
        rows.push(Self { name: "six fixed windows", limits: windows });
        rows
    }

    /// Out of reach.
    pub(crate) fn roomy(&self) -> Result<Policy, Box<dyn Error>> {
        self.policy(str::to_owned)
    }

    /// Used up by the first request.
    pub(crate) fn tight(&self) -> Result<Policy, Box<dyn Error>> {
        self.policy(|limit| with_max(limit, 1))
    }

    fn policy(&self, text: impl Fn(&str) -> String) -> Result<Policy, Box<dyn Error>> {
        let mut policy = Policy::builder();
        for (place, limit) in self.limits.iter().enumerate() {
            policy = policy.named(&place.to_string(), text(limit).parse::<Limit>()?);
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
            let (roomy, tight) = (row.roomy().unwrap(), row.tight().unwrap());
            assert!(roomy.limits().iter().all(|limit| limit.limit().capacity() > 17), "{roomy}");
            assert!(tight.limits().iter().all(|limit| limit.limit().capacity() == 1), "{tight}");
            sizes.push(roomy.limits().len());
        }
        assert_eq!(sizes.iter().filter(|size| **size == 6).count(), 2, "{sizes:?}");
        assert_eq!(sizes.len(), ALGORITHMS.len() + 2);
    }

    #[test]
    fn another_max_leaves_the_rest_of_the_text() {
        assert_eq!(with_max("10000/hour:clock", 1), "1/hour:clock");
        assert_eq!(with_max("20:concurrency", 1), "1:concurrency");
    }
}
