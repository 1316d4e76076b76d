use std::time::Duration;

use rl_core::{Decision, LimitStatus, Origin, RetryAfter};
use rl_records::{CallLimits, Contribution};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Date, Limits};

/// Whole seconds, rounded up: a window that is open never ends in 0.
pub(crate) fn whole_seconds(left: Duration) -> u64 {
    left.as_secs() + u64::from(left.subsec_nanos() > 0)
}

/// Where a subject stands under one limit.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Standing {
    /// The name of the limit in its policy.
    #[schema(example = "minute")]
    name: String,
    /// The limit as text; `unlimited` if calls are counted and not limited.
    #[schema(example = "100/minute")]
    limit: String,
    /// The most that can be used at once; `null` if there is no limit.
    max: Option<u64>,
    /// What is used.
    used: u64,
    /// What is left; `null` if there is no limit.
    remaining: Option<u64>,
    /// The seconds until it is as if never used, rounded up.
    reset_in_seconds: u64,
    /// Whether this limit denies what was asked for.
    denies: bool,
    /// The seconds after which it would not, rounded up; 0 if it does not deny, `null` if waiting does
    /// not help.
    retry_in_seconds: Option<u64>,
    /// Whether it is only tried out: it denies nothing.
    is_shadow: bool,
}

impl Standing {
    pub(crate) fn of(limit: LimitStatus<'_>) -> Self {
        let is_unlimited = CallLimits::only_counts(limit.limit());
        Self {
            name: limit.name().to_owned(),
            limit: if is_unlimited { UNLIMITED.to_owned() } else { limit.limit().to_string() },
            max: (!is_unlimited).then(|| limit.max()),
            used: limit.used(),
            remaining: (!is_unlimited).then(|| limit.remaining()),
            reset_in_seconds: whole_seconds(limit.reset_after()),
            denies: limit.is_over() && !limit.limit().is_shadow(),
            retry_in_seconds: seconds_of(limit.retry_after()),
            is_shadow: limit.limit().is_shadow() && !is_unlimited,
        }
    }
}

impl Standing {
    /// Returns what `usage` reports of each limit, with the denials of `decision`, which read no counter.
    pub(crate) fn of_denial(usage: &Decision, decision: &Decision) -> Vec<Self> {
        let standing = |limit: LimitStatus<'_>| {
            let denied = decision.limits().find(|denied| denied.name() == limit.name());
            let standing = Self::of(limit);
            match denied.map(Self::of) {
                Some(Self { denies, retry_in_seconds, .. }) => {
                    Self { denies, retry_in_seconds, ..standing }
                }
                None => standing,
            }
        };
        usage.limits().map(standing).collect()
    }

    /// Returns why the limit denies, in words.
    pub(crate) fn denial(&self) -> Option<String> {
        let Self { name, used, denies: true, max: Some(max), retry_in_seconds, .. } = self else {
            return None;
        };
        Some(match retry_in_seconds {
            _ if *max == 0 => format!("{name}: the limit is 0, so no request passes"),
            None => format!("{name}: {used} of {max} used, it never grants as much at once"),
            Some(seconds) => format!("{name}: {used} of {max} used, it grants it in {seconds} s"),
        })
    }
}

const UNLIMITED: &str = "unlimited";

/// Returns the policy of a decision as text, without periods that are only counted; `None` if it is
/// unknown.
pub(crate) fn policy_text(decision: &Decision) -> Option<String> {
    let Some(policy) = decision.policy() else {
        return (decision.origin() == Origin::Unlimited).then(|| UNLIMITED.to_owned());
    };
    let limits = policy.limits().iter().filter(|named| !CallLimits::only_counts(named.limit()));
    let limits: Vec<String> =
        limits.map(|named| format!("{}={}", named.name(), named.limit())).collect();
    Some(if limits.is_empty() { UNLIMITED.to_owned() } else { limits.join(", ") })
}

/// Returns whether calls are limited, and not only counted.
pub(crate) fn is_limited(decision: &Decision) -> bool {
    decision.limits().any(|limit| !CallLimits::only_counts(limit.limit()))
}

/// The program whose policies an answer shows.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PoliciesOf {
    /// The service itself.
    Service,
    /// A program for management alone. The service decides in the same way if it takes its policies from the
    /// same records with the same settings.
    ThisServer,
}

/// The note in answers of a server that stands alone.
pub(crate) const OTHER_PROGRAM: &str = "This server is not the service: it knows the records, tiers and \
    defaults, and not the program of the service. The service decides so if it takes its policies from \
    them with the same settings.";

/// How long to wait; `None` is for ever.
pub(crate) fn seconds_of(wait: RetryAfter) -> Option<u64> {
    match wait {
        RetryAfter::Now => Some(0),
        RetryAfter::In(wait) => Some(whole_seconds(wait)),
        RetryAfter::Never => None,
    }
}

/// A record that has to do with the limits that hold.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Considered {
    #[schema(format = "uuid")]
    rate_limiting_id: String,
    from_date: Date,
    to_date: Date,
    #[serde(flatten)]
    limits: Limits,
    /// Whether it blocks, whatever the others say.
    blocks: bool,
}

impl Considered {
    pub(crate) fn of(record: &Contribution) -> Self {
        Self {
            rate_limiting_id: record.id.to_string(),
            from_date: Date(record.from_date),
            to_date: Date(record.to_date),
            limits: Limits::of(&record.limits),
            blocks: record.blocks,
        }
    }
}
