/// The slots of a log: the times of all entries, then the units that were charged at these times.
///
/// A search reads only times, and a sum only units. An entry in use has at least one unit. An entry
/// whose units were refunded has none, and keeps its time until its slot is reused.
#[derive(Clone, Debug, Default)]
pub(super) struct LogSlots(Box<[u64]>);

impl LogSlots {
    /// Creates slots without units.
    pub(super) fn new(count: usize) -> Self {
        Self(vec![0; 2 * count].into())
    }

    /// Returns the number of slots, a power of two, or 0.
    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.0.len() / 2
    }

    /// Returns the times of all slots.
    #[inline]
    pub(super) fn times(&self) -> &[u64] {
        &self.0[..self.len()]
    }

    /// Returns the time of a slot.
    #[inline]
    pub(super) fn time(&self, slot: usize) -> u64 {
        self.0[slot]
    }

    /// Sets the time of a slot.
    #[inline]
    pub(super) fn set_time(&mut self, slot: usize, time: u64) {
        self.0[slot] = time;
    }

    /// Returns the units of all slots.
    #[inline]
    pub(super) fn units(&self) -> &[u64] {
        &self.0[self.len()..]
    }

    /// Returns the units of all slots, to change them.
    #[inline]
    pub(super) fn units_mut(&mut self) -> &mut [u64] {
        let count = self.len();
        &mut self.0[count..]
    }
}
