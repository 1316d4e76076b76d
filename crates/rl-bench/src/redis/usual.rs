//! The scripts that are usually written for one algorithm alone, and the usual script of several
//! fixed windows.

use rl_core::Limit;

use crate::algorithms::{CONCURRENCY, ONE_WINDOW};

/// A script, and how it is called.
pub(super) struct Script {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
    /// The suffixes of the names of its keys.
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
    /// The id of the holder of a permit, which is released immediately.
    Holder,
}

impl Script {
    /// Returns an empty script, the lower bound of every script.
    pub(super) fn empty() -> Self {
        Self::new("a script that does nothing", "return 1", &[""], Vec::new())
    }

    fn new(name: &'static str, text: &'static str, keys: &[&str], arguments: Vec<u64>) -> Self {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        Self { name, text, keys, arguments, last: LastArgument::None }
    }

    /// Returns the usual script of fixed windows: a key for each of these periods in ms, and a
    /// limit of `max` units in each.
    pub(super) fn windows(max: u64, periods: &[u64]) -> Self {
        Self {
            keys: (0..periods.len()).map(|n| format!(":limit-{n}")).collect(),
            arguments: [&vec![max; periods.len()], periods].concat(),
            ..Self::new(
                "the usual script, six keys",
                concat!(include_str!("lua/six_keys.lua"), "return reply"),
                &[],
                Vec::new(),
            )
        }
    }

    /// Makes the script of fixed windows also return the server's time in µs, which a client needs
    /// to know when the windows end.
    pub(super) fn with_time(self) -> Self {
        let text = concat!(
            include_str!("lua/six_keys.lua"),
            "local time = redis.call('TIME')\n",
            "reply[#reply + 1] = time[1] * 1000000 + time[2]\nreturn reply"
        );
        Self { name: "six-key script with the time", text, ..self }
    }

    /// Returns the usual script for the row of an algorithm, with this limit. Some keys have the
    /// number of a window in their names. That number is fixed here, because it does not change how
    /// long the server needs.
    pub(super) fn of(row: &str, limit: Limit) -> Option<Self> {
        let (max, millis) = (limit.max(), limit.period().as_millis());
        let pause = 1_000 * millis / max;
        let window = include_str!("lua/window.lua");
        let (buckets, bucket) = (include_str!("lua/buckets.lua"), include_str!("lua/bucket.lua"));
        let counter = include_str!("lua/window_counter.lua");
        let (log, semaphore) = (include_str!("lua/log.lua"), include_str!("lua/semaphore.lua"));
        let script = |name, text, arguments| Self::new(name, text, &[""], arguments);
        Some(match row {
            ONE_WINDOW => script("counter", window, vec![max, millis]),
            "fixed window on the clock" => {
                Self::new("counter by hour", window, &[":489890"], vec![max, millis])
            }
            "sliding log" => script("sorted set", log, vec![max, millis]),
            "sliding window, 60 buckets" => {
                script("hash of buckets", buckets, vec![max, millis, millis / 60])
            }
            "sliding window, 10 buckets" => {
                script("hash of buckets", buckets, vec![max, millis, millis / 10])
            }
            "sliding window counter" => {
                let keys = [":489890", ":489889"];
                let script = Self::new("two counters", counter, &keys, vec![max, millis]);
                Self { last: LastArgument::Time, ..script }
            }
            "token bucket" => {
                script("tokens in a hash", bucket, vec![max, 1, (millis / max).max(1)])
            }
            "token bucket, interval refill" => {
                script("tokens in a hash", bucket, vec![max, max, millis])
            }
            "GCRA" => {
                script("time as text", include_str!("lua/gcra.lua"), vec![pause, pause * max])
            }
            CONCURRENCY => {
                let script = script("sorted set", semaphore, vec![max, millis]);
                Self { last: LastArgument::Holder, ..script }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::ALGORITHMS;

    #[test]
    fn every_algorithm_has_a_script_of_its_own() {
        for (name, limit) in ALGORITHMS {
            assert!(Script::of(name, limit.parse().unwrap()).is_some(), "{name}");
        }
    }
}
