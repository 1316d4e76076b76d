//! One limit of a plan: its algorithm and constants, applied to its part of the states of a
//! subject.

use super::Counting;
use super::fixed_window::FixedWindow;
use super::gcra::Gcra;
use super::log::Log;
use super::sliding_log::SlidingLog;
use super::sliding_window::SlidingWindow;
use super::sliding_window_counter::SlidingWindowCounter;
use super::token_bucket::IntervalBucket;
use crate::model::{Algorithm, Limit, Outcome, Refill};
use crate::time::Timestamp;

/// The algorithm of a limit, with its constants.
#[derive(Clone, Copy, Debug)]
pub(super) enum LimitCounter {
    Window(FixedWindow),
    Buckets(SlidingWindow),
    TwoWindows(SlidingWindowCounter),
    Gcra(Gcra),
    IntervalBucket(IntervalBucket),
    Log(SlidingLog),
}

impl LimitCounter {
    pub(super) fn new(limit: Limit) -> Self {
        match limit.algorithm() {
            Algorithm::FixedWindow { anchor } => Self::Window(FixedWindow::new(limit, anchor)),
            Algorithm::SlidingWindow { precision } => {
                Self::Buckets(SlidingWindow::new(limit, precision))
            }
            Algorithm::SlidingWindowCounter => Self::TwoWindows(SlidingWindowCounter::new(limit)),
            Algorithm::Gcra { .. } | Algorithm::TokenBucket { refill: Refill::Greedy, .. } => {
                Self::Gcra(Gcra::new(limit))
            }
            Algorithm::TokenBucket { refill: Refill::Interval, .. } => {
                Self::IntervalBucket(IntervalBucket::new(limit))
            }
            Algorithm::SlidingLog | Algorithm::Concurrency => Self::Log(SlidingLog::new(limit)),
        }
    }

    /// Returns the number of cells, which is even.
    pub(super) fn cells(self) -> usize {
        match self {
            Self::Window(_) => 2,
            Self::Buckets(window) => window.cells().next_multiple_of(2),
            Self::TwoWindows(_) | Self::Gcra(_) | Self::IntervalBucket(_) => 4,
            Self::Log(_) => 0,
        }
    }
}

/// The states of a subject under all limits of a policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubjectStates<'a> {
    pub(crate) cells: &'a [u64],
    pub(crate) logs: &'a [Log],
}

/// The states of a subject, to change.
#[derive(Debug)]
pub(crate) struct SubjectStatesMut<'a> {
    pub(crate) cells: &'a mut [u64],
    pub(crate) logs: &'a mut [Log],
}

impl SubjectStatesMut<'_> {
    /// Returns the states to read.
    pub(crate) const fn read(&self) -> SubjectStates<'_> {
        SubjectStates { cells: self.cells, logs: self.logs }
    }
}

/// One limit of a plan.
#[derive(Debug)]
pub(crate) struct PlanStep {
    pub(super) counter: LimitCounter,
    limit: Limit,
    /// The range of the step's cells. For a log, `begin` is the index of the log.
    begin: usize,
    end: usize,
}

/// Calls `$method` of a step's algorithm on the cells or the log of the step.
macro_rules! counting {
    (@ $step:expr, $cells:expr, $log:expr, $method:ident($($argument:expr),*)) => {
        match &$step.counter {
            LimitCounter::Window(window) => window.$method($cells, $($argument),*),
            LimitCounter::Gcra(gcra) => gcra.$method($cells, $($argument),*),
            LimitCounter::TwoWindows(windows) => windows.$method($cells, $($argument),*),
            LimitCounter::IntervalBucket(bucket) => bucket.$method($cells, $($argument),*),
            LimitCounter::Buckets(window) => window.$method($cells, $($argument),*),
            LimitCounter::Log(log) => log.$method($log, $($argument),*),
        }
    };
    ($step:expr, mut $states:expr, $($call:tt)*) => {
        counting!(
            @ $step,
            &mut $states.cells[$step.range()],
            &mut $states.logs[$step.begin],
            $($call)*
        )
    };
    ($step:expr, $states:expr, $($call:tt)*) => {
        counting!(@ $step, &$states.cells[$step.range()], &$states.logs[$step.begin], $($call)*)
    };
}

impl PlanStep {
    /// Creates the step of `limit`. Assigns the next cells or the next log to it, and advances
    /// `cells` or `logs` past them.
    pub(super) fn new(limit: Limit, cells: &mut usize, logs: &mut usize) -> Self {
        let counter = LimitCounter::new(limit);
        let (next, count) = match counter {
            LimitCounter::Log(_) => (logs, 1),
            _ => (cells, counter.cells()),
        };
        let begin = *next;
        *next += count;
        Self { counter, limit, begin, end: *next }
    }

    /// Returns the limit.
    pub(crate) const fn limit(&self) -> Limit {
        self.limit
    }

    /// Returns whether the state is a log.
    pub(crate) const fn is_log(&self) -> bool {
        matches!(self.counter, LimitCounter::Log(_))
    }

    /// Returns the range of the step's cells, or of its log.
    pub(crate) const fn range(&self) -> std::ops::Range<usize> {
        self.begin..self.end
    }

    /// Returns the units that the limit can grant at `now`, or the requests if it counts requests.
    #[inline(always)]
    pub(crate) fn available(&self, states: SubjectStates<'_>, now: Timestamp) -> u64 {
        counting!(self, states, available(now))
    }

    /// Charges `units` at `now`, even if fewer are available. Returns the limit's status
    /// afterwards.
    #[inline(always)]
    pub(super) fn charge(
        &self,
        states: &mut SubjectStatesMut<'_>,
        now: Timestamp,
        units: u64,
    ) -> Outcome {
        let units = self.limit.units(units);
        counting!(self, mut states, charge(now, units))
    }

    /// Returns the status of the limit for a request that requires `required` units.
    pub(crate) fn outcome(
        &self,
        states: SubjectStates<'_>,
        now: Timestamp,
        required: u64,
    ) -> Outcome {
        let required = self.limit.units(required);
        counting!(self, states, outcome(now, required))
    }

    /// Returns the time from which the state can be removed.
    pub(crate) fn expires(&self, states: SubjectStates<'_>) -> Timestamp {
        if self.is_unused(states) { Timestamp::EPOCH } else { counting!(self, states, expires()) }
    }

    /// Returns whether the state equals that of a limit that was never used.
    pub(crate) fn is_unused(&self, states: SubjectStates<'_>) -> bool {
        if self.is_log() {
            states.logs[self.begin].len() == 0
        } else {
            states.cells[self.range()].iter().all(|cell| *cell == 0)
        }
    }

    /// Refunds the `units` that were charged at `charged`, as far as they still count at `now`.
    ///
    /// A charge later than `now` is ignored. `now` is never before the last change of the state, so
    /// the state does not contain the charge: the clock has stepped back, and the state with the
    /// charge was lost or reset.
    pub(crate) fn refund(
        &self,
        states: &mut SubjectStatesMut<'_>,
        now: Timestamp,
        charged: Timestamp,
        units: u64,
    ) {
        if units > 0 && charged <= now {
            let units = self.limit.units(units);
            counting!(self, mut states, refund(now, charged, units));
        }
    }

    /// Resets the state.
    pub(crate) fn clear(&self, states: &mut SubjectStatesMut<'_>) {
        if self.is_log() {
            states.logs[self.begin] = Log::default();
        } else {
            states.cells[self.range()].fill(0);
        }
    }

    /// Returns how many of the `units` charged at `charged` a concurrency limit still counts at
    /// `now`. Returns 0 for other limits.
    pub(crate) fn held(&self, log: &Log, now: Timestamp, charged: Timestamp, units: u64) -> u64 {
        match &self.counter {
            LimitCounter::Log(places) if self.limit.holds_permits() => {
                places.held(log, now, charged, self.limit.units(units))
            }
            _ => 0,
        }
    }

    /// Renews the lease of the `units` charged at `charged`, as far as a concurrency limit still
    /// counts them. Their time of charge becomes `now`. Other limits have no lease to renew.
    pub(crate) fn renew(
        &self,
        states: &mut SubjectStatesMut<'_>,
        now: Timestamp,
        charged: Timestamp,
        units: u64,
    ) {
        if let LimitCounter::Log(places) = &self.counter
            && self.limit.holds_permits()
        {
            let log = &mut states.logs[self.begin];
            places.renew(log, now, charged, self.limit.units(units));
        }
    }
}
