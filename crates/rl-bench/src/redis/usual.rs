//! The scripts that are usually written for one algorithm alone, and the usual script of several
//! fixed windows.

use rl_core::Limit;

use crate::algorithms::ONE_WINDOW;

/// The usual script of several fixed windows: a name and its text.
pub(super) const SIX_KEYS: (&str, &str) =
    ("the usual script, six keys", concat!(include_str!("lua/six_keys.lua"), "return reply"));

/// The same, but it also returns the server's time in µs, which a client needs to know when the
/// windows end.
pub(super) const SIX_KEYS_TIMED: (&str, &str) = (
    "six-key script with the time",
    concat!(
        include_str!("lua/six_keys.lua"),
        "local time = redis.call('TIME')\nreply[#reply + 1] = time[1] * 1000000 + time[2]\nreturn reply"
    ),
);

/// A script for one algorithm.
#[derive(Debug)]
pub(super) struct Usual {
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

/// The scripts. Some keys have the number of a window in their names. That number is fixed here,
/// because it does not change how long the server needs.
static ALL: [Usual; 10] = [
    usual(ONE_WINDOW, "counter", include_str!("lua/window.lua"), max_and_period),
    Usual {
        keys: &[":489890"],
        ..usual(
            "fixed window on the clock",
            "counter by hour",
            include_str!("lua/window.lua"),
            max_and_period,
        )
    },
    usual("sliding log", "sorted set", include_str!("lua/log.lua"), max_and_period),
    usual(
        "sliding window, 60 buckets",
        "hash of buckets",
        include_str!("lua/buckets.lua"),
        |limit| vec![limit.max(), millis(limit), millis(limit) / 60],
    ),
    usual(
        "sliding window, 10 buckets",
        "hash of buckets",
        include_str!("lua/buckets.lua"),
        |limit| vec![limit.max(), millis(limit), millis(limit) / 10],
    ),
    Usual {
        keys: &[":489890", ":489889"],
        last: LastArgument::Time,
        ..usual(
            "sliding window counter",
            "two counters",
            include_str!("lua/window_counter.lua"),
            max_and_period,
        )
    },
    usual("token bucket", "tokens in a hash", include_str!("lua/bucket.lua"), |limit| {
        vec![limit.max(), 1, (millis(limit) / limit.max()).max(1)]
    }),
    usual(
        "token bucket, interval refill",
        "tokens in a hash",
        include_str!("lua/bucket.lua"),
        |limit| vec![limit.max(), limit.max(), millis(limit)],
    ),
    usual("GCRA", "time as text", include_str!("lua/gcra.lua"), |limit| {
        let pause = 1_000 * millis(limit) / limit.max();
        vec![pause, pause * limit.max()]
    }),
    Usual {
        last: LastArgument::Holder,
        ..usual("concurrency", "sorted set", include_str!("lua/semaphore.lua"), max_and_period)
    },
];

const fn usual(
    row: &'static str,
    name: &'static str,
    text: &'static str,
    arguments: fn(Limit) -> Vec<u64>,
) -> Usual {
    Usual { name, row, text, keys: &[""], arguments, last: LastArgument::None }
}

impl Usual {
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
        for (name, _) in ALGORITHMS {
            assert!(Usual::of(name).is_some(), "{name}");
        }
        assert_eq!(ALL.len(), ALGORITHMS.len());
    }
}
