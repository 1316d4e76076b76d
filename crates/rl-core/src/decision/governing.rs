use std::cmp::Reverse;

use super::limit_status::{LimitStatus, RetryAfter};

/// Selects the *governing* limit, which single-valued headers and the message of a denial describe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GoverningLimit {
    /// The active limit with the shortest period. For a denial, it is the one with the shortest
    /// period of the limits that deny.
    #[default]
    ShortestActive,
    /// The limit with the fewest units left. For a denial, it is one of the limits that deny. If
    /// several have equally few left, the one with the longest wait is selected.
    FewestRemaining,
}

impl GoverningLimit {
    /// Selects one of `limits`, the enforced limits of a decision.
    pub(super) fn select<'a>(
        self,
        limits: impl Iterator<Item = LimitStatus<'a>>,
        is_denied: bool,
    ) -> Option<LimitStatus<'a>> {
        let candidates = limits.filter(|limit| !is_denied || limit.is_over());
        match self {
            Self::ShortestActive => {
                candidates.min_by_key(|limit| (!limit.is_active(), limit.limit().period()))
            }
            Self::FewestRemaining => candidates.min_by_key(|limit| {
                let wait = match is_denied {
                    true => limit.retry_after(),
                    false => RetryAfter::In(limit.reset_after()),
                };
                (limit.remaining(), Reverse(wait))
            }),
        }
    }
}
