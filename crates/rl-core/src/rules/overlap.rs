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
    if chosen.len() + groups(candidates, overlap) < count {
        return false;
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

/// Divides positions into groups in which no two overlap. Returns the number of groups, which is at
/// least the number of positions that can be chosen together.
///
/// Without this bound, the search would try each combination of rules that match by path, rules
/// that match by host, and so on.
fn groups(positions: &[usize], overlap: &dyn Fn(usize, usize) -> bool) -> usize {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for position in positions {
        let fits = |group: &&mut Vec<usize>| group.iter().all(|other| !overlap(*position, *other));
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(*position),
            None => groups.push(vec![*position]),
        }
    }
    groups.len()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

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

    /// Fault: the rules of a file that match by path, by host or by address took a minute.
    #[test]
    fn groups_of_numbers_that_do_not_overlap_are_not_combined() {
        let calls = Cell::new(0);
        let groups = |one: usize, other: usize| {
            calls.set(calls.get() + 1);
            one % 4 != other % 4
        };
        assert_eq!(overlapping(80, 4, &groups), Some(vec![0, 1, 2, 3]));
        calls.set(0);
        assert_eq!(overlapping(80, 5, &groups), None);
        assert!(calls.get() <= 80 * 80, "{}", calls.get());
    }
}
