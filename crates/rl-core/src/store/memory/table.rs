//! A hash table of fixed-size records by fingerprint.
//!
//! ```text
//! positions   fingerprint -> position, a `hashbrown` table of 32-bit numbers
//!                                  |
//! chunks   +--------+--------+-----v--+--------+
//!          | record | record | record | record |   32 records each, never moved
//!          +--------+--------+--------+--------+
//! ```
//!
//! A record takes its own size, and 6 to 12 bytes in the table of positions. A table of the records
//! themselves would leave up to half of its room unused after it has grown.

use hashbrown::HashTable;

use crate::store::fingerprint::Fingerprint;

/// The number of records that are allocated together. It is small, so that little memory is unused.
const CHUNK: usize = 32;

/// The largest number of records of a table.
pub(super) const MAX_RECORDS: usize = 1 << 20;

/// Records by fingerprint.
///
/// Records also have positions, from 0 to `len() - 1`. When a record is removed, the last one moves
/// to its position.
#[derive(Debug)]
pub(super) struct Table<T> {
    positions: HashTable<u32>,
    chunks: Chunks<T>,
    len: usize,
}

#[derive(Debug)]
struct Record<T> {
    subject: Fingerprint,
    value: T,
}

/// The records by position.
#[derive(Debug)]
struct Chunks<T>(Vec<Vec<Record<T>>>);

impl<T> Chunks<T> {
    fn at(&self, position: u32) -> &Record<T> {
        &self.0[position as usize / CHUNK][position as usize % CHUNK]
    }

    fn at_mut(&mut self, position: u32) -> &mut Record<T> {
        &mut self.0[position as usize / CHUNK][position as usize % CHUNK]
    }
}

impl<T> Table<T> {
    /// Creates an empty table, which allocates nothing.
    pub(super) const fn new() -> Self {
        Self { positions: HashTable::new(), chunks: Chunks(Vec::new()), len: 0 }
    }

    /// Returns the number of records.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Returns a mutable reference to the value of `subject`.
    #[inline(always)]
    pub(super) fn get_mut(&mut self, subject: Fingerprint) -> Option<&mut T> {
        let position = self.find(subject)?;
        Some(&mut self.chunks.at_mut(position).value)
    }

    /// Returns the value of `subject`.
    pub(super) fn get(&self, subject: Fingerprint) -> Option<&T> {
        Some(&self.chunks.at(self.find(subject)?).value)
    }

    /// Returns the position of `subject`.
    pub(super) fn position(&self, subject: Fingerprint) -> Option<usize> {
        self.find(subject).map(|position| position as usize)
    }

    /// Returns the record at `position`.
    pub(super) fn at(&self, position: usize) -> Option<(Fingerprint, &T)> {
        let record = self.chunks.0.get(position / CHUNK)?.get(position % CHUNK)?;
        Some((record.subject, &record.value))
    }

    /// Adds a subject that is not in the table.
    pub(super) fn add(&mut self, subject: Fingerprint, value: T) {
        debug_assert!(self.len < MAX_RECORDS && self.get(subject).is_none());
        if self.len / CHUNK == self.chunks.0.len() {
            // The first chunk grows as needed, so that a table of a few records stays small.
            let capacity = if self.len == 0 { 0 } else { CHUNK };
            self.chunks.0.push(Vec::with_capacity(capacity));
        }
        self.chunks.0[self.len / CHUNK].push(Record { subject, value });
        self.insert(subject, self.len);
        self.len += 1;
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
        self.forget(position);
        let moved = self.chunks.0[last / CHUNK].pop().expect("the last record is in this chunk");
        self.len = last;
        if position != last {
            let is_last = |&at: &u32| at as usize == last;
            let moved_from = self.positions.find_mut(moved.subject.hash_in_shard(), is_last);
            *moved_from.expect("every record has a position") = number(position);
            *self.chunks.at_mut(number(position)) = moved;
        }
    }

    /// Replaces the record at `position` by one of `subject`, which is not in the table yet.
    pub(super) fn replace_at(&mut self, position: usize, subject: Fingerprint, value: T) {
        self.forget(position);
        *self.chunks.at_mut(number(position)) = Record { subject, value };
        self.insert(subject, position);
    }

    #[inline(always)]
    fn find(&self, subject: Fingerprint) -> Option<u32> {
        let is_it = |&position: &u32| self.chunks.at(position).subject == subject;
        self.positions.find(subject.hash_in_shard(), is_it).copied()
    }

    /// Stores the position of a subject that has none.
    fn insert(&mut self, subject: Fingerprint, position: usize) {
        let chunks = &self.chunks;
        let hash_at = |&position: &u32| chunks.at(position).subject.hash_in_shard();
        self.positions.insert_unique(subject.hash_in_shard(), number(position), hash_at);
    }

    /// Removes the position of the record at `position`.
    fn forget(&mut self, position: usize) {
        let subject = self.chunks.at(number(position)).subject;
        let is_it = |&at: &u32| at as usize == position;
        let entry = self.positions.find_entry(subject.hash_in_shard(), is_it);
        entry.expect("every record has a position").remove();
    }
}

/// Returns a position as it is stored.
fn number(position: usize) -> u32 {
    u32::try_from(position).expect("a table has at most MAX_RECORDS records")
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
            }
            let positions = 0..table.len();
            let mut in_table: Vec<_> = positions.map(|at| *table.at(at).unwrap().1).collect();
            let mut in_map: Vec<_> = map.into_values().collect();
            in_table.sort_unstable();
            in_map.sort_unstable();
            prop_assert_eq!(in_table, in_map);
        }
    }

    #[test]
    fn the_position_of_a_record_takes_at_most_twelve_bytes() {
        let mut table = Table::new();
        let mut home = 1_u32;
        for number in 1..100_000_u64 {
            home = home.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            table.add(Fingerprint::with_home(number, home), ());
            let bytes = table.positions.allocation_size();
            assert!(number < 1_000 || bytes <= 12 * table.len(), "{bytes} bytes for {number}");
        }
    }
}
