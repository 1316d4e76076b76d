//! The entries of a sliding log: a ring of slots, with sums.

/// The units that were charged at one time.
///
/// An entry in use has at least one unit. An entry whose units were refunded has none, and keeps
/// its time until its slot is reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LogEntry {
    time: u64,
    units: u64,
}

/// The number of slots of an empty log, a power of two.
const FEWEST_SLOTS: usize = 4;

/// A log of at most this number of slots never shrinks.
const FEW_SLOTS: usize = 32;

/// The number of slots, or of sums in the level below, that one sum covers: a power of two.
const FAN_OUT: usize = 1 << FAN_OUT_BITS;
const FAN_OUT_BITS: u32 = 4;

/// The number of expired entries that each charge clears: more than the one entry that it adds, so
/// that expired entries do not accumulate.
const CLEARED: usize = 4;

/// The number of entries that are compared one by one before a search begins, and the largest range
/// that is searched without interpolation.
const COMPARED: usize = 8;

/// The entries of a log, oldest first.
///
/// ```text
///            cleared   expired       in use
/// slots    [ 0 0 0 0 | e e e e e e | e e - e e e e e | 0 0 0 ]     a ring; - was refunded
///                      first         first + expired   first + stored
/// level 0  [  sum of 16 slots  |  sum of 16 slots  | …       ]     levels end at 16 sums or fewer
/// level 1  [  sum of 16 of these                     | …     ]
/// ```
///
/// No entry moves when another one is refunded or expires. The levels of sums answer two questions
/// in a few steps of 16 additions: which entry must expire before a given number of units is free,
/// and how many units have expired at a given time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    slots: Box<[LogEntry]>,
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
        (self.len() > 0).then(|| self.entry(self.stored - 1).time)
    }

    /// Returns the units of the entries that are later than `until`, or all units if `until` is
    /// `None`.
    #[inline]
    pub(super) fn units_after(&self, until: Option<u64>) -> u64 {
        let (_, units) = self.expiring(until);
        self.units - units
    }

    /// Removes the entries that are not later than `until`.
    #[inline]
    pub(super) fn drop_until(&mut self, until: Option<u64>) {
        let (count, units) = self.expiring(until);
        if count > 0 {
            let emptied = |position: &usize| self.entry(*position).units == 0;
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
    #[inline]
    fn give_back_slots(&mut self) {
        if self.slots.len() > FEW_SLOTS && self.len() < self.slots.len() / 8 {
            self.rebuild();
        }
    }

    /// Adds units to the newest entry, and sets its time to `time`.
    pub(super) fn add(&mut self, time: u64, units: u64) {
        if self.len() > 0 {
            let slot = self.slot(self.stored - 1);
            self.slots[slot].time = time;
            self.set_units(slot, self.slots[slot].units + units);
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
        self.slots[slot].time = time;
        self.set_units(slot, self.slots[slot].units + units);
        self.units += units;
        self.stored += 1;
    }

    /// Returns the position and the units of the entry in use with exactly this time, or `None` if
    /// there is none.
    pub(super) fn find(&self, time: u64) -> Option<(LogPosition, u64)> {
        let newest = self.stored.checked_sub(1)?;
        let position = match self.entry(newest).time {
            latest if latest == time => newest,
            _ => self.first_from(time),
        };
        let is_in_use = (self.expired..self.stored).contains(&position);
        let entry = is_in_use.then(|| self.entry(position))?;
        (entry.time == time && entry.units > 0).then_some((LogPosition(position), entry.units))
    }

    /// Removes units from an entry. Removes the entry if none are left.
    pub(super) fn lower(&mut self, LogPosition(position): LogPosition, units: u64) {
        let slot = self.slot(position);
        self.set_units(slot, self.slots[slot].units - units);
        self.units -= units;
        if self.slots[slot].units > 0 {
            return;
        }
        self.emptied += 1;
        while self.emptied > 0 && self.entry(self.stored - 1).units == 0 {
            self.stored -= 1;
            self.emptied -= 1;
        }
        while self.emptied > 0 && self.entry(self.expired).units == 0 {
            self.expired += 1;
            self.emptied -= 1;
        }
        self.give_back_slots();
    }

    /// Returns the time of the last entry that must expire before `units` units are free. Entries
    /// expire oldest first. Those that are not later than `until` have already expired. Returns
    /// `None` if the other entries have fewer units.
    pub(super) fn leaves_with(&self, until: Option<u64>, units: u64) -> Option<u64> {
        let (_, expiring) = self.expiring(until);
        let units = units + expiring;
        if units > self.units {
            return None;
        }
        let units = units + self.expired_units;
        // The ring wraps around: the slots before `first` hold the newest entries.
        let begun_again = self.units_before(self.first);
        let at_end = self.units + self.expired_units - begun_again;
        let sought = if units <= at_end { units + begun_again } else { units - at_end };
        Some(self.slots[self.slot_with(sought)].time)
    }

    /// Returns the number and the units of the entries that expire because they are not later than
    /// `until`. Refunded entries are included, but not entries that have already expired.
    #[inline(always)]
    fn expiring(&self, until: Option<u64>) -> (usize, u64) {
        match until {
            Some(until) if self.stored > self.expired && self.entry(self.expired).time <= until => {
                self.count_expiring(until)
            }
            _ => (0, 0),
        }
    }

    #[inline(never)]
    fn count_expiring(&self, until: u64) -> (usize, u64) {
        let mut units = 0;
        for position in self.expired..self.stored {
            let entry = self.entry(position);
            if entry.time > until {
                return (position - self.expired, units);
            }
            if position == self.expired + COMPARED {
                return self.expiring_of_many(until);
            }
            units += entry.units;
        }
        (self.stored - self.expired, units)
    }

    #[inline(never)]
    fn expiring_of_many(&self, until: u64) -> (usize, u64) {
        let end = self.first_from(until + 1);
        let slot = self.first + end;
        let begun_again = self.units_before(self.first);
        let stored = match slot.checked_sub(self.slots.len()) {
            None => self.units_before(slot) - begun_again,
            Some(slot) => self.units + self.expired_units - begun_again + self.units_before(slot),
        };
        (end - self.expired, stored - self.expired_units)
    }

    /// Returns the position of the first entry at `time` or later.
    ///
    /// The first steps of the search interpolate, because times are often evenly spread.
    fn first_from(&self, time: u64) -> usize {
        let (mut low, mut high) = (self.expired, self.stored);
        let mut guesses = 3;
        while low < high {
            let mut middle = low + (high - low) / 2;
            if guesses > 0 && high - low > COMPARED {
                let (begin, end) = (self.entry(low).time, self.entry(high - 1).time);
                if time <= begin {
                    return low;
                }
                if time > end {
                    return high;
                }
                // A division of integers takes longer, and a guess need not be exact.
                let part = (time - begin) as f64 / (end - begin) as f64;
                middle = low + (part * (high - 1 - low) as f64) as usize;
                guesses -= 1;
            }
            match self.entry(middle).time {
                found if found == time => return middle,
                earlier if earlier < time => low = middle + 1,
                _ => high = middle,
            }
        }
        low
    }

    /// Returns the slot of an entry.
    #[inline]
    const fn slot(&self, position: usize) -> usize {
        (self.first + position) & (self.slots.len() - 1)
    }

    #[inline]
    fn entry(&self, position: usize) -> LogEntry {
        self.slots[self.slot(position)]
    }

    /// Sets the units of a slot, and the sums that contain it.
    #[inline]
    fn set_units(&mut self, slot: usize, units: u64) {
        let before = std::mem::replace(&mut self.slots[slot].units, units);
        let mut index = slot;
        for level in &mut self.levels {
            index >>= FAN_OUT_BITS;
            level[index] = level[index] + units - before;
        }
    }

    /// Clears the slot of the oldest entry, which has expired.
    fn clear_oldest(&mut self) {
        self.expired_units -= self.slots[self.first].units;
        self.set_units(self.first, 0);
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
        let mut units = self.slots[begin..end].iter().map(|entry| entry.units).sum();
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
        while self.slots[index].units < units {
            units -= self.slots[index].units;
            index += 1;
        }
        index
    }

    /// Moves the entries in use to a ring of at least 1.5 times as many slots.
    #[inline(never)]
    fn rebuild(&mut self) {
        let wanted = self.len() + self.len() / 2;
        let mut slots = vec![LogEntry::default(); wanted.next_power_of_two().max(FEWEST_SLOTS)];
        let entries = (self.expired..self.stored).map(|position| self.entry(position));
        let mut stored = 0;
        for entry in entries.filter(|entry| entry.units > 0) {
            slots[stored] = entry;
            stored += 1;
        }
        let mut levels: Vec<Box<[u64]>> = Vec::new();
        let sums = |units: &mut dyn Iterator<Item = u64>| {
            let mut sums = Vec::new();
            while let Some(first) = units.next() {
                sums.push(first + units.take(FAN_OUT - 1).sum::<u64>());
            }
            sums.into_boxed_slice()
        };
        if slots.len() > FAN_OUT {
            levels.push(sums(&mut slots.iter().map(|entry| entry.units)));
        }
        while let Some(last) = levels.last().filter(|last| last.len() > FAN_OUT) {
            let next = sums(&mut last.iter().copied());
            levels.push(next);
        }
        let units = self.units;
        *self = Self { slots: slots.into(), levels, stored, units, ..Self::default() };
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
                range.map(|position| self.entry(position).units).sum()
            };
            assert_eq!(self.expired_units, units(0..self.expired));
            assert_eq!(self.units, units(self.expired..self.stored));
            let emptied = (self.expired..self.stored).filter(|at| self.entry(*at).units == 0);
            assert_eq!(self.emptied, emptied.count());
            let all: u64 = self.slots.iter().map(|entry| entry.units).sum();
            assert_eq!(all, self.units + self.expired_units);
            for end in 0..=self.slots.len() {
                let before: u64 = self.slots[..end].iter().map(|entry| entry.units).sum();
                assert_eq!(self.units_before(end), before, "{end}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Compares the log with a map from times to units, for many entries that are removed in
        /// random order.
        #[test]
        fn a_log_is_a_map_of_times_to_units(
            steps in prop::collection::vec((0..9_u8, any::<u32>(), 1..4_u64), 1..3_000),
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
}
