//! The parts of a decision about several subjects.

use std::borrow::Cow;
use std::cmp::Reverse;

use smallvec::SmallVec;

use super::linked::{DecidedParts, PartFlags};
use super::{Decision, LimitStatus, Origin, RetryAfter, Verdict};
use crate::model::Cost;
use crate::policy::{LimitSet, Policy};

/// The status of one part of a request: a subject, its policy and its cost.
#[derive(Clone, Copy, Debug)]
pub struct PartStatus<'a> {
    decision: &'a Decision,
    origin: Origin,
    is_shadow: bool,
    is_disclosed: bool,
}

impl<'a> PartStatus<'a> {
    /// Returns the policy of the part; `None` if no store decided, or if none of its limits
    /// applied.
    #[must_use]
    pub const fn policy(&self) -> Option<&'a Policy> {
        self.decision.policy()
    }

    /// Returns the status of each limit, in the order of the policy.
    #[must_use]
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitStatus<'a>> + use<'a> {
        self.decision.statuses.iter()
    }

    /// Returns the requested units.
    #[must_use]
    pub const fn cost(&self) -> Cost {
        self.decision.cost
    }

    /// Returns the units that were charged to the part.
    #[must_use]
    pub const fn charged(&self) -> u64 {
        self.decision.charged
    }

    /// Returns whether the part denies the request, or would deny it if it were not in shadow.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.retry_after() != RetryAfter::Now
    }

    /// Returns the longest wait of the limits of the part that deny.
    #[must_use]
    pub fn retry_after(&self) -> RetryAfter {
        let enforced = self.limits().filter(|limit| !limit.limit().is_shadow());
        enforced.map(|limit| limit.retry_after()).max().unwrap_or(RetryAfter::Now)
    }

    /// Returns whether the part denies nothing.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Returns whether headers and messages may describe the part.
    #[must_use]
    pub const fn is_disclosed(&self) -> bool {
        self.is_disclosed
    }

    /// Returns the limits that would have denied the request if they were not in shadow.
    pub(crate) fn over_in_shadow(&self) -> impl Iterator<Item = LimitStatus<'a>> + use<'a> {
        let all = self.is_shadow || self.origin == Origin::Shadow;
        self.limits().filter(move |limit| limit.is_over() && (all || limit.limit().is_shadow()))
    }

    /// Returns the fewest units that an enforced limit of the part has left.
    fn remaining(&self) -> u64 {
        let enforced = self.limits().filter(|limit| !limit.limit().is_shadow());
        enforced.map(|limit| limit.remaining()).min().unwrap_or(u64::MAX)
    }

    const fn is_enforced(&self) -> bool {
        !self.is_shadow && !matches!(self.origin, Origin::Shadow)
    }
}

impl Decision {
    /// Combines the decisions of the parts of a request, in the order of the parts.
    ///
    /// The request is denied if a part that is not in shadow denies it. In that case no part may
    /// have charged anything.
    pub(crate) fn of_parts(flags: PartFlags, parts: impl IntoIterator<Item = Self>) -> Self {
        let mut others: SmallVec<[Self; 2]> = parts.into_iter().collect();
        let (mut governing, mut is_denied) = (None, false);
        for (index, decision) in others.iter().enumerate() {
            let (is_shadow, is_disclosed) = (flags.is_shadow(index), flags.is_disclosed(index));
            let part = PartStatus { decision, origin: decision.origin, is_shadow, is_disclosed };
            is_denied |= part.is_enforced() && !decision.is_allowed();
            if part.is_enforced() && part.is_disclosed {
                let candidate = (part.retry_after(), Reverse(part.remaining()));
                if governing.is_none_or(|(_, best)| candidate > best) {
                    governing = Some((index, candidate));
                }
            }
        }
        let governing = governing.map(|(index, _)| index);
        let mut decision = match (governing, others.first()) {
            (Some(index), _) => others.remove(index),
            // No part may be described. The decision states only what was charged to the first one.
            (None, Some(first)) => {
                let (charged, at, is_allowed) = (first.charged, first.at(), !is_denied);
                let mut hidden = Self::undecided(first.cost, first.origin);
                hidden.finish(charged, at, is_allowed);
                hidden
            }
            (None, None) => return Self::undecided(Cost::ZERO, Origin::Unlimited),
        };
        decision.verdict = Verdict::new(!is_denied);
        decision.set_parts(DecidedParts { others, flags, governing, is_denied });
        decision
    }

    /// Returns the status of each part of the request, in the order of the parts.
    ///
    /// A request that is counted under one subject has one part, and so has a decision that no
    /// store made. With several parts, the other methods describe the
    /// [governing part](Self::governing_part).
    #[must_use]
    pub fn parts(&self) -> impl ExactSizeIterator<Item = PartStatus<'_>> {
        let parts = self.decided_parts();
        (0..parts.map_or(1, |parts| parts.len())).map(move |index| match parts {
            Some(parts) => PartStatus {
                decision: parts.get(index, self),
                origin: self.origin,
                is_shadow: parts.flags.is_shadow(index),
                is_disclosed: parts.flags.is_disclosed(index),
            },
            None => PartStatus {
                decision: self,
                origin: self.origin,
                is_shadow: false,
                is_disclosed: true,
            },
        })
    }

    /// Returns whether the request was decided as a list of parts.
    pub(crate) fn has_parts(&self) -> bool {
        self.decided_parts().is_some()
    }

    /// Returns the position of the part that the decision describes: its limits, its policy and its
    /// cost.
    ///
    /// This is the disclosed and enforced part that denies for the longest time, or else the one
    /// with the fewest units remaining. Returns `None` if no part is disclosed and enforced.
    #[must_use]
    pub fn governing_part(&self) -> Option<usize> {
        self.decided_parts().map_or(Some(0), |parts| parts.governing)
    }

    /// Returns the position of the part that denies the request for the longest time, whether it
    /// is disclosed or not. If several parts deny it for the same time, the governing part precedes
    /// the others.
    #[must_use]
    pub fn denying_part(&self) -> Option<usize> {
        let over =
            self.parts().enumerate().filter(|(_, part)| part.is_enforced() && part.is_over());
        let governing = self.governing_part();
        over.max_by_key(|(index, part)| {
            (part.retry_after(), governing == Some(*index), Reverse(*index))
        })
        .map(|(index, _)| index)
    }

    /// Returns the positions of the parts that deny the request.
    pub(crate) fn denying_parts(&self) -> impl Iterator<Item = usize> {
        let denies = |part: &PartStatus<'_>| part.is_enforced() && part.is_over();
        self.parts().enumerate().filter(move |(_, part)| denies(part)).map(|(index, _)| index)
    }

    /// Returns the limits that [`over_in_shadow`](Self::over_in_shadow) returns, without those of
    /// parts that are not disclosed.
    pub(crate) fn disclosed_over_in_shadow(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        self.parts().filter(PartStatus::is_disclosed).flat_map(|part| part.over_in_shadow())
    }

    /// Returns the decision as it is reported: its limits are those of the
    /// [reported part](Self::reported_part).
    pub(crate) fn reported(&self) -> Cow<'_, Self> {
        let index = self.reported_part();
        match self.decided_parts() {
            Some(parts) if parts.governing != Some(index) && index < parts.len() => {
                Cow::Owned(self.described_by(parts, index))
            }
            _ => Cow::Borrowed(self),
        }
    }

    /// Returns the same decision, which describes the part at `index` instead of the governing one.
    fn described_by(&self, parts: &DecidedParts<Self>, index: usize) -> Self {
        let part = |place: usize| Self { linked: None, ..parts.get(place, self).clone() };
        let others = (0..parts.len()).filter(|place| *place != index).map(part).collect();
        let mut decision = Self {
            verdict: self.verdict,
            origin: self.origin,
            limiter_id: self.limiter_id,
            subject_hash: self.subject_hash,
            ..part(index)
        };
        decision.set_parts(DecidedParts { others, governing: Some(index), ..*parts });
        decision
    }

    /// Returns the position of the part under whose subject the decision is reported: the part that
    /// denies, or else the governing one.
    pub(crate) fn reported_part(&self) -> usize {
        if self.decided_parts().is_none() {
            return 0;
        }
        self.denying_part().or(self.governing_part()).unwrap_or(0)
    }

    /// Returns the limits that deny a request of one part, or would deny it.
    pub(crate) fn over(&self) -> LimitSet {
        self.statuses.over()
    }

    /// Returns the limits of all parts that can deny the request.
    pub(crate) fn enforced_of_all_parts(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        let enforced = self.parts().filter(PartStatus::is_enforced);
        enforced.flat_map(|part| part.limits().filter(|limit| !limit.limit().is_shadow()))
    }

    /// Returns the decision of the part at `index` alone, to refund or settle its charge.
    pub(crate) fn of_part(&self, index: usize) -> Option<Self> {
        let Some(parts) = self.decided_parts() else {
            return (index == 0).then(|| self.clone());
        };
        (index < parts.len()).then(|| {
            let part = parts.get(index, self);
            let verdict = match part.verdict {
                Verdict::Allowed if parts.is_denied => Verdict::Denied,
                verdict => verdict,
            };
            Self { verdict, origin: self.origin, linked: None, ..part.clone() }
        })
    }

    /// Returns the longest wait of the enforced parts.
    pub(super) fn longest_wait(&self) -> RetryAfter {
        let enforced = self.parts().filter(PartStatus::is_enforced);
        enforced.map(|part| part.retry_after()).max().unwrap_or(RetryAfter::Now)
    }

    /// Returns whether a part is in shadow, or has a limit in shadow.
    pub(super) fn has_part_in_shadow(&self) -> bool {
        self.parts().any(|part| part.is_shadow || part.policy().is_some_and(Policy::has_shadow))
    }
}
