//! Header fields and their values.
//!
//! Names of limits need no escaping in lists: a [`Policy`](crate::Policy) accepts only characters
//! that are valid in a structured string.

use std::time::Duration;

use super::value::{FieldValue, ValueBuffer, seconds_ceil};
use crate::decision::{Decision, LimitStatus, Origin, RetryAfter};
use crate::model::{Algorithm, Refill};

/// The content of a header field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field {
    /// The maximum of the governing limit.
    Max,
    /// The remaining units.
    Remaining,
    /// The used units.
    Used,
    /// The seconds until the reset.
    ResetAfter,
    /// The time of the reset, in seconds since the epoch.
    ResetAt,
    /// The whole period in milliseconds.
    IntervalMillis,
    /// A constant text.
    Fixed(&'static str),
    /// `limit=100, remaining=73, reset=42`.
    Dictionary,
    /// `100;w=60` for each limit.
    Quotas,
    /// `"default";q=100;w=60` for each limit.
    NamedQuotas,
    /// `"default";r=73;t=42` for each limit.
    Statuses,
    /// `100` for the governing limit, then `100;w=60` for each.
    MaxThenQuotas,
    /// `100` for the governing limit, then `100;w=60;name="default"` for each.
    MaxThenCommentedQuotas,
}

impl Field {
    /// Returns whether several lines of this field mean the same as one line with all values.
    pub(super) const fn is_list(self) -> bool {
        matches!(self, Self::Quotas | Self::NamedQuotas | Self::Statuses)
    }

    /// Returns whether the value of the field is known.
    pub(super) fn is_known(self, input: &FieldInput<'_>) -> bool {
        match self {
            Self::Remaining | Self::Used => input.knows_counts(),
            Self::ResetAfter | Self::ResetAt | Self::IntervalMillis => input.knows_reset(),
            // The dictionary is invalid if any of its members (limit, remaining, reset) is missing.
            Self::Dictionary => input.knows_counts() && input.knows_reset(),
            Self::Statuses => input.statuses().next().is_some(),
            _ => true,
        }
    }

    /// Returns the value of the field. Text that depends on the decision is written to `value`.
    pub(super) fn value<'v>(
        self,
        input: &FieldInput<'_>,
        value: &'v mut ValueBuffer,
    ) -> FieldValue<'v> {
        let limit = input.governing;
        match self {
            Self::Max => return value.number(limit.max()),
            Self::Remaining => return value.number(limit.remaining()),
            Self::Used => return value.number(limit.used()),
            Self::ResetAfter => return value.number(input.reset_after()),
            Self::ResetAt => return value.number(input.reset_at()),
            Self::IntervalMillis => return value.number(limit.limit().period().as_millis()),
            Self::Fixed(text) => return FieldValue::Static(text),
            Self::Dictionary => {
                value.push("limit=");
                value.push_number(limit.max());
                value.push(", remaining=");
                value.push_number(limit.remaining());
                value.push(", reset=");
                value.push_number(input.reset_after());
            }
            Self::Quotas => join(input.listed(), quota, value),
            Self::NamedQuotas => join(input.listed(), named_quota, value),
            Self::Statuses => join(input.statuses(), status, value),
            Self::MaxThenQuotas => {
                value.push_number(limit.max());
                value.push(", ");
                join(input.listed(), quota, value);
            }
            Self::MaxThenCommentedQuotas => {
                value.push_number(limit.max());
                value.push(", ");
                join(input.listed(), commented_quota, value);
            }
        }
        value.written()
    }
}

/// The input of all fields of one response.
pub(super) struct FieldInput<'a> {
    decision: &'a Decision,
    governing: LimitStatus<'a>,
    governing_only: bool,
}

impl<'a> FieldInput<'a> {
    pub(super) const fn new(
        decision: &'a Decision,
        governing: LimitStatus<'a>,
        governing_only: bool,
    ) -> Self {
        Self { decision, governing, governing_only }
    }

    /// Returns the limits that lists describe.
    fn listed(&self) -> impl Iterator<Item = LimitStatus<'a>> {
        let only = self.governing_only.then(|| self.governing.name());
        self.decision.enforced().filter(move |limit| only.is_none_or(|name| name == limit.name()))
    }

    /// Returns the limits whose remaining units are known. These are all limits if counters were
    /// read, and only the limits of 0 if the policy alone denied the request.
    fn statuses(&self) -> impl Iterator<Item = LimitStatus<'a>> {
        let all = self.decision.origin() != Origin::Policy;
        self.listed().filter(move |limit| all || limit.max() == 0)
    }

    fn knows_counts(&self) -> bool {
        self.decision.origin() != Origin::Policy || self.governing.max() == 0
    }

    /// Returns whether the time of the reset is known.
    ///
    /// It is unknown if no counter was read, and for a limit of 0. But if a block has an end, this
    /// end is the reset.
    fn knows_reset(&self) -> bool {
        let is_counted = self.decision.origin() != Origin::Policy && self.governing.max() > 0;
        self.decision.is_allowed() || is_counted || !self.governing.reset_after().is_zero()
    }

    /// Returns the time to the reset of the governing limit. It is never zero for a denial, because
    /// a client that reads 0 would retry immediately.
    fn reset(&self) -> Duration {
        let least = if self.decision.is_allowed() { 0 } else { 1 };
        self.governing.reset_after().max(Duration::from_micros(least))
    }

    fn reset_after(&self) -> u64 {
        seconds_ceil(self.reset())
    }

    fn reset_at(&self) -> u64 {
        let micros = u64::try_from(self.reset().as_micros()).unwrap_or(u64::MAX);
        self.decision.at().plus_micros(micros).as_secs_ceil()
    }
}

/// Writes an `item` for each of `limits`, separated by commas.
fn join<'a>(
    limits: impl Iterator<Item = LimitStatus<'a>>,
    item: fn(LimitStatus<'_>, &mut ValueBuffer),
    value: &mut ValueBuffer,
) {
    for (i, limit) in limits.enumerate() {
        if i != 0 {
            value.push(", ");
        }
        item(limit, value);
    }
}

/// Writes `100;w=60`.
fn quota(limit: LimitStatus<'_>, value: &mut ValueBuffer) {
    value.push_number(limit.max());
    window(limit, value);
}

/// Writes `100;w=60;name="default"`.
fn commented_quota(limit: LimitStatus<'_>, value: &mut ValueBuffer) {
    quota(limit, value);
    value.push(";name=");
    name(limit, value);
}

/// Writes `"default";q=100;w=60`, or `"concurrency";q=20;qu="concurrent-requests"`.
///
/// For a limit that does not count requests, its unit is added, such as `qu="tokens"`.
fn named_quota(limit: LimitStatus<'_>, value: &mut ValueBuffer) {
    name(limit, value);
    value.push(";q=");
    quota(limit, value);
    if is_concurrency_limit(limit) {
        value.push(";qu=\"concurrent-requests\"");
    } else if limit.limit().unit() != "requests" {
        // The name of a unit contains no character that needs an escape.
        value.push(";qu=\"");
        value.push(limit.limit().unit());
        value.push("\"");
    }
}

/// Writes `"default";r=73;t=42`.
fn status(limit: LimitStatus<'_>, value: &mut ValueBuffer) {
    name(limit, value);
    value.push(";r=");
    value.push_number(limit.remaining());
    if let Some(seconds) = effective_window(limit) {
        value.push(";t=");
        value.push_number(seconds);
    }
}

/// Writes the name of a limit in quotes.
fn name(limit: LimitStatus<'_>, value: &mut ValueBuffer) {
    value.push("\"");
    value.push(limit.name());
    value.push("\"");
}

/// Returns whether units come back at the end of requests, rather than after a time.
fn is_concurrency_limit(limit: LimitStatus<'_>) -> bool {
    limit.limit().algorithm() == Algorithm::Concurrency
}

/// Writes `;w=60`, or nothing if the drafts cannot express the period.
///
/// If a limit allows a burst, the burst is the quota, and the window is the time that refills it.
fn window(limit: LimitStatus<'_>, value: &mut ValueBuffer) {
    let quota = limit.max();
    let max = limit.limit().max();
    let millis = limit.limit().period().as_millis();
    let period = millis.is_multiple_of(1_000).then_some(millis / 1_000);
    let seconds = match limit.limit().algorithm() {
        Algorithm::Gcra { .. } | Algorithm::TokenBucket { .. } if max > 0 => {
            Some(share(quota, millis, max).div_ceil(1_000))
        }
        Algorithm::Concurrency => None,
        Algorithm::Gcra { .. }
        | Algorithm::TokenBucket { .. }
        | Algorithm::FixedWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::SlidingWindow { .. }
        | Algorithm::SlidingWindowCounter => period,
    };
    if let Some(seconds) = seconds {
        value.push(";w=");
        value.push_number(seconds);
    }
}

/// Returns the seconds for which a client should use at most the remaining units.
///
/// For a limit that denies, these are the seconds to wait. `Retry-After` is the longest of these
/// waits, so it is never shorter than any of them.
///
/// Returns `None` for an unused limit and for a limit of 0. Also returns `None` for a concurrency
/// limit, whose units come back when requests end.
fn effective_window(limit: LimitStatus<'_>) -> Option<u64> {
    let span = match limit.retry_after() {
        _ if limit.max() == 0 || is_concurrency_limit(limit) => Duration::ZERO,
        RetryAfter::In(wait) => wait,
        RetryAfter::Now | RetryAfter::Never => next_unit(limit),
    };
    Some(seconds_ceil(span)).filter(|seconds| *seconds != 0)
}

/// Returns the time until more units are available: until the end of a window, or the next token of
/// a bucket.
fn next_unit(limit: LimitStatus<'_>) -> Duration {
    let max = limit.limit().max();
    let period = limit.limit().period().as_micros();
    let later = match limit.limit().algorithm() {
        // Used units come back one by one: the last one at the reset, and the next one `later` µs
        // before the reset.
        Algorithm::Gcra { .. } | Algorithm::TokenBucket { refill: Refill::Greedy, .. } => {
            share(limit.used().saturating_sub(1), period, max)
        }
        Algorithm::TokenBucket { refill: Refill::Interval, .. } => {
            limit.used().div_ceil(max).saturating_sub(1).saturating_mul(period)
        }
        Algorithm::FixedWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::SlidingWindow { .. }
        | Algorithm::SlidingWindowCounter
        | Algorithm::Concurrency => 0,
    };
    limit.reset_after().saturating_sub(Duration::from_micros(later))
}

/// Returns units × span / max, rounded down.
fn share(units: u64, span: u64, max: u64) -> u64 {
    let share = u128::from(units) * u128::from(span) / u128::from(max);
    u64::try_from(share).unwrap_or(u64::MAX)
}
