//! A hash table of fixed-size records by fingerprint.
//!
//! ```text
//! index    one slot of 32 bits for each home, four fifths of them used
//!            +----------+-----+----------+
//!            | distance | tag | position |     0 is a free slot
//!            |   6 bits |  6  |    20    |
//!            +----------+-----+----------+
//!                                  |
//! chunks   +--------+--------+-----v--+--------+
//!          | record | record | record | record |   32 records each, never moved
//!          +--------+--------+--------+--------+
//! ```
//!
//! The *home* of a record is the slot that its fingerprint selects. The slot that refers to the
//! record is its home, or comes soon after it.
//!
//! The index is a Robin Hood hash table. It is written by hand because it takes 5 to 8 bytes for
//! each record at every size. `hashbrown::HashTable<u32>` over the same chunks takes 6 to 12,
//! because it doubles its size when it grows. With it, each of a million subjects would take 99.5
//! bytes, and the goal is 96.

use crate::store::fingerprint::Fingerprint;

/// The number of records that are allocated together. It is small, so that little memory is unused.
const CHUNK: usize = 32;

const POSITION_BITS: u32 = 20;
const TAG_BITS: u32 = 6;
const DISTANCE_SHIFT: u32 = POSITION_BITS + TAG_BITS;
/// The number to add to a slot if its distance grows by one.
const ONE_FURTHER: u32 = 1 << DISTANCE_SHIFT;
const POSITION_MASK: u32 = (1 << POSITION_BITS) - 1;
/// The largest distance of a record from its home.
const MAX_DISTANCE: usize = (u32::MAX >> DISTANCE_SHIFT) as usize - 1;

/// The number of slots from a home on that are compared at once.
const NEAR: usize = 4;

/// The largest number of records of a table.
pub(super) const MAX_RECORDS: usize = 1 << POSITION_BITS;

/// Records by fingerprint.
///
/// Records also have positions, from 0 to `len() - 1`. When a record is removed, the last one moves
/// to its position.
#[derive(Debug)]
pub(super) struct Table<T> {
    index: Index,
    chunks: Vec<Vec<Record<T>>>,
    len: usize,
}

#[derive(Debug)]
struct Record<T> {
    subject: Fingerprint,
    value: T,
}

impl<T> Table<T> {
    /// Creates an empty table, which allocates almost nothing.
    pub(super) fn new() -> Self {
        Self { index: Index::with_homes(0), chunks: Vec::new(), len: 0 }
    }

    /// Returns the number of records.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Returns a mutable reference to the value of `subject`.
    #[inline(always)]
    pub(super) fn get_mut(&mut self, subject: Fingerprint) -> Option<&mut T> {
        let position = self.position(subject)?;
        Some(&mut self.chunks[position / CHUNK][position % CHUNK].value)
    }

    /// Returns a mutable reference to the value of `subject`, and mispredicts few branches.
    ///
    /// It takes more instructions than [`get_mut`](Self::get_mut), but less time if a request looks
    /// up several subjects: their distances from their homes are random.
    #[inline(always)]
    pub(super) fn get_mut_of_several(&mut self, subject: Fingerprint) -> Option<&mut T> {
        let near = self.index.find_near(subject, |position| self.record(position).subject);
        let position = near.or_else(|| self.position(subject))?;
        Some(&mut self.chunks[position / CHUNK][position % CHUNK].value)
    }

    /// Returns the value of `subject`.
    pub(super) fn get(&self, subject: Fingerprint) -> Option<&T> {
        Some(&self.record(self.position(subject)?).value)
    }

    /// Returns the record at `position`.
    #[inline]
    pub(super) fn at(&self, position: usize) -> Option<(Fingerprint, &T)> {
        let record = self.chunks.get(position / CHUNK)?.get(position % CHUNK)?;
        Some((record.subject, &record.value))
    }

    /// Adds a subject that is not in the table.
    pub(super) fn add(&mut self, subject: Fingerprint, value: T) {
        debug_assert!(self.len < MAX_RECORDS && self.get(subject).is_none());
        if self.len / CHUNK == self.chunks.len() {
            // The first chunk grows as needed, so that a table of a few records stays small.
            let capacity = if self.len == 0 { 0 } else { CHUNK };
            self.chunks.push(Vec::with_capacity(capacity));
        }
        self.chunks[self.len / CHUNK].push(Record { subject, value });
        self.len += 1;
        if self.index.is_full(self.len) || !self.index.insert(subject, self.len - 1) {
            self.rebuild_index();
        }
    }

    /// Removes `subject`, if it is in the table.
    pub(super) fn remove(&mut self, subject: Fingerprint) {
        if let Some(position) = self.position(subject) {
            self.remove_at(position);
        }
    }

    /// Removes the record at `position`. The last record moves there.
    pub(super) fn remove_at(&mut self, position: usize) {
        let last = self.len - 1;
        self.index.remove(self.record(position).subject, position);
        let moved = self.chunks[last / CHUNK].pop().expect("the last record is in this chunk");
        self.len = last;
        if position != last {
            self.index.move_position(moved.subject, last, position);
            self.chunks[position / CHUNK][position % CHUNK] = moved;
        }
    }

    /// Replaces the record at `position` by one of `subject`, which is not in the table yet.
    #[inline(always)]
    pub(super) fn replace_at(&mut self, position: usize, subject: Fingerprint, value: T) {
        self.index.remove(self.record(position).subject, position);
        self.chunks[position / CHUNK][position % CHUNK] = Record { subject, value };
        if !self.index.insert(subject, position) {
            self.rebuild_index();
        }
    }

    /// Returns the position of `subject`.
    #[inline(always)]
    pub(super) fn position(&self, subject: Fingerprint) -> Option<usize> {
        self.index.find(subject, |position| self.record(position).subject)
    }

    #[inline(always)]
    fn record(&self, position: usize) -> &Record<T> {
        &self.chunks[position / CHUNK][position % CHUNK]
    }

    /// Builds an index with 1.5 times as many homes, or more if a record would be too far from its
    /// home.
    fn rebuild_index(&mut self) {
        let mut homes = self.index.homes;
        loop {
            homes = (homes + homes / 2).max(self.len * 3 / 2).max(CHUNK);
            let mut index = Index::with_homes(homes);
            let mut records = self.chunks.iter().flatten().enumerate();
            if records.all(|(position, record)| index.insert(record.subject, position)) {
                self.index = index;
                return;
            }
        }
    }
}

/// The position of each fingerprint's record; see the [module](self) for its layout.
///
/// *Robin Hood hashing*: slots are ordered by the homes of their records, and each stores its
/// distance from this home. A search ends at the first slot whose distance is smaller than the
/// distance that the subject would have there. A removal moves the next slots one closer to their
/// homes, and reads no record.
#[derive(Debug)]
struct Index {
    /// One slot for each home, and more slots at the end for records that are far from their homes.
    /// With these, a search never wraps around.
    slots: Box<[u32]>,
    homes: usize,
}

impl Index {
    fn with_homes(homes: usize) -> Self {
        Self { slots: vec![0; homes + MAX_DISTANCE + 1].into(), homes }
    }

    /// Returns whether `len` records would fill more than four fifths of the homes. Searches in a
    /// fuller index get long.
    const fn is_full(&self, len: usize) -> bool {
        len > self.homes / 5 * 4
    }

    /// Returns the home of `subject`, and the content of a slot there: the distance and the tag,
    /// with 0 as the position.
    #[inline]
    fn home(&self, subject: Fingerprint) -> (usize, u32) {
        // A multiplication takes less time than a remainder. Unlike a mask, it allows any number of
        // homes.
        let home = (u64::from(subject.home()) * self.homes as u64) >> 32;
        let tag = subject.tag() & ((1 << TAG_BITS) - 1);
        (home as usize, ONE_FURTHER | tag << POSITION_BITS)
    }

    /// Returns the position of `subject`. `subject_at` returns the subject of the record at a
    /// position.
    #[inline(always)]
    fn find(
        &self,
        subject: Fingerprint,
        subject_at: impl Fn(usize) -> Fingerprint,
    ) -> Option<usize> {
        let (mut at, mut expected) = self.home(subject);
        while let Some(&slot) = self.slots.get(at) {
            if slot & !POSITION_MASK == expected {
                let position = (slot & POSITION_MASK) as usize;
                if subject_at(position) == subject {
                    return Some(position);
                }
            } else if slot >> DISTANCE_SHIFT < expected >> DISTANCE_SHIFT {
                return None;
            }
            at += 1;
            expected = expected.checked_add(ONE_FURTHER)?;
        }
        None
    }

    /// Returns the position of `subject`, if it is near its home. All near slots are compared at
    /// once, so no branch depends on the distance.
    #[inline(always)]
    fn find_near(
        &self,
        subject: Fingerprint,
        subject_at: impl Fn(usize) -> Fingerprint,
    ) -> Option<usize> {
        let (home, expected) = self.home(subject);
        let near = self.slots.get(home..)?.first_chunk::<NEAR>()?;
        let mut equal = 0;
        for (distance, slot) in near.iter().enumerate() {
            let expected = expected + distance as u32 * ONE_FURTHER;
            equal |= u32::from(slot & !POSITION_MASK == expected) << distance;
        }
        let slot = near.get(equal.trailing_zeros() as usize)?;
        let position = (slot & POSITION_MASK) as usize;
        (subject_at(position) == subject).then_some(position)
    }

    /// Returns the slot that contains `position`. `subject` is the subject at this position.
    fn slot_of(&self, subject: Fingerprint, position: usize) -> usize {
        let (home, _) = self.home(subject);
        let mut slots = self.slots[home..].iter();
        let holds = |slot: &u32| *slot != 0 && (*slot & POSITION_MASK) as usize == position;
        home + slots.position(holds).expect("every record has a slot")
    }

    /// Inserts a subject that is not in the index.
    ///
    /// Returns `false` if a record would be too far from its home. The caller then rebuilds the
    /// index.
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
        // The next records move one slot closer to their homes. The loop ends at a slot that is
        // free, or whose record is at its home.
        while let Some(&next) = self.slots.get(at + 1)
            && next >= 2 * ONE_FURTHER
        {
            self.slots[at] = next - ONE_FURTHER;
            at += 1;
        }
        self.slots[at] = 0;
    }

    /// Changes the position of `subject`.
    fn move_position(&mut self, subject: Fingerprint, from: usize, to: usize) {
        let at = self.slot_of(subject, from);
        self.slots[at] = self.slots[at] & !POSITION_MASK | to as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn a_table_agrees_with_a_hash_map_however_close_the_homes_are(
            steps in prop::collection::vec((0..300_u64, any::<bool>(), any::<bool>()), 1..800),
            homes in 20..300_u64,
        ) {
            let subject = |key| Fingerprint::with_home(key, (key % homes) as u32 * 14_000_000);
            let mut table = Table::new();
            let mut map = HashMap::new();
            for (step, (key, adds, replaces)) in steps.into_iter().enumerate() {
                let subject = subject(key);
                if !adds {
                    table.remove(subject);
                    map.remove(&key);
                } else if map.insert(key, step).is_none() {
                    if replaces && table.len() > 0 {
                        let position = step % table.len();
                        let replaced = *table.at(position).unwrap().1;
                        map.retain(|_, step| *step != replaced);
                        table.replace_at(position, subject, step);
                    } else {
                        table.add(subject, step);
                    }
                } else {
                    *table.get_mut(subject).unwrap() = step;
                }
                prop_assert_eq!(table.len(), map.len());
            }
            for key in 0..300 {
                prop_assert_eq!(table.get(subject(key)), map.get(&key));
                let found = table.get_mut_of_several(subject(key)).map(|step| *step);
                prop_assert_eq!(found.as_ref(), map.get(&key));
            }
            let positions = 0..table.len();
            let mut in_table: Vec<_> = positions.map(|at| *table.at(at).unwrap().1).collect();
            let mut in_map: Vec<_> = map.into_values().collect();
            in_table.sort_unstable();
            in_map.sort_unstable();
            prop_assert_eq!(in_table, in_map);
        }
    }

    /// Checks that the index grows because it is four fifths full, not because a record is too far
    /// from its home.
    #[test]
    fn the_index_takes_at_most_eight_bytes_for_each_record() {
        let mut table = Table::new();
        let mut home = 1_u32;
        for number in 1..100_000_u64 {
            home = home.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            table.add(Fingerprint::with_home(number, home), ());
            let bytes = size_of_val(&*table.index.slots);
            assert!(number < 1_000 || bytes <= 8 * table.len(), "{bytes} bytes for {number}");
        }
    }
}
