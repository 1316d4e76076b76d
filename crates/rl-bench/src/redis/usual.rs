//! The scripts that are usually written for one algorithm alone, and the usual script of several
//! fixed windows.

use rl_core::Limit;

use crate::algorithms::{CONCURRENCY, ONE_WINDOW};

const BUCKET: &str = include_str!("lua/bucket.lua");
const BUCKETS: &str = include_str!("lua/buckets.lua");
const WINDOW: &str = include_str!("lua/window.lua");

/// A script with its keys and arguments.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
    /// The suffixes of the names of its keys, one for each key.
    pub(super) keys: Vec<String>,
    pub(super) arguments: Vec<u64>,
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

impl Script {
    fn new(name: &'static str, text: &'static str, arguments: Vec<u64>) -> Self {
        Self { name, text, keys: vec![String::new()], arguments, last: LastArgument::None }
    }

    /// Returns an empty script, the lower bound of every script.
    pub(super) fn nothing() -> Self {
        Self::new("a script that does nothing", "return 1", Vec::new())
    }

    /// Returns the usual script of several fixed windows: a key for each of these periods in ms,
    /// and a limit of `max` units in each.
    pub(super) fn six_keys(max: u64, periods: &[u64]) -> Self {
        let text = concat!(include_str!("lua/six_keys.lua"), "return reply");
        let arguments = [&vec![max; periods.len()], periods].concat();
        let keys = (0..periods.len()).map(|n| format!(":limit-{n}")).collect();
        Self { keys, ..Self::new("the usual script, six keys", text, arguments) }
    }

    /// Returns the same script, but it also returns the server's time in µs, which a client needs
    /// to know when the windows end.
    pub(super) fn six_keys_timed(max: u64, periods: &[u64]) -> Self {
        let text = concat!(
            include_str!("lua/six_keys.lua"),
            "local time = redis.call('TIME')\n",
            "reply[#reply + 1] = time[1] * 1000000 + time[2]\nreturn reply"
        );
        Self { name: "six-key script with the time", text, ..Self::six_keys(max, periods) }
    }

    /// Returns the script for the algorithm of the row with this name.
    pub(super) fn of_algorithm(row: &str, limit: Limit) -> Option<Self> {
        let (max, period) = (limit.max(), limit.period().as_millis());
        let both = vec![max, period];
        let mut script = match row {
            ONE_WINDOW => Self::new("counter", WINDOW, both),
            "fixed window on the clock" => Self::new("counter by hour", WINDOW, both),
            "sliding log" => Self::new("sorted set", include_str!("lua/log.lua"), both),
            "sliding window, 60 buckets" => {
                Self::new("hash of buckets", BUCKETS, vec![max, period, period / 60])
            }
            "sliding window, 10 buckets" => {
                Self::new("hash of buckets", BUCKETS, vec![max, period, period / 10])
            }
            "sliding window counter" => {
                Self::new("two counters", include_str!("lua/window_counter.lua"), both)
            }
            "token bucket" => {
                Self::new("tokens in a hash", BUCKET, vec![max, 1, (period / max).max(1)])
            }
            "token bucket, interval refill" => {
                Self::new("tokens in a hash", BUCKET, vec![max, max, period])
            }
            "GCRA" => {
                let pause = 1_000 * period / max;
                Self::new("time as text", include_str!("lua/gcra.lua"), vec![pause, pause * max])
            }
            CONCURRENCY => Self::new("sorted set", include_str!("lua/semaphore.lua"), both),
            _ => return None,
        };
        // Some keys have the number of a window in their names. It is fixed here, because it does
        // not change how long the server needs.
        match row {
            "fixed window on the clock" => script.keys = vec![":489890".to_owned()],
            "sliding window counter" => {
                script.keys = [":489890", ":489889"].map(str::to_owned).to_vec();
                script.last = LastArgument::Time;
            }
            CONCURRENCY => script.last = LastArgument::Holder,
            _ => {}
        }
        Some(script)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::ALGORITHMS;

    #[test]
    fn every_algorithm_has_a_script_of_its_own() {
        for (name, limit) in ALGORITHMS {
            assert!(Script::of_algorithm(name, limit.parse().unwrap()).is_some(), "{name}");
        }
    }
}
