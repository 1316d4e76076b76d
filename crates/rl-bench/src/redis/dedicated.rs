//! The scripts that are usually written for one algorithm alone.

use rl_core::Limit;

use crate::algorithms::ONE_WINDOW;

/// A script for one algorithm.
#[derive(Debug)]
pub(super) struct Dedicated {
    pub(super) name: &'static str,
    /// The name of the table row for the algorithm.
    row: &'static str,
    pub(super) text: &'static str,
    /// The suffixes of the names of its keys, one for each key.
    pub(super) keys: &'static [&'static str],
    /// Returns the arguments for a limit.
    pub(super) arguments: fn(Limit) -> Vec<u64>,
    pub(super) last: LastArgument,
}

/// The argument that differs between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastArgument {
    None,
    /// The time of the client, in ms.
    Time,
    /// The id of the holder of a permit.
    Holder,
}

const ONE_KEY: &[&str] = &[""];

/// The scripts. Some keys have the number of a window in their names. That number is fixed here,
/// because it does not change how long the server needs.
static ALL: [Dedicated; 10] = [
    Dedicated {
        name: "counter",
        row: ONE_WINDOW,
        text: include_str!("dedicated/window.lua"),
        keys: ONE_KEY,
        arguments: max_and_period,
        last: LastArgument::None,
    },
    Dedicated {
        name: "counter by hour",
        row: "fixed window on the clock",
        text: include_str!("dedicated/window.lua"),
        keys: &[":489890"],
        arguments: max_and_period,
        last: LastArgument::None,
    },
    Dedicated {
        name: "sorted set",
        row: "sliding log",
        text: include_str!("dedicated/log.lua"),
        keys: ONE_KEY,
        arguments: max_and_period,
        last: LastArgument::None,
    },
    Dedicated {
        name: "hash of buckets",
        row: "sliding window, 60 buckets",
        text: include_str!("dedicated/buckets.lua"),
        keys: ONE_KEY,
        arguments: |limit| vec![limit.max(), millis(limit), millis(limit) / 60],
        last: LastArgument::None,
    },
    Dedicated {
        name: "hash of buckets",
        row: "sliding window, 10 buckets",
        text: include_str!("dedicated/buckets.lua"),
        keys: ONE_KEY,
        arguments: |limit| vec![limit.max(), millis(limit), millis(limit) / 10],
        last: LastArgument::None,
    },
    Dedicated {
        name: "two counters",
        row: "sliding window counter",
        text: include_str!("dedicated/window_counter.lua"),
        keys: &[":489890", ":489889"],
        arguments: max_and_period,
        last: LastArgument::Time,
    },
    Dedicated {
        name: "tokens in a hash",
        row: "token bucket",
        text: include_str!("dedicated/bucket.lua"),
        keys: ONE_KEY,
        arguments: |limit| vec![limit.max(), 1, (millis(limit) / limit.max()).max(1)],
        last: LastArgument::None,
    },
    Dedicated {
        name: "tokens in a hash",
        row: "token bucket, interval refill",
        text: include_str!("dedicated/bucket.lua"),
        keys: ONE_KEY,
        arguments: |limit| vec![limit.max(), limit.max(), millis(limit)],
        last: LastArgument::None,
    },
    Dedicated {
        name: "time as text",
        row: "GCRA",
        text: include_str!("dedicated/gcra.lua"),
        keys: ONE_KEY,
        arguments: |limit| {
            let pause = 1_000 * millis(limit) / limit.max();
            vec![pause, pause * limit.max()]
        },
        last: LastArgument::None,
    },
    Dedicated {
        name: "sorted set",
        row: "concurrency",
        text: include_str!("dedicated/semaphore.lua"),
        keys: ONE_KEY,
        arguments: max_and_period,
        last: LastArgument::Holder,
    },
];

impl Dedicated {
    /// Returns the script for the row with this name.
    pub(super) fn of(row: &str) -> Option<&'static Self> {
        ALL.iter().find(|script| script.row == row)
    }
}

fn millis(limit: Limit) -> u64 {
    limit.period().as_millis()
}

fn max_and_period(limit: Limit) -> Vec<u64> {
    vec![limit.max(), millis(limit)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::ALGORITHMS;

    #[test]
    fn every_algorithm_has_a_script_of_its_own() {
        for algorithm in ALGORITHMS {
            assert!(Dedicated::of(algorithm.name).is_some(), "{}", algorithm.name);
        }
        assert_eq!(ALL.len(), ALGORITHMS.len());
    }
}
