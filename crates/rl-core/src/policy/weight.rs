use crate::model::{Algorithm, Limit};

/// The maximum weight of all limits of a policy. It admits two logs of 100 000 units, six logs of
/// 10 000 units, or two sliding windows of 200 buckets. A decision under such a policy takes a
/// Redis server less than half a millisecond in the median, even with sixteen windows of other
/// policies. `ALGORITHMS.md` has the measured times of the longest scripts.
pub(crate) const MOST_WEIGHT: u64 = 900;

/// The weight of a bucket of a sliding window, which is read, added up, moved and written.
pub(crate) const WEIGHT_OF_BUCKET: u64 = 2;

/// The number of units of a log or a concurrency limit that have a weight of 1, for the list of
/// pages. A decision also reads sums of pages: of those that expire together, and of those that a
/// large request has to wait for.
pub(crate) const UNITS_OF_WEIGHT: u64 = 500;

/// The weight of a log without its units. However long a log is, a decision reads the entries of at
/// most three blocks, and the items of two pages
/// (`store/redis/scripts/algorithms/sliding_log.lua`).
pub(crate) const WEIGHT_OF_LOG: u64 = 130;

/// Returns the weight of a limit: roughly the number of values that a decision reads for it in the
/// worst case.
pub(crate) fn weight(limit: Limit) -> u64 {
    match limit.algorithm() {
        Algorithm::SlidingWindow { precision } => {
            WEIGHT_OF_BUCKET * limit.period().as_millis().div_ceil(precision.as_millis())
        }
        Algorithm::SlidingLog | Algorithm::Concurrency => {
            WEIGHT_OF_LOG + limit.max() / UNITS_OF_WEIGHT
        }
        Algorithm::FixedWindow { .. }
        | Algorithm::SlidingWindowCounter
        | Algorithm::TokenBucket { .. }
        | Algorithm::Gcra { .. } => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{InvalidPolicy, Policy};

    fn policy(limits: &[&str]) -> Result<Policy, InvalidPolicy> {
        Policy::new(limits.iter().map(|text| text.parse().unwrap()))
    }

    #[test]
    fn a_policy_is_refused_when_a_decision_would_read_too_much() {
        let logs = ["100000/hour:sliding-log", "100000/day:sliding-log"];
        assert!(policy(&logs).is_ok());
        assert!(policy(&["10000:concurrency", logs[0]]).is_ok());
        assert_eq!(
            policy(&[logs[0], logs[1], "99999/week:sliding-log"]).unwrap_err(),
            InvalidPolicy::TooDetailed
        );
        let short: Vec<String> =
            (1..=7).map(|hours| format!("10000/{hours}h:sliding-log")).collect();
        let short: Vec<&str> = short.iter().map(String::as_str).collect();
        assert!(policy(&short[..6]).is_ok());
        assert_eq!(policy(&short).unwrap_err(), InvalidPolicy::TooDetailed);
        let windows: Vec<String> = (1..=3)
            .map(|hours| format!("9/{hours}h:sliding-window:precision={}s", hours * 18))
            .collect();
        let windows: Vec<&str> = windows.iter().map(String::as_str).collect();
        assert!(policy(&windows[..2]).is_ok());
        let error = policy(&windows).unwrap_err();
        assert!(error.to_string().contains("900"), "{error}");
    }
}
