//! The kinds of limits that scripts distinguish.

use smallvec::SmallVec;

use crate::model::{Algorithm, Anchor, Limit, Period, Refill};

/// The algorithm of a limit in scripts. The numbers are those of `lib/algorithms.lua`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    FixedWindow = 0,
    ClockWindow = 1,
    /// A fixed window on the clock that is a calendar month.
    MonthWindow = 2,
    WindowCounter = 3,
    SlidingWindow = 4,
    /// GCRA, or a token bucket with greedy refill.
    Gcra = 5,
    IntervalBucket = 6,
    SlidingLog = 7,
    Concurrency = 8,
}

impl Kind {
    /// All kinds, in the order of their numbers.
    pub(crate) const ALL: [Self; 9] = [
        Self::FixedWindow,
        Self::ClockWindow,
        Self::MonthWindow,
        Self::WindowCounter,
        Self::SlidingWindow,
        Self::Gcra,
        Self::IntervalBucket,
        Self::SlidingLog,
        Self::Concurrency,
    ];

    pub(crate) fn of(limit: Limit) -> Self {
        match limit.algorithm() {
            Algorithm::FixedWindow { anchor: Anchor::FirstRequest } => Self::FixedWindow,
            Algorithm::FixedWindow { .. } if limit.period() == Period::MONTH => Self::MonthWindow,
            Algorithm::FixedWindow { .. } => Self::ClockWindow,
            Algorithm::SlidingWindowCounter => Self::WindowCounter,
            Algorithm::SlidingWindow { .. } => Self::SlidingWindow,
            Algorithm::Gcra { .. } | Algorithm::TokenBucket { refill: Refill::Greedy, .. } => {
                Self::Gcra
            }
            Algorithm::TokenBucket { refill: Refill::Interval, .. } => Self::IntervalBucket,
            Algorithm::SlidingLog => Self::SlidingLog,
            Algorithm::Concurrency => Self::Concurrency,
        }
    }

    /// Returns whether the limit is a log, whose entries have a key of their own.
    pub(crate) const fn is_log(self) -> bool {
        matches!(self, Self::SlidingLog | Self::Concurrency)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::ClockWindow => "clock_window",
            Self::MonthWindow => "month_window",
            Self::WindowCounter => "sliding_window_counter",
            Self::SlidingWindow => "sliding_window",
            Self::Gcra => "gcra",
            Self::IntervalBucket => "interval_bucket",
            Self::SlidingLog => "sliding_log",
            Self::Concurrency => "concurrency",
        }
    }
}

/// The properties of a limit that the text of a script depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LimitKind {
    pub(crate) kind: Kind,
    pub(crate) counts_requests: bool,
}

impl LimitKind {
    pub(crate) fn of(limit: Limit) -> Self {
        Self { kind: Kind::of(limit), counts_requests: limit.counts_requests() }
    }
}

/// The properties of a policy that the text of a script depends on: the kinds of its limits, in the
/// order of the scripts.
pub(crate) type ScriptShape = SmallVec<[LimitKind; 16]>;

/// Returns the name of the script with this purpose for a shape.
pub(crate) fn script_name(purpose: &str, shape: &[LimitKind]) -> String {
    let mut name = purpose.to_owned();
    for kinds in shape.chunk_by(|one, next| one == next) {
        let LimitKind { kind, counts_requests } = kinds[0];
        let requests = if counts_requests { ":requests" } else { "" };
        name.push_str(&format!(" {}*{}{requests}", kinds.len(), kind.name()));
    }
    name
}
