use smallvec::SmallVec;

use crate::time::Timestamp;

/// What one limit of one subject remembers: a few integers whose meaning the algorithm knows.
///
/// Nothing at all, or as many as the algorithm has cells. They are the same integers that the Lua
/// twin stores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State(SmallVec<[u64; 3]>);

impl State {
    /// Nothing to remember.
    pub(crate) const fn empty() -> Self {
        Self(SmallVec::new_const())
    }

    /// What is in the cells; nothing, if all are 0.
    #[cfg(feature = "redis")]
    pub(crate) fn from_cells(cells: impl IntoIterator<Item = u64>) -> Self {
        let cells: SmallVec<[u64; 3]> = cells.into_iter().collect();
        if cells.iter().all(|cell| *cell == 0) { Self::empty() } else { Self(cells) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// The cells, if there are `N`.
    pub(super) fn cells<const N: usize>(&self) -> Option<[u64; N]> {
        self.0.as_slice().try_into().ok()
    }

    pub(super) fn as_slice(&self) -> &[u64] {
        &self.0
    }

    pub(super) fn set<const N: usize>(&mut self, cells: [u64; N]) {
        self.0.clear();
        self.0.extend_from_slice(&cells);
    }

    /// As many cells as asked for, 0 where there were none.
    pub(super) fn grow(&mut self, cells: usize) -> &mut [u64] {
        self.0.resize(cells, 0);
        &mut self.0
    }
}

/// How far `end` is from `now`, in µs.
pub(super) const fn until(end: u64, now: Timestamp) -> u64 {
    end.saturating_sub(now.as_micros())
}
