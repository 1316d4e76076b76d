use std::time::Duration;

use rl_core::{Decision, LimitStatus, Origin, RetryAfter};
use rl_records::{Contribution, Limits};
use serde::Serialize;
use utoipa::ToSchema;

use super::date::Date;
use super::limits::LimitTexts;

/// Rounds up to whole seconds, so that an open window is never reported to end in 0 seconds.
pub(crate) fn whole_seconds(left: Duration) -> u64 {
    left.as_secs() + u64::from(left.subsec_nanos() > 0)
}

/// The usage of one limit.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LimitUsage {
    /// The name of the limit in its policy.
    #[schema(example = "minute")]
    name: String,
    /// The limit as text; `unlimited` if calls are only counted.
    #[schema(example = "100/minute")]
    limit: String,
    /// The capacity of the limit; `null` if calls are only counted.
    max: Option<u64>,
    /// The number of used units; `null` if the counter was not read.
    used: Option<u64>,
    /// The number of remaining units; `null` if calls are only counted, or if the counter was not
    /// read.
    remaining: Option<u64>,
    /// The seconds until the whole capacity is available, rounded up; `null` if the counter was not
    /// read.
    reset_in_seconds: Option<u64>,
    /// Whether this limit denies the request. A report of usage is about no request, so it is false
    /// there.
    denies: bool,
    /// The seconds until this limit allows the request, rounded up. 0 if it allows the request now,
    /// and `null` if waiting does not help.
    retry_in_seconds: Option<u64>,
    /// Whether the limit is in shadow mode, in which it denies nothing.
    is_shadow: bool,
}

impl LimitUsage {
    /// Reads the status of a limit. `is_shadow` says whether its rule is in shadow.
    pub(crate) fn of(limit: LimitStatus<'_>, is_shadow: bool) -> Self {
        let is_shadow = is_shadow || limit.limit().is_shadow();
        let is_unlimited = Limits::only_counts(limit.limit());
        let is_known = limit.is_known();
        Self {
            name: limit.name().to_owned(),
            limit: if is_unlimited { UNLIMITED.to_owned() } else { limit.limit().to_string() },
            max: (!is_unlimited).then(|| limit.max()),
            used: is_known.then(|| limit.used()),
            remaining: (is_known && !is_unlimited).then(|| limit.remaining()),
            reset_in_seconds: is_known.then(|| whole_seconds(limit.reset_after())),
            denies: limit.is_over() && !is_shadow,
            retry_in_seconds: if is_shadow { Some(0) } else { seconds_of(limit.retry_after()) },
            is_shadow: is_shadow && !is_unlimited,
        }
    }

    /// Combines the `usage` of each limit with the denial in `decision`, for which no counter was
    /// read.
    pub(crate) fn of_denial(usage: &Decision, decision: &Decision, is_shadow: bool) -> Vec<Self> {
        let combined = |limit: LimitStatus<'_>| {
            let denied = limits(decision).find(|denied| denied.name() == limit.name());
            let usage = Self::of(limit, is_shadow);
            match denied.map(|denied| Self::of(denied, is_shadow)) {
                Some(Self { denies, retry_in_seconds, .. }) => {
                    Self { denies, retry_in_seconds, ..usage }
                }
                None => usage,
            }
        };
        usage.limits().map(combined).collect()
    }

    /// Returns the reason why this limit denies the request, as a text.
    pub(crate) fn denial(&self) -> Option<String> {
        let Self { name, used, denies: true, max: Some(max), retry_in_seconds, .. } = self else {
            return None;
        };
        let used = match used {
            Some(used) => format!("{used} of {max} used"),
            None => format!("at most {max}"),
        };
        Some(match retry_in_seconds {
            _ if *max == 0 => format!("{name}: the limit is 0, so every request is rejected"),
            None => format!("{name}: {used}, and the cost exceeds the capacity"),
            Some(seconds) => format!("{name}: {used}, allowed again in {seconds} s"),
        })
    }
}

const UNLIMITED: &str = "unlimited";

/// Returns the limits of a decision, whether or not headers may describe them.
fn limits(decision: &Decision) -> impl Iterator<Item = LimitStatus<'_>> {
    decision.parts().flat_map(|part| part.limits())
}

/// Returns the policy of a decision as a text, if it is known. Periods that are only counted are
/// omitted.
pub(crate) fn policy_text(decision: &Decision) -> Option<String> {
    let Some(policy) = decision.parts().find_map(|part| part.policy()) else {
        return (decision.origin() == Origin::Unlimited).then(|| UNLIMITED.to_owned());
    };
    let limits = policy.limits().iter().filter(|named| !Limits::only_counts(named.limit()));
    let limits: Vec<String> =
        limits.map(|named| format!("{}={}", named.name(), named.limit())).collect();
    Some(if limits.is_empty() { UNLIMITED.to_owned() } else { limits.join(", ") })
}

/// Returns whether any limit can deny calls instead of only counting them.
pub(crate) fn is_limited(decision: &Decision) -> bool {
    limits(decision).any(|limit| !Limits::only_counts(limit.limit()))
}

/// The program whose policies a response describes.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PoliciesOf {
    /// The service itself.
    Service,
    /// This server, which is separate from the service. The service decides in the same way if it
    /// has the same records and settings.
    ThisServer,
}

impl PoliciesOf {
    pub(crate) const fn of(is_stand_alone: bool) -> Self {
        if is_stand_alone { Self::ThisServer } else { Self::Service }
    }
}

/// The sentence of a separate program about what services do while the counters are unavailable.
pub(crate) const UNKNOWN_FAILURE_POLICY: &str =
    "The counters are unavailable. The program of each service sets how it decides now.";

/// Returns the sentences as one text, if there are any.
pub(crate) fn joined(sentences: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let sentences: Vec<String> = sentences.into_iter().flatten().collect();
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// Returns the wait in whole seconds, or `None` if waiting does not help.
pub(crate) fn seconds_of(wait: RetryAfter) -> Option<u64> {
    match wait {
        RetryAfter::Now => Some(0),
        RetryAfter::In(wait) => Some(whole_seconds(wait)),
        RetryAfter::Never => None,
    }
}

/// A record that contributes to the active limits.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Considered {
    #[schema(format = "uuid")]
    rate_limiting_id: String,
    from_date: Date,
    to_date: Date,
    #[serde(flatten)]
    limits: LimitTexts,
    /// Whether the record blocks the consumer, whatever the other records contain.
    blocks: bool,
    /// Whether the record is a grant. Each limit of a grant is added to the limit that counts in the
    /// same window: from other records, a tier, the defaults or the service. This field never
    /// changes.
    grants: bool,
}

impl Considered {
    pub(crate) fn of(record: &Contribution) -> Self {
        Self {
            rate_limiting_id: record.id.to_string(),
            from_date: Date(record.from_date),
            to_date: Date(record.to_date),
            limits: LimitTexts::of(&record.limits),
            blocks: record.blocks,
            grants: record.grants,
        }
    }
}
