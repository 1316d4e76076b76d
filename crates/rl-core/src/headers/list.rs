//! The items of the list fields that the IETF drafts define, each describing one limit.
//!
//! Names need no escaping: a [`Policy`](crate::Policy) takes only characters that may stand in a
//! structured string.

use std::time::Duration;

use super::text::{Text, seconds_ceil};
use crate::decision::{LimitStatus, RetryAfter};
use crate::model::{Algorithm, Refill};

/// Writes an `item` for each of `limits`, separated by commas.
pub(super) fn join<'a>(
    limits: impl Iterator<Item = LimitStatus<'a>>,
    item: fn(LimitStatus<'_>, &mut Text),
    text: &mut Text,
) {
    for (i, limit) in limits.enumerate() {
        if i != 0 {
            text.push(", ");
        }
        item(limit, text);
    }
}

/// `100;w=60`
pub(super) fn quota(limit: LimitStatus<'_>, text: &mut Text) {
    text.number(limit.max());
    window(limit, text);
}

/// `100;w=60;name="default"`
pub(super) fn commented_quota(limit: LimitStatus<'_>, text: &mut Text) {
    quota(limit, text);
    text.push(";name=");
    name(limit, text);
}

/// `"default";q=100;w=60`, with `qu="tokens"` if the limit names its units, or
/// `"concurrency";q=20;qu="concurrent-requests"`. Without `qu` clients read requests.
pub(super) fn named_quota(limit: LimitStatus<'_>, text: &mut Text) {
    name(limit, text);
    text.push(";q=");
    quota(limit, text);
    if is_of_concurrency(limit) {
        text.push(";qu=\"concurrent-requests\"");
    } else if limit.limit().unit() != "requests" {
        // A unit is made of characters that need no escape.
        text.push(";qu=\"");
        text.push(limit.limit().unit());
        text.push("\"");
    }
}

/// `"default";r=73;t=42`
pub(super) fn standing(limit: LimitStatus<'_>, text: &mut Text) {
    name(limit, text);
    text.push(";r=");
    text.number(limit.remaining());
    if let Some(seconds) = effective_window(limit) {
        text.push(";t=");
        text.number(seconds);
    }
}

fn name(limit: LimitStatus<'_>, text: &mut Text) {
    text.push("\"");
    text.push(limit.name());
    text.push("\"");
}

/// Whether units come back when requests end, not with time.
fn is_of_concurrency(limit: LimitStatus<'_>) -> bool {
    limit.limit().algorithm() == Algorithm::Concurrency
}

/// `;w=60`, or nothing for a period that the drafts cannot express, and where there is none.
///
/// Where a burst is allowed it is the quota, and the window is the time that refills it.
fn window(limit: LimitStatus<'_>, text: &mut Text) {
    let (quota, max, millis) =
        (limit.max(), limit.limit().max(), limit.limit().period().as_millis());
    let seconds = match limit.limit().algorithm() {
        Algorithm::Gcra { .. } | Algorithm::TokenBucket { .. } if max > 0 => {
            Some(share(quota, millis, max).div_ceil(1_000))
        }
        Algorithm::Concurrency => None,
        _ => millis.is_multiple_of(1_000).then_some(millis / 1_000),
    };
    if let Some(seconds) = seconds {
        text.push(";w=");
        text.number(seconds);
    }
}

/// The seconds in which no more than the remaining units are to be used.
///
/// Where the limit denies, its wait: `Retry-After` is the longest of these, so it is never earlier
/// than any. Nothing for a limit that is as if never used, that time does not change, or of
/// concurrency: its units come back as soon as requests end, and the lease is for those that never do.
fn effective_window(limit: LimitStatus<'_>) -> Option<u64> {
    let span = match limit.retry_after() {
        _ if limit.max() == 0 || is_of_concurrency(limit) => Duration::ZERO,
        RetryAfter::In(wait) => wait,
        RetryAfter::Now | RetryAfter::Never => next_unit(limit),
    };
    Some(seconds_ceil(span)).filter(|seconds| *seconds != 0)
}

/// When there will be more: at the end of a window, or with the next token of those that come one by
/// one.
fn next_unit(limit: LimitStatus<'_>) -> Duration {
    let (max, period) = (limit.limit().max(), limit.limit().period().as_micros());
    let later = match limit.limit().algorithm() {
        // The next unit comes first; the others that are used follow one by one.
        Algorithm::Gcra { .. } | Algorithm::TokenBucket { refill: Refill::Greedy, .. } => {
            share(limit.used().saturating_sub(1), period, max)
        }
        Algorithm::TokenBucket { refill: Refill::Interval, .. } => {
            limit.used().div_ceil(max).saturating_sub(1).saturating_mul(period)
        }
        _ => 0,
    };
    limit.reset_after().saturating_sub(Duration::from_micros(later))
}

/// units × span / max, rounded down.
fn share(units: u64, span: u64, max: u64) -> u64 {
    let share = u128::from(units) * u128::from(span) / u128::from(max);
    u64::try_from(share).unwrap_or(u64::MAX)
}
