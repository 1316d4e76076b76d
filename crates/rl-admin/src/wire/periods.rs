use std::sync::LazyLock;
use std::time::Duration;

use rl_core::{Decision, FailureKind, MAX_UNITS, Policy};
use rl_records::{CallLimit, CallLimits, CallPeriod, Limits};
use serde::Serialize;
use utoipa::ToSchema;

use super::limit_usage::whole_seconds;

/// One value for each of the six periods.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Periods<T> {
    per_second: T,
    per_minute: T,
    per_hour: T,
    per_day: T,
    per_week: T,
    per_month: T,
}

impl<T> Periods<T> {
    fn of(value: impl Fn(CallPeriod) -> T) -> Self {
        Self {
            per_second: value(CallPeriod::Second),
            per_minute: value(CallPeriod::Minute),
            per_hour: value(CallPeriod::Hour),
            per_day: value(CallPeriod::Day),
            per_week: value(CallPeriod::Week),
            per_month: value(CallPeriod::Month),
        }
    }

    const fn get(&self, period: CallPeriod) -> &T {
        match period {
            CallPeriod::Second => &self.per_second,
            CallPeriod::Minute => &self.per_minute,
            CallPeriod::Hour => &self.per_hour,
            CallPeriod::Day => &self.per_day,
            CallPeriod::Week => &self.per_week,
            CallPeriod::Month => &self.per_month,
        }
    }
}

/// Returns a policy with all six periods. A usage under this policy has the counters of all
/// periods, even of those in which the consumer has no limit.
pub(crate) fn all_periods() -> &'static Policy {
    static ALL: LazyLock<Policy> = LazyLock::new(|| {
        let max = CallLimit::AtMost(MAX_UNITS);
        let limits = CallPeriod::ALL.into_iter();
        let limits = limits.fold(CallLimits::UNLIMITED, |limits, period| limits.with(period, max));
        Limits::from(limits).policy().expect("there are six limits")
    });
    &ALL
}

/// Returns a policy with one period. A usage under this policy has only the counter of that period.
pub(crate) fn one_period(period: CallPeriod) -> Policy {
    let limits = CallLimits::UNLIMITED.with(period, CallLimit::AtMost(MAX_UNITS));
    Limits::from(limits).policy().expect("there is a limit")
}

/// Returns the calls in the open window of a period, and the time until it ends. Returns `None` if
/// no window is open.
fn window(usage: &Decision, period: CallPeriod) -> Option<(u64, Duration)> {
    let mut limits = usage.limits();
    let limit = limits.find(|limit| limit.limit().period() == period.period())?;
    limit.is_active().then(|| (limit.used(), limit.reset_after()))
}

/// The calls in an open window.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct CallState {
    /// The number of calls.
    calls_made: u64,
    /// The seconds until the window ends, rounded up.
    reset_in_seconds: u64,
}

impl CallState {
    /// Returns the open windows of these counters. Returns `None` if no counter can be reached.
    pub(crate) fn of_each(counters: &CallCounters) -> Option<Periods<Option<Self>>> {
        let is_unavailable = |period| counters.get(period).status == Status::RedisUnavailable;
        if CallPeriod::ALL.into_iter().all(is_unavailable) {
            return None;
        }
        Some(Periods::of(|period| {
            let CallCounter { calls_made, reset_in_seconds, status } = *counters.get(period);
            let is_open = status == Status::Active;
            let (calls_made, reset_in_seconds) = calls_made.zip(reset_in_seconds)?;
            is_open.then_some(Self { calls_made, reset_in_seconds })
        }))
    }
}

/// The counter of a period.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct CallCounter {
    /// The calls in the open window; `null` if unknown.
    calls_made: Option<u64>,
    /// The seconds until the window ends, rounded up; `null` if unknown.
    reset_in_seconds: Option<u64>,
    status: Status,
}

/// The status of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Status {
    /// A window is open.
    Active,
    /// No call has been counted since the last window ended.
    NoCounter,
    /// The stored value is damaged or is not a counter. A reset repairs it.
    CounterDamaged,
    /// The counters cannot be reached.
    RedisUnavailable,
    /// No rule counts the consumer.
    NotCounted,
}

/// The counters of all periods.
pub(crate) type CallCounters = Periods<CallCounter>;

/// The counters of a consumer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ConsumerCounters {
    #[serde(flatten)]
    pub(crate) counters: CallCounters,
    /// The rule of these counters: the one that applies the records, or else the first that counts
    /// the consumer. `null` if the limiter has no rules, or none that counts the consumer.
    #[schema(required = true, example = "consumers")]
    pub(crate) rule: Option<String>,
    /// The counters of the other rules that count the consumer.
    pub(crate) other_rules: Vec<RuleCounters>,
    /// A restriction that applies to this answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// The counters of a consumer under one rule.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RuleCounters {
    pub(crate) rule: String,
    #[serde(flatten)]
    pub(crate) counters: CallCounters,
}

impl ConsumerCounters {
    /// Creates the counters of a consumer that no rule counts.
    pub(crate) fn not_counted(note: Option<String>) -> Self {
        let counter =
            CallCounter { calls_made: None, reset_in_seconds: None, status: Status::NotCounted };
        let counters = Periods::of(|_| counter.clone());
        Self { counters, rule: None, other_rules: Vec::new(), note }
    }
}

impl CallCounter {
    /// Returns whether a usage contains a limit of this period.
    pub(crate) fn has_limit(usage: &Decision, period: CallPeriod) -> bool {
        usage.limits().any(|limit| limit.limit().period() == period.period())
    }

    /// Creates the counters from the usage of each period, under [`all_periods`] or [`one_period`].
    ///
    /// If `usage` returns an error for a period, the status of that counter says why.
    pub(crate) fn of_each<'a>(
        usage: impl Fn(CallPeriod) -> Result<&'a Decision, FailureKind>,
    ) -> CallCounters {
        Periods::of(|period| {
            let (window, status) = match usage(period).map(|usage| window(usage, period)) {
                Ok(Some(window)) => (Some(window), Status::Active),
                Ok(None) => (Some((0, Duration::ZERO)), Status::NoCounter),
                Err(FailureKind::Corrupt) => (None, Status::CounterDamaged),
                Err(_) => (None, Status::RedisUnavailable),
            };
            Self {
                calls_made: window.map(|(calls, _)| calls),
                reset_in_seconds: window.map(|(_, left)| whole_seconds(left)),
                status,
            }
        })
    }
}
