//! The items of the list fields that the IETF drafts define, each describing one limit.
//!
//! Names need no escaping: a [`Policy`](crate::Policy) takes only characters that may stand in a
//! structured string.

use std::time::Duration;

use super::field::seconds_ceil;
use super::text::Text;
use crate::{LimitReport, RetryAfter};

/// Writes an `item` for each of `limits`, separated by commas.
pub(super) fn join<'a>(
    limits: impl Iterator<Item = LimitReport<'a>>,
    item: fn(LimitReport<'_>, &mut Text),
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
pub(super) fn quota(limit: LimitReport<'_>, text: &mut Text) {
    text.number(limit.max());
    window(limit, text);
}

/// `100;w=60;name="default"`
pub(super) fn commented_quota(limit: LimitReport<'_>, text: &mut Text) {
    quota(limit, text);
    text.push(";name=");
    name(limit, text);
}

/// `"default";q=100;w=60`
pub(super) fn named_quota(limit: LimitReport<'_>, text: &mut Text) {
    name(limit, text);
    text.push(";q=");
    quota(limit, text);
}

/// `"default";r=73;t=42`
pub(super) fn standing(limit: LimitReport<'_>, text: &mut Text) {
    name(limit, text);
    text.push(";r=");
    text.number(limit.remaining());
    if let Some(seconds) = effective_window(limit) {
        text.push(";t=");
        text.number(seconds);
    }
}

fn name(limit: LimitReport<'_>, text: &mut Text) {
    text.push("\"");
    text.push(limit.name());
    text.push("\"");
}

/// `;w=60`, or nothing for a period that the drafts cannot express.
fn window(limit: LimitReport<'_>, text: &mut Text) {
    let millis = limit.limit().period().as_millis();
    if millis.is_multiple_of(1_000) {
        text.push(";w=");
        text.number(millis / 1_000);
    }
}

/// The seconds in which no more than the remaining units are to be used.
///
/// Where the limit denies, its wait: `Retry-After` is the longest of these, so it is never earlier
/// than any. Nothing for a limit that is as if never used, or that time does not change.
fn effective_window(limit: LimitReport<'_>) -> Option<u64> {
    let span = match limit.retry_after() {
        _ if limit.max() == 0 => Duration::ZERO,
        RetryAfter::In(wait) => wait,
        RetryAfter::Now | RetryAfter::Never => limit.reset_after(),
    };
    Some(seconds_ceil(span)).filter(|seconds| *seconds != 0)
}
