//! The values of header fields.

use std::time::Duration;

use super::list;
use super::text::{Text, seconds_ceil};
use crate::decision::{Decision, LimitStatus, Origin};

/// What a header field says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Field {
    /// Units the governing limit allows.
    Max,
    /// Units left.
    Remaining,
    /// Units used.
    Used,
    /// Seconds until the reset.
    ResetAfter,
    /// The second of the reset, since the epoch.
    ResetAt,
    /// The whole period in milliseconds.
    IntervalMillis,
    /// Always the same text.
    Fixed(&'static str),
    /// `limit=100, remaining=73, reset=42`.
    Dictionary,
    /// `100;w=60` for each limit.
    Quotas,
    /// `"default";q=100;w=60` for each limit.
    NamedQuotas,
    /// `"default";r=73;t=42` for each limit.
    Standings,
    /// `100` for the governing limit, then `100;w=60` for each.
    MaxThenQuotas,
    /// `100` for the governing limit, then `100;w=60;name="default"` for each.
    MaxThenCommentedQuotas,
}

impl Field {
    /// Whether several lines of this field mean the same as one line that joins them.
    pub(super) const fn is_list(self) -> bool {
        matches!(self, Self::Quotas | Self::NamedQuotas | Self::Standings)
    }

    /// Returns whether the value of the field is known.
    pub(super) fn is_known(self, answer: &Answer<'_>) -> bool {
        match self {
            Self::Remaining | Self::Used => answer.knows_counts(),
            Self::ResetAfter | Self::ResetAt | Self::IntervalMillis => answer.knows_reset(),
            // A dictionary has all of its members, or is left out.
            Self::Dictionary => answer.knows_counts() && answer.knows_reset(),
            Self::Standings => answer.standings().next().is_some(),
            _ => true,
        }
    }

    /// Writes the value.
    pub(super) fn write(self, answer: &Answer<'_>, text: &mut Text) {
        let limit = answer.governing;
        match self {
            Self::Max => text.number(limit.max()),
            Self::Remaining => text.number(limit.remaining()),
            Self::Used => text.number(limit.used()),
            Self::ResetAfter => text.number(answer.reset_after()),
            Self::ResetAt => text.number(answer.reset_at()),
            Self::IntervalMillis => text.number(limit.limit().period().as_millis()),
            Self::Fixed(value) => text.push(value),
            Self::Dictionary => {
                text.push("limit=");
                text.number(limit.max());
                text.push(", remaining=");
                text.number(limit.remaining());
                text.push(", reset=");
                text.number(answer.reset_after());
            }
            Self::Quotas => list::join(answer.listed(), list::quota, text),
            Self::NamedQuotas => list::join(answer.listed(), list::named_quota, text),
            Self::Standings => list::join(answer.standings(), list::standing, text),
            Self::MaxThenQuotas => {
                text.number(limit.max());
                text.push(", ");
                list::join(answer.listed(), list::quota, text);
            }
            Self::MaxThenCommentedQuotas => {
                text.number(limit.max());
                text.push(", ");
                list::join(answer.listed(), list::commented_quota, text);
            }
        }
    }
}

/// What the lines of one response are made from.
pub(super) struct Answer<'a> {
    decision: &'a Decision,
    governing: LimitStatus<'a>,
    governing_only: bool,
}

impl<'a> Answer<'a> {
    pub(super) const fn new(
        decision: &'a Decision,
        governing: LimitStatus<'a>,
        governing_only: bool,
    ) -> Self {
        Self { decision, governing, governing_only }
    }

    /// The limits that lists describe.
    fn listed(&self) -> impl Iterator<Item = LimitStatus<'a>> {
        let only = self.governing_only.then(|| self.governing.name());
        self.decision.enforced().filter(move |limit| only.is_none_or(|name| name == limit.name()))
    }

    /// Returns the limits whose remaining units are known: only limits of 0 where the policy alone denied.
    fn standings(&self) -> impl Iterator<Item = LimitStatus<'a>> {
        let all = self.decision.origin() != Origin::Policy;
        self.listed().filter(move |limit| all || limit.max() == 0)
    }

    fn knows_counts(&self) -> bool {
        self.decision.origin() != Origin::Policy || self.governing.max() == 0
    }

    /// Returns whether the time of the reset is known. It is not for a limit of 0 without an end, nor where
    /// no counter was read.
    fn knows_reset(&self) -> bool {
        let is_counted = self.decision.origin() != Origin::Policy && self.governing.max() > 0;
        self.decision.is_allowed() || is_counted || !self.governing.reset_after().is_zero()
    }

    /// Time to the reset of the governing limit. Where a denial has none, a moment: a client that
    /// reads 0 would try again at once.
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
