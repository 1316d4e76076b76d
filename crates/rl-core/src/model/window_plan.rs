use super::{Algorithm, Anchor, Limit, NamedLimit, Period};

/// Limits that are decided together in one pass, as plain numbers beside each other: fixed windows, all
/// in force, that count units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowPlan {
    pub(crate) count: usize,
    /// The most units of a window.
    pub(crate) max: [u64; WindowPlan::MOST],
    /// How long a window lasts, in µs; of a calendar month, not quite.
    pub(crate) micros: [u64; WindowPlan::MOST],
    /// What one unit is of a limit: 2^63 / max.
    pub(crate) unit: [u64; WindowPlan::MOST],
    /// The states that the limits count in: [`StateId::bits`].
    pub(crate) states: [u64; WindowPlan::MOST],
    pub(crate) grid: [Grid; WindowPlan::MOST],
    /// Longer than any of those on the clock: the first may have begun before the epoch.
    pub(crate) begin: u64,
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
    pub(crate) const MOST: usize = 6;

    pub(super) fn of(limits: &[NamedLimit]) -> Option<Self> {
        if limits.len() > Self::MOST {
            return None;
        }
        let mut plan = Self {
            count: limits.len(),
            max: [0; Self::MOST],
            micros: [0; Self::MOST],
            unit: [0; Self::MOST],
            states: [0; Self::MOST],
            grid: [Grid::None; Self::MOST],
            begin: 0,
        };
        for (place, named) in limits.iter().enumerate() {
            let limit = named.limit();
            plan.grid[place] = grid(limit)?;
            plan.max[place] = limit.max();
            plan.micros[place] = limit.period().as_micros();
            plan.unit[place] = named.unit();
            plan.states[place] = named.state().bits();
            if plan.grid[place] != Grid::None {
                // No calendar month is as long as two of thirty days.
                plan.begin = plan.begin.max(2 * plan.micros[place]);
            }
        }
        Some(plan)
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
