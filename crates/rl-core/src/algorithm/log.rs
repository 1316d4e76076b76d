//! The entries of a sliding log, in blocks of bounded length.

use std::collections::VecDeque;

/// The time at which units were charged, and their number.
type LogEntry = (u64, u64);

/// The most entries of a block.
const BLOCK: usize = 128;

/// Entries, oldest first; each has at least one unit.
///
/// ```text
/// sealed  [ ≤ 128 entries, their units ] [ … ] [ … ]     none is empty
/// tail                                              [ ≤ 128 entries, their units ]
/// ```
///
/// Removing an entry moves only later entries of the same block. Neighbours with up to 128 entries in all
/// become one block, so there is at most one block for every 64 entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Log {
    sealed: VecDeque<LogBlock>,
    // Not empty, unless the log is.
    tail: LogBlock,
    units: u64,
    count: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LogBlock {
    entries: VecDeque<LogEntry>,
    units: u64,
}

/// Entries at the front that no longer count.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    /// Blocks whose entries have all expired.
    blocks: usize,
    /// Expired entries of the next block.
    entries: usize,
    units: u64,
}

/// The position of an entry: in a sealed block or in the tail.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogPosition {
    block: usize,
    entry: usize,
}

impl LogBlock {
    fn newest(&self) -> u64 {
        self.entries.back().map_or(0, |(time, _)| *time)
    }

    /// Appends the entries of the next block.
    fn append(&mut self, mut next: Self) {
        self.entries.append(&mut next.entries);
        self.units += next.units;
    }
}

impl Log {
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// Returns the time of the newest entry.
    pub(super) fn newest(&self) -> Option<u64> {
        self.tail.entries.back().map(|(time, _)| *time)
    }

    fn blocks(&self) -> impl Iterator<Item = &LogBlock> {
        self.sealed.iter().chain([&self.tail])
    }

    fn block(&self, index: usize) -> &LogBlock {
        self.sealed.get(index).unwrap_or(&self.tail)
    }

    fn block_mut(&mut self, index: usize) -> &mut LogBlock {
        self.sealed.get_mut(index).unwrap_or(&mut self.tail)
    }

    /// Returns the entries that are not after `until`.
    fn left(&self, until: Option<u64>) -> Left {
        let (Some(until), mut left) = (until, Left::default()) else { return Left::default() };
        for block in self.blocks() {
            if block.newest() > until {
                let entries = block.entries.iter().take_while(|(time, _)| *time <= until);
                let (count, units) =
                    entries.fold((0, 0), |(count, sum), (_, units)| (count + 1, sum + units));
                return Left { entries: count, units: left.units + units, ..left };
            }
            left.units += block.units;
            left.blocks += 1;
        }
        left
    }

    /// Returns the units of the entries after `until`.
    pub(super) fn units_after(&self, until: Option<u64>) -> u64 {
        self.units - self.left(until).units
    }

    /// Removes the entries that are not after `until`.
    pub(super) fn drop_until(&mut self, until: Option<u64>) {
        let left = self.left(until);
        if left.units == 0 {
            return;
        }
        let sealed = left.blocks.min(self.sealed.len());
        let dropped: usize = self.sealed.drain(..sealed).map(|block| block.entries.len()).sum();
        self.count -= dropped + left.entries;
        if left.blocks > sealed {
            *self = Self::default();
            return;
        }
        self.units -= left.units;
        let block = self.block_mut(0);
        for (_, units) in block.entries.drain(..left.entries) {
            block.units -= units;
        }
    }

    /// Adds units to the newest entry, and sets its time to `time`.
    pub(super) fn add(&mut self, time: u64, units: u64) {
        if let Some(newest) = self.tail.entries.back_mut() {
            *newest = (time, newest.1 + units);
            self.tail.units += units;
            self.units += units;
        }
    }

    /// Adds an entry.
    pub(super) fn push(&mut self, time: u64, units: u64) {
        if self.tail.entries.len() >= BLOCK {
            self.sealed.push_back(std::mem::take(&mut self.tail));
        }
        self.tail.entries.push_back((time, units));
        self.tail.units += units;
        self.units += units;
        self.count += 1;
    }

    /// Returns the place and the units of the entry of exactly this time.
    pub(super) fn find(&self, time: u64) -> Option<(LogPosition, u64)> {
        let block = self.sealed.partition_point(|block| block.newest() < time);
        let entries = &self.block(block).entries;
        let entry = entries.binary_search_by_key(&time, |(at, _)| *at).ok()?;
        Some((LogPosition { block, entry }, entries[entry].1))
    }

    /// Removes units from an entry, and the entry with its last unit.
    pub(super) fn lower(&mut self, LogPosition { block: index, entry }: LogPosition, units: u64) {
        self.units -= units;
        let block = self.block_mut(index);
        block.units -= units;
        block.entries[entry].1 -= units;
        if block.entries[entry].1 > 0 {
            return;
        }
        block.entries.remove(entry);
        self.count -= 1;
        if index >= self.sealed.len() {
            if self.tail.entries.is_empty() {
                self.tail = self.sealed.pop_back().unwrap_or_default();
            }
        } else if self.sealed[index].entries.is_empty() {
            self.sealed.remove(index);
        } else {
            self.merge(index);
        }
    }

    /// Merges a sealed block with the next or the previous one, if both fit into one block.
    fn merge(&mut self, index: usize) {
        for first in [Some(index), index.checked_sub(1)].into_iter().flatten() {
            let (Some(one), Some(other)) = (self.sealed.get(first), self.sealed.get(first + 1))
            else {
                continue;
            };
            if one.entries.len() + other.entries.len() <= BLOCK {
                if let Some(next) = self.sealed.remove(first + 1) {
                    self.sealed[first].append(next);
                }
                return;
            }
        }
    }

    /// Returns the time of the entry whose expiry frees `units` of the units after `until`.
    pub(super) fn leaves_with(&self, until: Option<u64>, units: u64) -> Option<u64> {
        let mut units = units + self.left(until).units;
        for block in self.blocks() {
            if block.units < units {
                units -= block.units;
                continue;
            }
            for (time, taken) in &block.entries {
                if *taken >= units {
                    return Some(*time);
                }
                units -= taken;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    impl Log {
        /// Panics unless every sum is right and no block is too long or empty.
        fn assert_sound(&self) {
            for block in self.blocks() {
                assert_eq!(block.units, block.entries.iter().map(|(_, units)| units).sum::<u64>());
                assert!(
                    block.entries.len() <= BLOCK && block.entries.iter().all(|entry| entry.1 > 0)
                );
            }
            assert_eq!(self.units, self.blocks().map(|block| block.units).sum::<u64>());
            let entries = self.blocks().map(|block| block.entries.len());
            assert_eq!(self.count, entries.sum::<usize>());
            assert!(self.sealed.iter().all(|block| !block.entries.is_empty()));
            assert_eq!(self.count == 0, self.tail.entries.is_empty());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Compares the log with a map of times, over many blocks and removals in any order.
        #[test]
        fn a_log_is_a_map_of_times_to_units(
            steps in prop::collection::vec((0..9_u8, any::<u32>(), 1..4_u64), 1..3_000),
        ) {
            let (mut log, mut map, mut now) = (Log::default(), BTreeMap::new(), 0_u64);
            for (what, choice, units) in steps {
                let entry = |map: &BTreeMap<u64, u64>| {
                    let place = choice as usize % map.len().max(1);
                    map.iter().nth(place).map(|(time, units)| (*time, *units))
                };
                match what {
                    0..=4 => {
                        now += 1 + u64::from(choice % 3);
                        log.push(now, units);
                        map.insert(now, units);
                    }
                    5 if !map.is_empty() => {
                        let (_, taken) = map.pop_last().unwrap();
                        now += 1;
                        log.add(now, units);
                        map.insert(now, taken + units);
                    }
                    6..=7 => if let Some((time, held)) = entry(&map) {
                        let (place, found) = log.find(time).unwrap();
                        prop_assert_eq!(found, held);
                        log.lower(place, units.min(held));
                        map.insert(time, held - units.min(held));
                        map.retain(|_, units| *units > 0);
                    },
                    _ => if let Some((time, _)) = entry(&map).filter(|_| choice % 8 == 0) {
                        let until = Some(time);
                        let after: u64 = map.range(time + 1..).map(|(_, units)| units).sum();
                        prop_assert_eq!(log.units_after(until), after);
                        if after > 0 {
                            let sought = 1 + u64::from(choice) % after;
                            let mut left = 0;
                            let last = map.range(time + 1..).find(|(_, units)| {
                                left += **units;
                                left >= sought
                            });
                            prop_assert_eq!(log.leaves_with(until, sought), last.map(|(time, _)| *time));
                        }
                        log.drop_until(until);
                        map = map.split_off(&(time + 1));
                    },
                }
                prop_assert_eq!(log.len(), map.len());
                prop_assert_eq!(log.newest(), map.keys().next_back().copied());
                prop_assert_eq!(log.units_after(None), map.values().sum::<u64>());
            }
            log.assert_sound();
        }
    }

    /// Otherwise a few long requests would keep the memory of many blocks.
    #[test]
    fn short_neighbouring_blocks_are_merged() {
        let mut log = Log::default();
        (0..10_000).for_each(|time| log.push(time, 1));
        for time in (0..10_000).filter(|time| time % 100 != 0) {
            let (place, _) = log.find(time).unwrap();
            log.lower(place, 1);
        }
        log.assert_sound();
        assert_eq!(log.len(), 100);
        assert!(log.sealed.len() <= 2, "{} blocks", log.sealed.len());
    }
}
