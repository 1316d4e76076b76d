use std::ops::Range;

/// A log of at most this number of slots has wide units. Its times and units share an allocation.
const FEW_SLOTS: usize = 64;

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
pub(super) struct LogSlots {
    words: Box<[u64]>,
    bytes: Box<[u8]>,
}

impl LogSlots {
    /// Creates slots without units.
    pub(super) fn new(count: usize) -> Self {
        if count <= FEW_SLOTS {
            return Self { words: vec![0; 2 * count].into(), bytes: Box::default() };
        }
        Self { words: vec![0; count].into(), bytes: vec![0; count].into() }
    }

    /// Returns the number of slots, a power of two, or 0.
    #[inline]
    pub(super) const fn len(&self) -> usize {
        (self.words.len() + self.bytes.len()) / 2
    }

    /// Returns the times of all slots.
    #[inline]
    pub(super) fn times(&self) -> &[u64] {
        &self.words[..self.len()]
    }

    /// Returns the time of a slot.
    #[inline]
    pub(super) fn time(&self, slot: usize) -> u64 {
        self.words[slot]
    }

    /// Sets the time of a slot.
    #[inline]
    pub(super) fn set_time(&mut self, slot: usize, time: u64) {
        self.words[slot] = time;
    }

    /// Returns the units of a slot.
    #[inline]
    pub(super) fn units(&self, slot: usize) -> u64 {
        if self.bytes.is_empty() { self.wide()[slot] } else { u64::from(self.bytes[slot]) }
    }

    /// Returns the sum of the units of some slots.
    #[inline]
    pub(super) fn sum(&self, slots: Range<usize>) -> u64 {
        if self.bytes.is_empty() { self.wide()[slots].iter().sum() } else { self.narrow_sum(slots) }
    }

    /// Returns the sum of the units of some slots, if these are narrow.
    #[inline(never)]
    fn narrow_sum(&self, slots: Range<usize>) -> u64 {
        self.bytes[slots].iter().map(|units| u64::from(*units)).sum()
    }

    /// Sets the units of a slot.
    #[inline]
    pub(super) fn set_units(&mut self, slot: usize, units: u64) {
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
    #[inline]
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
