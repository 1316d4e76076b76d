use super::log::Log;
use crate::time::Timestamp;

/// The state of one limit of one subject: a few integers, the *cells*, whose meaning the algorithm
/// defines. All cells of an unused limit are 0.
///
/// The Lua twin stores the same integers, except for a sliding log, whose entries are in a [`Log`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    // Four are enough for most algorithms, and need no allocation.
    few: [u64; State::FEW],
    more: More,
}

/// State that does not fit into the few cells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum More {
    #[default]
    Nothing,
    /// All cells, if there are more than a few.
    Cells(Box<[u64]>),
    /// The entries of a sliding log.
    Log(Box<Log>),
}

impl State {
    /// The number of cells that need no allocation.
    pub(crate) const FEW: usize = 4;

    /// Returns the state of an unused limit.
    pub(crate) const fn empty() -> Self {
        Self { few: [0; Self::FEW], more: More::Nothing }
    }

    /// Returns a state of two to four cells; those that an algorithm does not have are 0.
    pub(crate) const fn of_few(few: [u64; Self::FEW]) -> Self {
        Self { few, more: More::Nothing }
    }

    /// Creates a state of these cells.
    #[cfg(feature = "redis")]
    pub(crate) fn from_cells(mut cells: impl ExactSizeIterator<Item = u64>) -> Self {
        if matches!(cells.len(), 2..=Self::FEW) {
            Self::of_few(std::array::from_fn(|_| cells.next().unwrap_or_default()))
        } else {
            Self { few: [0; Self::FEW], more: More::Cells(cells.collect()) }
        }
    }

    /// Returns the state with `units` fewer in the second of its two cells.
    #[cfg(feature = "redis")]
    pub(crate) fn with_less(&self, units: u64) -> Self {
        let [since, used, third, fourth] = self.few;
        let few = [since, used.saturating_sub(units), third, fourth];
        Self { few, more: self.more.clone() }
    }

    /// Returns the cells, if there are two to four.
    pub(crate) const fn few(&self) -> [u64; Self::FEW] {
        self.few
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.few == [0; Self::FEW]
            && match &self.more {
                More::Nothing => true,
                More::Cells(cells) => cells.iter().all(|cell| *cell == 0),
                More::Log(log) => log.len() == 0,
            }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::empty();
    }

    /// Returns the first two cells; `None` if the limit is unused.
    pub(super) fn two(&self) -> Option<[u64; 2]> {
        let [first, second, ..] = self.few;
        (first | second != 0).then_some([first, second])
    }

    pub(super) const fn set_two(&mut self, [first, second]: [u64; 2]) {
        self.few = [first, second, 0, 0];
    }

    /// Returns the first three cells; `None` if the limit is unused.
    pub(super) fn three(&self) -> Option<[u64; 3]> {
        let [first, second, third, _] = self.few;
        (self.few != [0; Self::FEW]).then_some([first, second, third])
    }

    pub(super) const fn set_three(&mut self, [first, second, third]: [u64; 3]) {
        self.few = [first, second, third, 0];
    }

    /// Returns the four cells; `None` if the limit is unused.
    pub(super) fn four(&self) -> Option<[u64; 4]> {
        (self.few != [0; Self::FEW]).then_some(self.few)
    }

    pub(super) const fn set_four(&mut self, cells: [u64; 4]) {
        self.few = cells;
    }

    /// Returns all cells, however many; none if the limit is unused.
    pub(super) fn many(&self) -> &[u64] {
        match &self.more {
            More::Cells(cells) => cells,
            _ if self.few == [0; Self::FEW] => &[],
            _ => &self.few,
        }
    }

    /// Returns `count` cells to change, 0 where there were none.
    pub(super) fn many_mut(&mut self, count: usize) -> &mut [u64] {
        let few = std::mem::take(&mut self.few);
        if !matches!(&self.more, More::Cells(_)) {
            let mut cells = vec![0; count];
            // A store may have restored four cells as `few`.
            cells.iter_mut().zip(few).for_each(|(cell, few)| *cell = few);
            self.more = More::Cells(cells.into());
        }
        match &mut self.more {
            More::Cells(cells) => cells,
            _ => &mut [],
        }
    }

    /// Returns the entries of a log, if it has any.
    pub(super) fn log(&self) -> Option<&Log> {
        match &self.more {
            More::Log(log) if log.len() > 0 => Some(log),
            _ => None,
        }
    }

    /// Returns the entries of a log to change.
    pub(super) fn log_mut(&mut self) -> &mut Log {
        if !matches!(&self.more, More::Log(_)) {
            self.more = More::Log(Box::default());
        }
        match &mut self.more {
            More::Log(log) => log,
            _ => unreachable!("a log has just been put there"),
        }
    }
}

/// Returns the time from `now` to `end` in µs; 0 if `end` has passed.
pub(super) const fn until(end: u64, now: Timestamp) -> u64 {
    end.saturating_sub(now.as_micros())
}
