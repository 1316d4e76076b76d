//! Finds rules that one request may match together.

/// Returns the positions of `count` rules of which every two overlap, or `None` if there are no
/// such rules. The positions are below `len`.
///
/// `overlap` is symmetric. A request that matches several rules makes each pair of them overlap, so
/// no request matches `count` rules if the result is `None`.
pub(super) fn overlapping(
    len: usize,
    count: usize,
    overlap: &dyn Fn(usize, usize) -> bool,
) -> Option<Vec<usize>> {
    let all: Vec<usize> = (0..len).collect();
    let mut chosen = Vec::new();
    extend(&mut chosen, &all, count, overlap).then_some(chosen)
}

/// Adds `candidates` to `chosen` until `count` positions are chosen, of which every two overlap.
/// Each candidate overlaps with all of `chosen`. Returns false if this is impossible.
fn extend(
    chosen: &mut Vec<usize>,
    candidates: &[usize],
    count: usize,
    overlap: &dyn Fn(usize, usize) -> bool,
) -> bool {
    if chosen.len() >= count {
        return true;
    }
    for (place, candidate) in candidates.iter().enumerate() {
        if chosen.len() + candidates.len() - place < count {
            return false;
        }
        let rest = &candidates[place + 1..];
        let rest: Vec<usize> =
            rest.iter().copied().filter(|other| overlap(*candidate, *other)).collect();
        chosen.push(*candidate);
        if extend(chosen, &rest, count, overlap) {
            return true;
        }
        chosen.pop();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_all_overlap_are_found() {
        assert_eq!(overlapping(3, 3, &|_, _| true), Some(vec![0, 1, 2]));
        assert_eq!(overlapping(3, 3, &|_, _| false), None);
        assert_eq!(overlapping(9, 1, &|_, _| false), Some(vec![0]));
        // Even numbers overlap with each other, and so do odd ones.
        let parity = |one: usize, other: usize| one % 2 == other % 2;
        assert_eq!(overlapping(9, 5, &parity), Some(vec![0, 2, 4, 6, 8]));
        assert_eq!(overlapping(9, 6, &parity), None);
        // In a ring each number overlaps with two others, which do not overlap with each other.
        let ring = |one: usize, other: usize| [1, 99].contains(&one.abs_diff(other));
        assert_eq!(overlapping(100, 3, &ring), None);
    }
}
