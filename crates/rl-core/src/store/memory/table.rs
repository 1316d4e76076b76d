//! A hash table of records that stand side by side: beside each record five to eight bytes, and no
//! room that waits for others.

use super::super::fingerprint::Fingerprint;

/// Records that are allocated together: so few that little is wasted, and none is ever moved.
const CHUNK: usize = 32;

/// Where a record stands; see [`Index`].
const POSITION_BITS: u32 = 20;
const TAG_BITS: u32 = 6;
const DISTANCE_SHIFT: u32 = POSITION_BITS + TAG_BITS;
const ONE_FURTHER: u32 = 1 << DISTANCE_SHIFT;
const POSITION: u32 = (1 << POSITION_BITS) - 1;
const FURTHEST: usize = (u32::MAX >> DISTANCE_SHIFT) as usize - 1;

/// The most records of a table.
pub(super) const MOST: usize = 1 << POSITION_BITS;

/// Records by fingerprint. They also have positions, from 0 to their number: the last takes the
/// place of one that is removed.
#[derive(Debug)]
pub(super) struct Table<T> {
    index: Index,
    chunks: Vec<Vec<Record<T>>>,
    len: usize,
}

#[derive(Debug)]
struct Record<T> {
    subject: Fingerprint,
    kept: T,
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Self { index: Index::of_size(0), chunks: Vec::new(), len: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, subject: Fingerprint) -> Option<&mut T> {
        let position = self.index.find(subject, |position| self.record(position).subject)?;
        Some(&mut self.chunks[position / CHUNK][position % CHUNK].kept)
    }

    pub(super) fn get(&self, subject: Fingerprint) -> Option<&T> {
        let position = self.index.find(subject, |position| self.record(position).subject)?;
        Some(&self.record(position).kept)
    }

    /// Who stands at `position`, which is below [`len`](Self::len).
    pub(super) fn at(&self, position: usize) -> (Fingerprint, &T) {
        let Record { subject, kept } = self.record(position);
        (*subject, kept)
    }

    /// Adds a subject that is not in it.
    pub(super) fn add(&mut self, subject: Fingerprint, kept: T) {
        debug_assert!(self.len < MOST && self.get(subject).is_none());
        if self.len / CHUNK == self.chunks.len() {
            // The first grows as it needs, for tables of a few.
            let room = if self.len == 0 { 0 } else { CHUNK };
            self.chunks.push(Vec::with_capacity(room));
        }
        self.chunks[self.len / CHUNK].push(Record { subject, kept });
        self.len += 1;
        if self.index.is_full(self.len) || !self.index.insert(subject, self.len - 1) {
            self.rebuild();
        }
    }

    pub(super) fn remove(&mut self, subject: Fingerprint) {
        let position = self.index.find(subject, |position| self.record(position).subject);
        if let Some(position) = position {
            self.remove_at(position);
        }
    }

    /// Removes who stands at `position`; the last takes the place.
    pub(super) fn remove_at(&mut self, position: usize) {
        let last = self.len - 1;
        self.index.remove(self.record(position).subject, position);
        let moved = self.chunks[last / CHUNK].pop().expect("the last chunk that is in use");
        self.len = last;
        if position != last {
            self.index.point(moved.subject, last, position);
            self.chunks[position / CHUNK][position % CHUNK] = moved;
        }
    }

    fn record(&self, position: usize) -> &Record<T> {
        &self.chunks[position / CHUNK][position % CHUNK]
    }

    /// An index with room for more.
    fn rebuild(&mut self) {
        let mut size = self.index.size;
        loop {
            size = (size + size / 2).max(self.len * 3 / 2).max(CHUNK);
            let mut index = Index::of_size(size);
            let mut records = self.chunks.iter().flatten().enumerate();
            if records.all(|(position, record)| index.insert(record.subject, position)) {
                self.index = index;
                return;
            }
        }
    }
}

/// Where the record of each fingerprint stands.
///
/// A slot is 0 if it is free; else it holds how far behind its home it is, and one; six bits of the
/// fingerprint, so that other records are seldom looked at; and a position. Slots of one home stand
/// together, in the order of homes (*Robin Hood hashing*): a search ends where the distance is less
/// than its own, and what is removed is closed up without a look at any record.
#[derive(Debug)]
struct Index {
    slots: Box<[u32]>,
    /// Homes. Behind the last are as many slots as one can be away from home: nothing wraps around.
    size: usize,
}

impl Index {
    fn of_size(size: usize) -> Self {
        Self { slots: vec![0; size + FURTHEST + 1].into(), size }
    }

    /// Four fifths of the homes: beyond that searches get long.
    const fn is_full(&self, len: usize) -> bool {
        len > self.size / 5 * 4
    }

    /// The home, and the slot of somebody who stands at position 0 and is there.
    #[inline]
    fn home(&self, subject: Fingerprint) -> (usize, u32) {
        // In proportion: the number of homes need not be a power of two.
        let home = (u64::from(subject.place()) * self.size as u64) >> 32;
        let tag = subject.tag() & ((1 << TAG_BITS) - 1);
        (home as usize, ONE_FURTHER | tag << POSITION_BITS)
    }

    /// The position of `subject`, if it is the one that `stands` there.
    #[inline(always)]
    fn find(&self, subject: Fingerprint, stands: impl Fn(usize) -> Fingerprint) -> Option<usize> {
        let (home, mut expected) = self.home(subject);
        for &slot in &self.slots[home..] {
            if slot & !POSITION == expected {
                let position = (slot & POSITION) as usize;
                if stands(position) == subject {
                    return Some(position);
                }
            } else if slot >> DISTANCE_SHIFT < expected >> DISTANCE_SHIFT {
                return None;
            }
            // Nobody is further away, so that this never overflows.
            expected = expected.checked_add(ONE_FURTHER)?;
        }
        None
    }

    /// The slot that points to `position`.
    fn slot_of(&self, subject: Fingerprint, position: usize) -> usize {
        let (home, _) = self.home(subject);
        let points = |slot: &&u32| **slot != 0 && (**slot & POSITION) as usize == position;
        let near = self.slots[home..].iter();
        let slot = near.clone().position(|slot| points(&slot));
        home + slot.expect("every record has a slot")
    }

    /// Adds who is not in it. False if somebody would have to stand too far from home; then the index
    /// must be built anew.
    #[must_use]
    fn insert(&mut self, subject: Fingerprint, position: usize) -> bool {
        let (home, slot) = self.home(subject);
        let mut carried = slot | position as u32;
        for slot in &mut self.slots[home..] {
            if *slot == 0 {
                *slot = carried;
                return true;
            }
            if *slot >> DISTANCE_SHIFT < carried >> DISTANCE_SHIFT {
                std::mem::swap(slot, &mut carried);
            }
            match carried.checked_add(ONE_FURTHER) {
                Some(further) => carried = further,
                None => return false,
            }
        }
        false
    }

    fn remove(&mut self, subject: Fingerprint, position: usize) {
        let mut at = self.slot_of(subject, position);
        // Who stands behind and is not at home comes one closer.
        while let Some(&next) = self.slots.get(at + 1)
            && next >= 2 * ONE_FURTHER
        {
            self.slots[at] = next - ONE_FURTHER;
            at += 1;
        }
        self.slots[at] = 0;
    }

    /// Notes that `subject` has moved.
    fn point(&mut self, subject: Fingerprint, from: usize, to: usize) {
        let at = self.slot_of(subject, from);
        self.slots[at] = self.slots[at] & !POSITION | to as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// What a map says, however close together the homes are.
        #[test]
        fn a_table_is_a_map(
            steps in prop::collection::vec((0..300_u64, any::<bool>()), 1..800), spread in 20..300_u64,
        ) {
            // From twenty homes close to each other to one for each.
            let subject = |key| Fingerprint::at_place(key, (key % spread) as u32 * 14_000_000);
            let mut table = Table::new();
            let mut map = HashMap::new();
            for (step, (key, adds)) in steps.into_iter().enumerate() {
                let subject = subject(key);
                if !adds {
                    table.remove(subject);
                    map.remove(&key);
                } else if map.insert(key, step).is_none() {
                    table.add(subject, step);
                } else {
                    *table.get_mut(subject).unwrap() = step;
                }
                prop_assert_eq!(table.len(), map.len());
            }
            for key in 0..300 {
                prop_assert_eq!(table.get(subject(key)), map.get(&key));
            }
            let mut standing: Vec<_> = (0..table.len()).map(|at| *table.at(at).1).collect();
            let mut steps: Vec<_> = map.into_values().collect();
            standing.sort_unstable();
            steps.sort_unstable();
            prop_assert_eq!(standing, steps);
        }
    }

    /// The index grows when it is four fifths full, and not because somebody is too far from home.
    #[test]
    fn the_index_takes_eight_bytes_for_each_record_at_most() {
        let mut table = Table::new();
        let mut place = 1_u32;
        for number in 1..100_000_u64 {
            place = place.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            table.add(Fingerprint::at_place(number, place), ());
            let bytes = size_of_val(&*table.index.slots);
            assert!(number < 1_000 || bytes <= 8 * table.len(), "{bytes} bytes for {number}");
        }
    }
}
