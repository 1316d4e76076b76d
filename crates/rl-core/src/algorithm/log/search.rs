//! The search for a time among sorted times.

/// The number of parts into which each step of the search divides the times. The times at the ends
/// of the parts are read at once, so a step takes little longer than one of a binary search.
const PARTS: usize = 8;

/// Returns the index of the first time that is `time` or later.
///
/// The search has no branches that depend on the times, so that the processor mispredicts none.
#[inline]
pub(super) fn first_from(times: &[u64], time: u64) -> usize {
    let (mut begin, mut count) = (0, times.len());
    while count > PARTS {
        let part = count / PARTS;
        let is_earlier = |end: usize| usize::from(times[begin + end * part - 1] < time);
        begin += part * (1..PARTS).map(is_earlier).sum::<usize>();
        // If the found part is not the last one, it is smaller than this.
        count -= part * (PARTS - 1);
    }
    begin + times[begin..begin + count].iter().filter(|found| **found < time).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_search_finds_what_a_binary_search_finds(
            distances in prop::collection::vec(0..9_u64, 0..700),
            time in 0..3_000_u64,
        ) {
            let sum = |sum: &mut u64, distance| { *sum += distance; Some(*sum) };
            let times: Vec<u64> = distances.into_iter().scan(0, sum).collect();
            let found = times.partition_point(|found| *found < time);
            prop_assert_eq!(first_from(&times, time), found);
        }
    }
}
