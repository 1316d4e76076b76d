//! Header fields and their values.
//!
//! Names of limits need no escaping in lists: a [`Policy`](crate::Policy) accepts only characters
//! that are valid in a structured string.

use std::time::Duration;

use super::field_name::FieldName;
use super::lines::LineWriter;
use crate::decision::{Decision, LimitStatus, RetryAfter, seconds_ceil};
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
    /// Adds the field called `name` to `lines`, if its value is known. A list of many limits has
    /// several lines.
    #[inline]
    pub(super) fn write(&self, name: FieldName, input: &FieldInput<'_>, lines: &mut LineWriter) {
        let limit = input.governing;
        let max = || limit.configured().capacity();
        let number = match self {
            Self::Max => max(),
            Self::Remaining | Self::Used if !input.knows_counts() => return,
            Self::Remaining => limit.remaining(),
            Self::Used => limit.used(),
            Self::ResetAfter | Self::ResetAt | Self::IntervalMillis if !input.knows_reset() => {
                return;
            }
            Self::ResetAfter => input.reset_after(),
            Self::ResetAt => input.reset_at(),
            Self::IntervalMillis => limit.limit().period().as_millis(),
            Self::Fixed(text) => return lines.add_text(name, text),
            // The dictionary is invalid if any of its members (limit, remaining, reset) is missing.
            Self::Dictionary if !(input.knows_counts() && input.knows_reset()) => return,
            Self::Dictionary => {
                lines.push("limit=");
                lines.push_number(max());
                lines.push(", remaining=");
                lines.push_number(limit.remaining());
                lines.push(", reset=");
                lines.push_number(input.reset_after());
                return lines.end_line(name, false);
            }
            Self::Quotas => return input.join(name, input.listed(), quota, lines),
            Self::NamedQuotas => return input.join(name, input.listed(), named_quota, lines),
            Self::Statuses => return input.join(name, input.statuses(), status, lines),
            Self::MaxThenQuotas | Self::MaxThenCommentedQuotas => {
                lines.push_number(max());
                for limit in input.listed().filter(|limit| input.is_of_governing_part(limit)) {
                    lines.push(", ");
                    quota(limit, input.parameters, lines);
                    if matches!(self, Self::MaxThenCommentedQuotas) {
                        lines.push(";name=");
                        push_name(limit, lines);
                    }
                }
                return lines.end_line(name, false);
            }
        };
        lines.add_number(name, number);
    }
}

/// The names of parameters in the lists of the IETF drafts. Each draft may rename them.
pub(super) struct Parameters {
    quota: &'static str,
    quota_unit: &'static str,
    window: &'static str,
    partition_key: &'static str,
    remaining: &'static str,
    reset: &'static str,
}

impl Parameters {
    /// The names of the drafts up to 11.
    pub(super) const DRAFT_11: Self = Self {
        quota: ";q=",
        quota_unit: ";qu=",
        window: ";w=",
        partition_key: ";pk=",
        remaining: ";r=",
        reset: ";t=",
    };
}

/// The input of all fields of one family in one response.
pub(super) struct FieldInput<'a> {
    decision: &'a Decision,
    governing: &'a LimitStatus<'a>,
    governing_only: bool,
    parameters: &'static Parameters,
}

impl<'a> FieldInput<'a> {
    pub(super) const fn new(
        decision: &'a Decision,
        governing: &'a LimitStatus<'a>,
        governing_only: bool,
        parameters: &'static Parameters,
    ) -> Self {
        Self { decision, governing, governing_only, parameters }
    }

    /// Returns the limits that lists describe.
    fn listed(&self) -> impl Iterator<Item = LimitStatus<'a>> {
        let (governing, lists_all) = (self.governing, !self.governing_only);
        let is_denied = !self.decision.is_allowed();
        let listed = self.decision.listed();
        listed.filter(move |limit| {
            // The body of a denial names the limits that deny, so the lists describe them.
            lists_all || governing.is_same_limit(limit) || is_denied && limit.is_over()
        })
    }

    /// Returns whether `limit` belongs to the part of the governing limit. Fields that are not
    /// lists describe only this part, so that they fit into one line.
    fn is_of_governing_part(&self, limit: &LimitStatus<'_>) -> bool {
        self.governing.is_of_same_part(limit)
    }

    /// Returns the limits whose remaining units are known. These are all limits if counters were
    /// read, and only the limits of 0 if the policy alone denied the request.
    fn statuses(&self) -> impl Iterator<Item = LimitStatus<'a>> {
        self.listed().filter(|limit| limit.is_known() || limit.max() == 0)
    }

    fn knows_counts(&self) -> bool {
        self.governing.is_known() || self.governing.max() == 0
    }

    /// Returns whether the time of the reset is known.
    ///
    /// It is unknown if no counter was read, and for a limit of 0. But if a block has an end, this
    /// end is the reset.
    fn knows_reset(&self) -> bool {
        let is_counted = self.governing.is_known() && self.governing.max() > 0;
        self.decision.is_allowed() || is_counted || !self.governing.reset_after().is_zero()
    }

    /// Returns `reset`, the time to the reset of the governing limit, as clients read it.
    ///
    /// It is never zero for a denial, because a client that reads 0 would retry immediately. For a
    /// denial by a concurrency limit it is at most the hint, because clients that wait for the
    /// reset would wait for the rest of a lease.
    fn shown(&self, reset: Duration) -> Duration {
        if self.decision.is_allowed() {
            return reset;
        }
        let hint = self.governing.limit().retry_hint().unwrap_or(Duration::MAX);
        reset.min(hint).max(Duration::from_micros(1))
    }

    fn reset_after(&self) -> u64 {
        seconds_ceil(self.shown(self.governing.reset_after()))
    }

    fn reset_at(&self) -> u64 {
        let reset = self.shown(self.governing.reset_after_decision());
        let micros = u64::try_from(reset.as_micros()).unwrap_or(u64::MAX);
        self.decision.at().plus_micros(micros).as_secs_ceil()
    }

    /// Writes an `item` for each of `limits`, separated by commas, as lines of the list `name`.
    fn join(
        &self,
        name: FieldName,
        limits: impl Iterator<Item = LimitStatus<'a>>,
        item: fn(LimitStatus<'_>, &Parameters, &mut LineWriter),
        lines: &mut LineWriter,
    ) {
        for limit in limits {
            lines.begin_item(name, "");
            item(limit, self.parameters, lines);
        }
        lines.end_list(name);
    }
}

/// Writes `100;w=60`.
fn quota(limit: LimitStatus<'_>, names: &Parameters, lines: &mut LineWriter) {
    lines.push_number(limit.configured().capacity());
    window(limit, names, lines);
}

/// Writes `"default";q=100;w=60`, or `"concurrency";q=20;qu="concurrent-requests"`.
///
/// For a limit that does not count requests, its unit is added, such as `qu="tokens"`.
fn named_quota(limit: LimitStatus<'_>, names: &Parameters, lines: &mut LineWriter) {
    push_name(limit, lines);
    lines.push(names.quota);
    quota(limit, names, lines);
    let unit = match is_concurrency_limit(limit) {
        true => "concurrent-requests",
        false => limit.named().limit_ref().unit(),
    };
    if unit != "requests" {
        // The name of a unit contains no character that needs an escape.
        lines.push(names.quota_unit);
        lines.push("\"");
        lines.push(unit);
        lines.push("\"");
    }
    partition_key(limit, names, lines);
}

/// Writes `"default";r=73;t=42`.
fn status(limit: LimitStatus<'_>, names: &Parameters, lines: &mut LineWriter) {
    push_name(limit, lines);
    lines.push(names.remaining);
    lines.push_number(limit.remaining());
    if let Some(seconds) = effective_window(limit) {
        lines.push(names.reset);
        lines.push_number(seconds);
    }
    partition_key(limit, names, lines);
}

/// Writes the public name of a limit in quotes.
fn push_name(limit: LimitStatus<'_>, lines: &mut LineWriter) {
    lines.push("\"");
    limit.public_name().texts().for_each(|text| lines.push(text));
    lines.push("\"");
}

/// Writes `;pk=:dHJpYWwxMjEzMjM=:` if clients may read a partition key.
fn partition_key(limit: LimitStatus<'_>, names: &Parameters, lines: &mut LineWriter) {
    if let Some(key) = limit.partition_key() {
        lines.push(names.partition_key);
        lines.push(":");
        lines.push_base64(key);
        lines.push(":");
    }
}

/// Returns whether units come back at the end of requests, rather than after a time.
fn is_concurrency_limit(limit: LimitStatus<'_>) -> bool {
    limit.limit().algorithm() == Algorithm::Concurrency
}

/// Writes `;w=60`, or nothing if the drafts cannot express the period.
///
/// If a limit allows a burst, the burst is the quota, and the window is the time that refills it.
fn window(limit: LimitStatus<'_>, names: &Parameters, lines: &mut LineWriter) {
    let limit = limit.configured();
    let (quota, max) = (limit.capacity(), limit.max());
    let millis = limit.period().as_millis();
    let period = millis.is_multiple_of(1_000).then_some(millis / 1_000);
    let seconds = match limit.algorithm() {
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
        lines.push(names.window);
        lines.push_number(seconds);
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
