//! The entries of a sliding log: a ring of slots, with sums.

use std::ops::Range;

/// The number of slots of an empty log, a power of two.
const FEWEST_SLOTS: usize = 4;

/// A log of at most this number of slots never shrinks.
const FEW_SLOTS: usize = 32;

/// A log of at most this number of slots has no sums, because its units are added as quickly.
const ADDED_SLOTS: usize = 64;

/// The number of slots, or of sums in the level below, that one sum covers: a power of two.
const FAN_OUT: usize = 1 << FAN_OUT_BITS;
const FAN_OUT_BITS: u32 = 4;

/// The number of expired entries that each charge clears: more than the one entry that it adds, so
/// that expired entries do not accumulate.
const CLEARED: usize = 4;

/// The number of entries that are compared one by one before a search begins.
const COMPARED: usize = 8;

/// A log of at most this number of slots has wide units. Its times and units share an allocation.
const WIDE_SLOTS: usize = 64;

/// The entries of a log, oldest first.
///
/// ```text
///            cleared   expired       in use
/// slots    [ 0 0 0 0 | e e e e e e | e e - e e e e e | 0 0 0 ]     a ring; - was refunded
///                      first         first + expired   first + stored
/// level 0  [  sum of 16 slots  |  sum of 16 slots  | …       ]     none for 64 slots or fewer;
/// level 1  [  sum of 16 of these                     | …     ]     the last has at most 16 sums
/// ```
///
/// No entry moves when another one is refunded or expires. The levels of sums answer two questions
/// in a few steps of 16 additions: which entry must expire before a given number of units is free,
/// and how many units have expired at a given time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    slots: LogSlots,
    levels: Vec<Box<[u64]>>,
    /// The slot of the oldest stored entry.
    first: usize,
    /// The number of stored entries, including those that have expired or were refunded.
    stored: usize,
    /// The number of expired entries at the front. Their units are `expired_units`.
    expired: usize,
    expired_units: u64,
    /// The number of refunded entries that come after the expired ones.
    emptied: usize,
    /// The units of the entries in use.
    units: u64,
}

/// The entries that expire at some time, and have not expired before.
#[derive(Clone, Copy, Debug)]
struct ExpiringEntries {
    count: usize,
    units: u64,
}

/// The position of an entry: the number of stored entries before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogPosition(usize);

impl Log {
    /// Returns the number of entries in use.
    pub(super) const fn len(&self) -> usize {
        self.stored - self.expired - self.emptied
    }

    /// Returns the units of all entries in use.
    pub(super) const fn units(&self) -> u64 {
        self.units
    }

    /// Returns the time of the newest entry.
    pub(super) fn newest(&self) -> Option<u64> {
        (self.len() > 0).then(|| self.time(self.stored - 1))
    }

    /// Returns the units of the entries that are later than `until`, or all units if `until` is
    /// `None`.
    pub(super) fn units_after(&self, until: Option<u64>) -> u64 {
        self.units - self.expiring(until).units
    }

    /// Removes the entries that are not later than `until`.
    pub(super) fn drop_until(&mut self, until: Option<u64>) {
        let ExpiringEntries { count, units } = self.expiring(until);
        if count > 0 {
            let emptied = |position: &usize| self.units_at(*position) == 0;
            if self.emptied > 0 {
                self.emptied -= (self.expired..self.expired + count).filter(emptied).count();
            }
            self.expired += count;
            self.expired_units += units;
            self.units -= units;
        }
        if self.expired > 0 {
            for _ in 0..self.expired.min(CLEARED) {
                self.clear_oldest();
            }
            self.give_back_slots();
        }
    }

    /// Moves the entries to fewer slots if most slots are unused.
    fn give_back_slots(&mut self) {
        if self.slots.len() > FEW_SLOTS && self.len() < self.slots.len() / 8 {
            self.rebuild();
        }
    }

    /// Adds units to the newest entry, and sets its time to `time`.
    pub(super) fn add(&mut self, time: u64, units: u64) {
        if self.len() > 0 {
            let slot = self.slot(self.stored - 1);
            self.slots.set_time(slot, time);
            let before = self.slots.units(slot);
            self.change_units(slot, before, before + units);
            self.units += units;
        }
    }

    /// Adds an entry.
    pub(super) fn push(&mut self, time: u64, units: u64) {
        if self.stored == self.slots.len() {
            // The ring is full: `rebuild` replaces it, without the entries that have expired or
            // were refunded.
            self.rebuild();
        }
        let slot = self.slot(self.stored);
        self.slots.set_time(slot, time);
        self.change_units(slot, 0, units);
        self.units += units;
        self.stored += 1;
    }

    /// Returns the position and the units of the entry in use with exactly this time, or `None` if
    /// there is none.
    pub(super) fn find(&self, time: u64) -> Option<(LogPosition, u64)> {
        let newest = self.stored.checked_sub(1)?;
        let position = match self.time(newest) {
            latest if latest == time => newest,
            _ => self.first_from(time),
        };
        let is_stored = (self.expired..self.stored).contains(&position);
        let units = if is_stored { self.units_at(position) } else { 0 };
        (units > 0 && self.time(position) == time).then_some((LogPosition(position), units))
    }

    /// Removes units from an entry. Removes the entry if none are left.
    pub(super) fn lower(&mut self, LogPosition(position): LogPosition, units: u64) {
        let slot = self.slot(position);
        let before = self.slots.units(slot);
        let left = before - units;
        self.change_units(slot, before, left);
        self.units -= units;
        if left > 0 {
            return;
        }
        self.emptied += 1;
        while self.emptied > 0 && self.units_at(self.stored - 1) == 0 {
            self.stored -= 1;
            self.emptied -= 1;
        }
        while self.emptied > 0 && self.units_at(self.expired) == 0 {
            self.expired += 1;
            self.emptied -= 1;
        }
        self.give_back_slots();
    }

    /// Returns the time of the last entry that must expire before `units` units are free. Entries
    /// expire oldest first. Those that are not later than `until` have already expired. Returns
    /// `None` if the other entries have fewer units.
    pub(super) fn leaves_with(&self, until: Option<u64>, units: u64) -> Option<u64> {
        let units = units + self.expiring(until).units;
        if units > self.units {
            return None;
        }
        let units = units + self.expired_units;
        // The ring wraps around: the slots before `first` hold the newest entries.
        let begun_again = self.units_before(self.first);
        let at_end = self.units + self.expired_units - begun_again;
        let sought = if units <= at_end { units + begun_again } else { units - at_end };
        Some(self.slots.time(self.slot_with(sought)))
    }

    /// Returns the entries that expire because they are not later than `until`. Refunded entries
    /// are included, but not entries that have already expired.
    #[inline(always)]
    fn expiring(&self, until: Option<u64>) -> ExpiringEntries {
        match until {
            Some(until) if self.stored > self.expired && self.time(self.expired) <= until => {
                self.count_expiring(until)
            }
            _ => ExpiringEntries { count: 0, units: 0 },
        }
    }

    /// Counts the entries that expire. Not inlined, because most decisions find none.
    #[inline(never)]
    fn count_expiring(&self, until: u64) -> ExpiringEntries {
        let mut units = 0;
        for position in self.expired..self.stored {
            if self.time(position) > until {
                return ExpiringEntries { count: position - self.expired, units };
            }
            if position == self.expired + COMPARED {
                return self.expiring_of_many(until);
            }
            units += self.units_at(position);
        }
        ExpiringEntries { count: self.stored - self.expired, units }
    }

    fn expiring_of_many(&self, until: u64) -> ExpiringEntries {
        let end = self.first_from(until + 1);
        let slot = self.first + end;
        let begun_again = self.units_before(self.first);
        let stored = match slot.checked_sub(self.slots.len()) {
            None => self.units_before(slot) - begun_again,
            Some(slot) => self.units + self.expired_units - begun_again + self.units_before(slot),
        };
        ExpiringEntries { count: end - self.expired, units: stored - self.expired_units }
    }

    /// Returns the position of the first entry at `time` or later.
    fn first_from(&self, time: u64) -> usize {
        let times = self.slots.times();
        let (begin, end) = (self.first + self.expired, self.first + self.stored);
        let wrapped = end.saturating_sub(times.len());
        if begin >= times.len() || (wrapped > 0 && times[0] < time) {
            return times.len() + first_from(&times[..wrapped], time) - self.first;
        }
        let end = end.min(times.len());
        begin + first_from(&times[begin..end], time) - self.first
    }

    /// Returns the slot of an entry.
    const fn slot(&self, position: usize) -> usize {
        (self.first + position) & (self.slots.len() - 1)
    }

    /// Returns the time of an entry.
    fn time(&self, position: usize) -> u64 {
        self.slots.time(self.slot(position))
    }

    /// Returns the units of an entry.
    fn units_at(&self, position: usize) -> u64 {
        self.slots.units(self.slot(position))
    }

    /// Changes the units of a slot from `before` to `after`, and the sums that contain it.
    #[inline]
    fn change_units(&mut self, slot: usize, before: u64, after: u64) {
        self.slots.set_units(slot, after);
        let mut index = slot;
        for level in &mut self.levels {
            index >>= FAN_OUT_BITS;
            level[index] = level[index] + after - before;
        }
    }

    /// Clears the slot of the oldest entry, which has expired.
    fn clear_oldest(&mut self) {
        let units = self.slots.units(self.first);
        self.expired_units -= units;
        self.change_units(self.first, units, 0);
        self.first = self.slot(1);
        self.stored -= 1;
        self.expired -= 1;
    }

    /// Returns the units of the slots before the slot `end`.
    fn units_before(&self, mut end: usize) -> u64 {
        if end == 0 {
            return 0;
        }
        let begin = if self.levels.is_empty() { 0 } else { end & !(FAN_OUT - 1) };
        let mut units = self.slots.sum(begin..end);
        for (height, level) in self.levels.iter().enumerate() {
            end >>= FAN_OUT_BITS;
            let begin = if height + 1 == self.levels.len() { 0 } else { end & !(FAN_OUT - 1) };
            units += level[begin..end].iter().sum::<u64>();
        }
        units
    }

    /// Returns the first slot whose running total reaches `units`. The running total of a slot is
    /// the sum of its units and those of all slots before it. The total of the last slot must be at
    /// least `units`.
    fn slot_with(&self, mut units: u64) -> usize {
        let mut index = 0;
        for level in self.levels.iter().rev() {
            while level[index] < units {
                units -= level[index];
                index += 1;
            }
            index <<= FAN_OUT_BITS;
        }
        while self.slots.units(index) < units {
            units -= self.slots.units(index);
            index += 1;
        }
        index
    }

    /// Moves the entries in use to a ring of at least 1.5 times as many slots. Not inlined, because
    /// few charges find the ring full.
    #[inline(never)]
    fn rebuild(&mut self) {
        let wanted = self.len() + self.len() / 2;
        let mut slots = LogSlots::new(wanted.next_power_of_two().max(FEWEST_SLOTS));
        let mut stored = 0;
        for slot in (self.expired..self.stored).map(|position| self.slot(position)) {
            let units = self.slots.units(slot);
            if units > 0 {
                slots.set_time(stored, self.slots.time(slot));
                slots.set_units(stored, units);
                stored += 1;
            }
        }
        let sums = |units: &[u64]| units.chunks(FAN_OUT).map(|units| units.iter().sum()).collect();
        let mut levels: Vec<Box<[u64]>> = Vec::new();
        if slots.len() > ADDED_SLOTS {
            let begins = (0..slots.len()).step_by(FAN_OUT);
            levels.push(begins.map(|begin| slots.sum(begin..begin + FAN_OUT)).collect());
        }
        while let Some(last) = levels.last().filter(|last| last.len() > FAN_OUT) {
            levels.push(sums(last));
        }
        let units = self.units;
        *self = Self { slots, levels, stored, units, ..Self::default() };
    }
}

/// The number of parts into which each step of the search divides the times. The times at the ends
/// of the parts are read at once, so a step takes little longer than one of a binary search.
const PARTS: usize = 8;

/// Returns the index of the first time that is `time` or later.
///
/// The search has no branches that depend on the times, so that the processor mispredicts none.
fn first_from(times: &[u64], time: u64) -> usize {
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

/// The slots of a log: the times of all entries, and the units that were charged at these times.
///
/// ```text
/// wide      words [ time time time … | units units units … ]     bytes [ ]
/// narrow    words [ time time time … ]                           bytes [ units units units … ]
/// ```
///
/// Most entries have few units. A byte for them makes a long log little more than half as large, so
/// that more of it is in the caches of the processor. The slots become wide once an entry gets more
/// units than a byte holds.
///
/// A search reads only times, and a sum only units. An entry in use has at least one unit. An entry
/// whose units were refunded has none, and keeps its time until its slot is reused.
#[derive(Clone, Debug, Default)]
struct LogSlots {
    words: Box<[u64]>,
    bytes: Box<[u8]>,
}

impl LogSlots {
    /// Creates slots without units.
    fn new(count: usize) -> Self {
        if count <= WIDE_SLOTS {
            return Self { words: vec![0; 2 * count].into(), bytes: Box::default() };
        }
        Self { words: vec![0; count].into(), bytes: vec![0; count].into() }
    }

    /// Returns the number of slots, a power of two, or 0.
    const fn len(&self) -> usize {
        (self.words.len() + self.bytes.len()) / 2
    }

    /// Returns the times of all slots.
    fn times(&self) -> &[u64] {
        &self.words[..self.len()]
    }

    /// Returns the time of a slot.
    fn time(&self, slot: usize) -> u64 {
        self.words[slot]
    }

    /// Sets the time of a slot.
    fn set_time(&mut self, slot: usize, time: u64) {
        self.words[slot] = time;
    }

    /// Returns the units of a slot.
    fn units(&self, slot: usize) -> u64 {
        if self.bytes.is_empty() { self.wide()[slot] } else { u64::from(self.bytes[slot]) }
    }

    /// Returns the sum of the units of some slots.
    fn sum(&self, slots: Range<usize>) -> u64 {
        if self.bytes.is_empty() { self.wide()[slots].iter().sum() } else { self.narrow_sum(slots) }
    }

    /// Returns the sum of the units of some slots, if these are narrow.
    fn narrow_sum(&self, slots: Range<usize>) -> u64 {
        self.bytes[slots].iter().map(|units| u64::from(*units)).sum()
    }

    /// Sets the units of a slot.
    fn set_units(&mut self, slot: usize, units: u64) {
        if !self.bytes.is_empty() {
            match u8::try_from(units) {
                Ok(units) => return self.bytes[slot] = units,
                Err(_) => self.widen(),
            }
        }
        let begin = self.len();
        self.words[begin + slot] = units;
    }

    /// Returns the units of all slots, if these are wide.
    fn wide(&self) -> &[u64] {
        &self.words[self.words.len() / 2..]
    }

    /// Makes room for units of any number.
    #[cold]
    fn widen(&mut self) {
        let Self { words, bytes } = std::mem::take(self);
        let units = bytes.into_iter().map(u64::from);
        self.words = words.into_iter().chain(units).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    impl Log {
        /// Panics if a sum is wrong, or if a slot without an entry has units.
        fn assert_sound(&self) {
            let units = |range: std::ops::Range<usize>| -> u64 {
                range.map(|position| self.units_at(position)).sum()
            };
            assert_eq!(self.expired_units, units(0..self.expired));
            assert_eq!(self.units, units(self.expired..self.stored));
            let emptied = (self.expired..self.stored).filter(|at| self.units_at(*at) == 0);
            assert_eq!(self.emptied, emptied.count());
            let all = self.slots.sum(0..self.slots.len());
            assert_eq!(all, self.units + self.expired_units);
            for end in 0..=self.slots.len() {
                let before = self.slots.sum(0..end);
                assert_eq!(self.units_before(end), before, "{end}");
            }
        }
    }

    /// Generates the units of an entry: mostly a few, seldom more than a byte holds.
    fn units_of_an_entry() -> impl Strategy<Value = u64> {
        prop_oneof![499 => 1..4_u64, 1 => 200..900_u64]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Compares the log with a map from times to units, for many entries that are removed in
        /// random order.
        #[test]
        fn a_log_is_a_map_of_times_to_units(
            steps in prop::collection::vec((0..9_u8, any::<u32>(), units_of_an_entry()), 1..3_000),
            distance in 1..50_u32,
        ) {
            let (mut log, mut map, mut now) = (Log::default(), BTreeMap::new(), 0_u64);
            for (what, choice, units) in steps {
                let entry = |map: &BTreeMap<u64, u64>| {
                    let place = choice as usize % map.len().max(1);
                    map.iter().nth(place).map(|(time, units)| (*time, *units))
                };
                match what {
                    0..=4 => {
                        now += 1 + u64::from(choice % distance);
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
                        prop_assert_eq!(log.find(time).is_some(), map.contains_key(&time));
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
                        prop_assert_eq!(log.leaves_with(until, after + 1), None);
                        log.drop_until(until);
                        map = map.split_off(&(time + 1));
                        log.assert_sound();
                    },
                }
                prop_assert_eq!(log.len(), map.len());
                prop_assert_eq!(log.newest(), map.keys().next_back().copied());
                prop_assert_eq!(log.units_after(None), map.values().sum::<u64>());
            }
            log.assert_sound();
        }
    }

    /// If logs did not shrink, a log of a few long-lived permits would keep the memory of its
    /// largest size.
    #[test]
    fn a_log_of_few_entries_takes_few_slots() {
        let mut log = Log::default();
        (0..10_000).for_each(|time| log.push(time, 1));
        for time in (0..10_000).filter(|time| time % 100 != 0) {
            let (place, _) = log.find(time).unwrap();
            log.lower(place, 1);
        }
        log.assert_sound();
        assert_eq!(log.len(), 100);
        assert!(log.slots.len() <= 512, "{} slots", log.slots.len());
        log.drop_until(Some(9_850));
        assert_eq!(log.len(), 1);
        assert!(log.slots.len() <= FEW_SLOTS, "{} slots", log.slots.len());
    }

    #[test]
    fn a_log_is_as_large_as_its_entries_however_long_it_is_used() {
        let mut log = Log::default();
        for time in 0..100_000 {
            log.drop_until(Some(time).filter(|time| *time >= 100).map(|time| time - 100));
            log.push(time, 1);
        }
        log.assert_sound();
        assert_eq!(log.len(), 100);
        assert!(log.slots.len() <= 256, "{} slots", log.slots.len());
    }

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
