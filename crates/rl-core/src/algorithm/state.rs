use crate::time::Timestamp;

/// What one limit of one subject remembers: a few integers whose meaning the algorithm knows, its
/// *cells*. All 0 is nothing.
///
/// They are the same integers that the Lua twin stores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    // Two are enough for most, and need no memory of their own.
    two: [u64; 2],
    // All of them, if there are more.
    more: Option<Box<[u64]>>,
}

impl State {
    /// Nothing to remember.
    pub(crate) const fn empty() -> Self {
        Self { two: [0; 2], more: None }
    }

    /// A state of these cells.
    #[cfg(feature = "redis")]
    pub(crate) fn from_cells(mut cells: impl ExactSizeIterator<Item = u64>) -> Self {
        if cells.len() == 2 {
            let two = [cells.next().unwrap_or_default(), cells.next().unwrap_or_default()];
            Self { two, more: None }
        } else {
            Self { two: [0; 2], more: Some(cells.collect()) }
        }
    }

    /// The state before so many units of the second of its two cells were counted.
    #[cfg(feature = "redis")]
    pub(crate) fn with_less(&self, units: u64) -> Self {
        let [since, used] = self.two;
        Self { two: [since, used.saturating_sub(units)], more: self.more.clone() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.two == [0; 2] && self.more.iter().flatten().all(|cell| *cell == 0)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::empty();
    }

    /// The two cells, if there is something to remember.
    pub(super) fn two(&self) -> Option<[u64; 2]> {
        (self.two != [0; 2]).then_some(self.two)
    }

    pub(super) const fn set_two(&mut self, cells: [u64; 2]) {
        self.two = cells;
    }

    /// The cells, if there are more than two.
    pub(super) fn many(&self) -> &[u64] {
        self.more.as_deref().unwrap_or_default()
    }

    /// The three cells, if there is something to remember.
    pub(super) fn three(&self) -> Option<[u64; 3]> {
        self.many().try_into().ok().filter(|cells| *cells != [0; 3])
    }

    pub(super) fn set_three(&mut self, cells: [u64; 3]) {
        self.many_mut(3).copy_from_slice(&cells);
    }

    /// So many cells to change, 0 where there were none.
    pub(super) fn many_mut(&mut self, count: usize) -> &mut [u64] {
        let more = self.more.get_or_insert_with(|| vec![0; count].into());
        debug_assert_eq!(more.len(), count);
        more
    }

    /// All cells to change, if there are more than two.
    pub(super) fn all_mut(&mut self) -> &mut [u64] {
        self.more.as_deref_mut().unwrap_or_default()
    }

    /// Takes these cells, more than two, in place of those that there were.
    pub(super) fn replace(&mut self, cells: Box<[u64]>) {
        self.more = Some(cells);
    }
}

/// How far `end` is from `now`, in µs.
pub(super) const fn until(end: u64, now: Timestamp) -> u64 {
    end.saturating_sub(now.as_micros())
}
