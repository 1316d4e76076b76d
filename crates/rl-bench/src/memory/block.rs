//! One block of decisions, on one thread or on several.

use std::error::Error;
use std::thread;

use super::limiters::{ENDLESS, Keys, Limiter, Ours};
use crate::measure::time_on_processor;

/// A number of keys that does not fit into the processor's caches.
pub(super) const MANY: usize = 1_000_000;
/// A number of keys that fits into the caches.
pub(super) const FEW: usize = 1_000;
/// The number of decisions in a block, for each thread, if the keys fit into the caches.
pub(super) const WARM_BLOCK: usize = 100_000;
/// The number of rounds, each of four blocks.
pub(super) const WARM_ROUNDS: usize = 31;

/// Returns the numbers of threads: 1, 2, 4 and so on, up to the number of cores, and at least 2.
pub(super) fn threads() -> impl Iterator<Item = usize> {
    let cores = thread::available_parallelism().map_or(1, |count| count.get());
    (0..).map(|power| 1 << power).take_while(move |count| *count <= cores.max(2))
}

/// Returns our limiter for six periods, with limits that are never used up.
pub(super) fn endless(subjects: usize) -> Result<Ours, Box<dyn Error>> {
    Ours::six(ENDLESS, subjects)
}

/// Makes the visits. Returns the nanoseconds for each decision. If `passes` is true, all visits
/// must be allowed, and otherwise all must be denied.
pub(super) fn block(limiter: &dyn Limiter, keys: &Keys, visits: &[u32], passes: bool) -> f64 {
    let (elapsed, admitted) = time_on_processor(|| limiter.count_allowed(keys, visits));
    assert_eq!(admitted, if passes { visits.len() } else { 0 }, "the limits are set so");
    elapsed.as_secs_f64() * 1e9 / visits.len() as f64
}

/// Makes the visits of all threads at the same time. Returns how many are allowed.
pub(super) fn count_allowed_by_threads(
    limiter: &dyn Limiter,
    keys: &Keys,
    visits: &[&[u32]],
) -> usize {
    match visits {
        [visits] => limiter.count_allowed(keys, visits),
        _ => thread::scope(|scope| {
            let start = |visits| scope.spawn(move || limiter.count_allowed(keys, visits));
            let threads: Vec<_> = visits.iter().copied().map(start).collect();
            let admitted = |thread: thread::ScopedJoinHandle<'_, usize>| {
                thread.join().expect("deciding does not panic")
            };
            threads.into_iter().map(admitted).sum()
        }),
    }
}
