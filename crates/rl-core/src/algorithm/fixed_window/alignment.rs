//! Computes where fixed windows begin and end on the clock.

use crate::algorithm::divisor::Divisor;
use crate::model::{Anchor, Period};
use crate::time::calendar_month;

/// The points in time at which fixed windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alignment {
    /// A window begins with its first charge.
    FirstCharge,
    /// Windows begin at multiples of the period, counted from `shift` µs before the epoch.
    Multiples { shift: u64 },
    /// Windows begin on the first day of each calendar month.
    CalendarMonth,
}

/// The time from the beginning of a week to the epoch. 1970-01-01 was a Thursday, so its week began
/// three days earlier.
const MONDAY_BEFORE_EPOCH: u64 = 3 * Period::DAY.as_micros();

impl Alignment {
    /// Returns the alignment of windows of `period` that begin at `anchor`.
    pub(super) fn new(period: Period, anchor: Anchor) -> Self {
        let is_whole_weeks = period.as_micros().is_multiple_of(Period::WEEK.as_micros());
        match anchor {
            Anchor::FirstRequest => Self::FirstCharge,
            Anchor::Clock if period == Period::MONTH => Self::CalendarMonth,
            Anchor::Clock if is_whole_weeks => Self::Multiples { shift: MONDAY_BEFORE_EPOCH },
            Anchor::Clock => Self::Multiples { shift: 0 },
        }
    }

    /// Returns the time in µs for which a window stays open after its first charge at
    /// `first_charge` µs since the epoch.
    #[inline]
    pub(super) const fn open_for(self, period: Divisor, first_charge: u64) -> u64 {
        match self {
            Self::FirstCharge => period.get(),
            Self::Multiples { shift } => period.get() - period.remainder(first_charge + shift),
            Self::CalendarMonth => open_for_rest_of_month(first_charge),
        }
    }
}

/// Returns the time until the end of the calendar month. Not inlined, because it takes a hundred
/// instructions.
#[inline(never)]
const fn open_for_rest_of_month(first_charge: u64) -> u64 {
    let (begin, length) = calendar_month(first_charge);
    length - (first_charge - begin)
}
