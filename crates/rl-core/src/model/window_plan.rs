use super::packed::Pairs;
use super::{Algorithm, Anchor, Limit, Moment, Packed, Period};
use crate::policy::NamedLimit;
use crate::time::calendar_month;

/// Limits that are decided together in one pass, as plain numbers beside each other: fixed windows, all
/// in force, that count units.
///
/// A window without a clock that began at *since* is open while now < *since* + length. For a window on
/// the clock, *since* is the time of its first charge, from which its end follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowPlan {
    pub(crate) count: usize,
    /// The most units of a window; without end in the places that are not in use.
    pub(crate) max: [u64; WindowPlan::MOST],
    /// Beside the room that [`Packed::plus`] leaves, what is missing to 2^31 - 1. There is room for one unit
    /// less than the most, and in the places that are not in use for all that is there.
    pub(crate) taken: Pairs,
    /// All bits, in the places that are in use.
    pub(crate) places: Pairs,
    /// How long a window lasts, in µs; of a calendar month, not quite.
    pub(crate) micros: [u64; WindowPlan::MOST],
    /// The least time that a window lasts after its first charge: 0 on the clock.
    pub(crate) at_least: [u64; WindowPlan::MOST],
    /// The states that the limits count in: [`StateId::bits`](super::StateId::bits).
    pub(crate) states: [u64; WindowPlan::MOST],
    pub(crate) grid: [Grid; WindowPlan::MOST],
    /// Which of them is the shortest, if none is on the clock.
    pub(crate) shortest: Option<u8>,
}

/// Where on the clock windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grid {
    /// Nowhere: windows begin when they are charged.
    None,
    /// At multiples of the period, counted from this long before the epoch.
    Shifted(u64),
    /// At the first of each calendar month.
    Month,
}

impl Grid {
    pub(crate) fn of(period: Period, anchor: Anchor) -> Self {
        match anchor {
            Anchor::FirstRequest => Self::None,
            Anchor::Clock if period == Period::MONTH => Self::Month,
            Anchor::Clock if period.as_micros().is_multiple_of(Period::WEEK.as_micros()) => {
                Self::Shifted(MONDAY_BEFORE_EPOCH)
            }
            Anchor::Clock => Self::Shifted(0),
        }
    }
}

/// 1970-01-01 was a Thursday: its week began three days before the epoch.
const MONDAY_BEFORE_EPOCH: u64 = 3 * Period::DAY.as_micros();

impl WindowPlan {
    /// The most limits that are decided in one pass.
    pub(crate) const MOST: usize = Packed::PLACES;

    pub(crate) fn of(limits: &[NamedLimit]) -> Option<Self> {
        if limits.len() > Self::MOST {
            return None;
        }
        let mut plan = Self {
            count: limits.len(),
            max: [u64::MAX; Self::MOST],
            taken: Pairs::of([0; Self::MOST]),
            places: Pairs::of([0; Self::MOST]),
            micros: [0; Self::MOST],
            at_least: [0; Self::MOST],
            states: [0; Self::MOST],
            grid: [Grid::None; Self::MOST],
            shortest: None,
        };
        let (mut taken, mut places) = ([0; Self::MOST], [0; Self::MOST]);
        for (place, named) in limits.iter().enumerate() {
            let limit = named.limit();
            plan.grid[place] = grid(limit)?;
            plan.max[place] = limit.max();
            let room = limit.max().saturating_sub(1).min(i32::MAX as u64);
            (taken[place], places[place]) = (i32::MAX as u32 - room as u32, u32::MAX);
            plan.micros[place] = limit.period().as_micros();
            plan.at_least[place] = match plan.grid[place] {
                Grid::None => plan.micros[place],
                Grid::Shifted(_) | Grid::Month => 0,
            };
            plan.states[place] = named.state().bits();
        }
        (plan.taken, plan.places) = (Pairs::of(taken), Pairs::of(places));
        if plan.grid.iter().all(|grid| *grid == Grid::None) {
            let shortest = (0..limits.len()).min_by_key(|place| plan.micros[*place]);
            plan.shortest = shortest.map(|place| place as u8);
        }
        Some(plan)
    }

    /// Where the window at `place` ends, as it is kept, and what is used in it; both 0 if none is open.
    #[inline]
    pub(crate) const fn window(&self, states: &Packed, place: usize, at: Moment) -> (u64, u64) {
        let since = states.time(place);
        // 0 is no window.
        if since == 0 {
            return (0, 0);
        }
        let end = self.end(place, since, at);
        if at.kept < end { (end, states.number(place)) } else { (0, 0) }
    }

    /// Returns the end of the window whose first charge was at `since`, in the form in which it is stored.
    #[inline]
    pub(crate) const fn end(&self, place: usize, since: u64, at: Moment) -> u64 {
        // The first charge in µs since the epoch; `since` is not after `at`.
        let first = at.now - (at.kept - since);
        match self.grid[place] {
            Grid::None => since + self.micros[place],
            Grid::Shifted(shift) => {
                let period = self.micros[place];
                since + period - (first + shift) % period
            }
            Grid::Month => {
                let (begin, length) = calendar_month(first);
                since + length - (first - begin)
            }
        }
    }
}

/// On which grid windows begin; none if it is not one of those.
fn grid(limit: Limit) -> Option<Grid> {
    match limit.algorithm() {
        _ if limit.is_shadow() || limit.counts_requests() => None,
        Algorithm::FixedWindow { anchor } => Some(Grid::of(limit.period(), anchor)),
        _ => None,
    }
}
