//! The parts of a decision about several subjects.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;

use super::labels::{LabelledParts, PartLabels};
use super::limit_status::LimitStatuses;
use super::linked::{DecidedParts, GoverningPart, Linked, PartFlags};
use super::recycled::Recycled;
use super::{Decision, LimitStatus, Origin, RetryAfter, Verdict};
use crate::model::Cost;
use crate::policy::{LimitSet, Policy};
use crate::time::Timestamp;

/// The status of one part of a request: a subject, its policy and its cost.
#[derive(Clone, Copy, Debug)]
pub struct PartStatus<'a> {
    decision: &'a Decision,
    origin: Origin,
    is_shadow: bool,
    is_disclosed: bool,
    labels: PartLabels<'a>,
}

impl<'a> PartStatus<'a> {
    /// Returns the name of the [rule](crate::rules) that counts the part; `None` if the limiter has
    /// no rules, or if neither a store nor the policy itself decided.
    #[must_use]
    pub fn rule(&self) -> Option<&'a str> {
        self.policy()?;
        self.labels.rule()
    }

    /// Returns the policy of the part; `None` if no store decided, or if none of the part's limits
    /// applied.
    #[must_use]
    pub const fn policy(&self) -> Option<&'a Policy> {
        self.decision.statuses.policy()
    }

    /// Returns the status of each limit, in the order of the policy.
    #[must_use]
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitStatus<'a>> + use<'a> {
        let (labels, lag) = (self.labels, self.decision.clock_lag);
        self.decision.statuses.iter().map(move |limit| limit.of_part(labels, lag))
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
        !self.is_surely_within() && self.retry_after() != RetryAfter::Now
    }

    /// Returns whether the decision on the part proves that no limit denies it, so that the limits
    /// need not be read. Under a limiter in shadow it proves nothing, because all requests are
    /// allowed.
    fn is_surely_within(&self) -> bool {
        self.decision.is_allowed() && !matches!(self.decision.origin, Origin::Shadow)
    }

    /// Returns the longest wait of the limits of the part that deny.
    #[must_use]
    pub fn retry_after(&self) -> RetryAfter {
        if self.is_surely_within() {
            return RetryAfter::Now;
        }
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

    pub(super) const fn is_enforced(&self) -> bool {
        !self.is_shadow && !matches!(self.origin, Origin::Shadow)
    }
}

/// The decisions on the parts of a request, in their order.
///
/// They are created in the box that the decision on the request takes over, so that they are never
/// moved.
#[derive(Debug)]
pub(crate) struct DecisionList(Recycled<Linked<Decision>>);

impl DecisionList {
    /// Creates an empty list.
    pub(crate) fn new() -> Self {
        Self(Recycled::new())
    }

    /// Adds the decision on the next part, and returns it in its place.
    #[inline(always)]
    pub(crate) fn push(&mut self, decision: Decision) -> &mut Decision {
        let parts = &mut self.0.get_or_new().parts;
        parts.has_shadow |= decision.statuses.policy().is_some_and(Policy::has_shadow);
        let added = parts.add(Decision::unset);
        *added = decision;
        added
    }

    /// Returns the decisions.
    pub(crate) fn all(&self) -> &[Decision] {
        self.0.get().map_or(&[], |linked| linked.parts.all())
    }

    /// Returns the decisions, to change them.
    pub(crate) fn all_mut(&mut self) -> &mut [Decision] {
        self.0.get_mut().map_or(&mut [], |linked| linked.parts.all_mut())
    }
}

impl FromIterator<Decision> for DecisionList {
    fn from_iter<I: IntoIterator<Item = Decision>>(decisions: I) -> Self {
        let mut list = Self::new();
        for decision in decisions {
            list.push(decision);
        }
        list
    }
}

impl Decision {
    /// Combines the decisions of the parts of a request, in the order of the parts.
    ///
    /// The request is denied if a part that is not in shadow denies it. In that case no part may
    /// have charged anything.
    pub(crate) fn of_parts(flags: PartFlags, mut list: DecisionList) -> Self {
        let parts = &mut list.0.get_or_new().parts;
        let Some(first) = parts.all().first() else {
            return Self::undecided(Cost::ZERO, Origin::Unlimited);
        };
        let mut origin = first.origin;
        let (mut at, mut is_denied, mut is_of_one_origin) = (first.at(), false, true);
        for (index, part) in parts.all().iter().enumerate() {
            at = at.max(part.at());
            is_denied |=
                !part.is_allowed() && !flags.is_shadow(index) && part.origin != Origin::Shadow;
            is_of_one_origin &= part.origin == origin;
        }
        (parts.flags, parts.is_denied) = (flags, is_denied);
        parts.has_shadow |= flags.has_shadow();
        if !is_of_one_origin {
            let governing = parts.governing.get_or_find(|| find_governing(parts));
            origin = governing.map_or(origin, |index| parts.all()[index].origin);
        }
        Self { verdict: Verdict::new(!is_denied), origin, ..Self::linked_to(list, at) }
    }

    /// Creates a decision of the store at the time `at` that contains `list`. The caller sets the
    /// verdict.
    fn linked_to(list: DecisionList, at: Timestamp) -> Self {
        let first = list.all().first();
        let (cost, charged) = first.map_or((Cost::ZERO, 0), |first| (first.cost, first.charged));
        let statuses = LimitStatuses { decided_at: at, ..LimitStatuses::NONE };
        Self { charged, linked: list.0, ..Self::empty(statuses, cost) }
    }

    /// Returns the decision on the governing part. If no part is both disclosed and enforced, none
    /// governs. Then returns this decision, which has no limits, but has the charge to the first
    /// part.
    pub(super) fn governing_decision<'a>(&'a self, parts: &'a DecidedParts<Self>) -> &'a Self {
        let governing = parts.governing.get_or_find(|| find_governing(parts));
        governing.map_or(self, |index| &parts.all()[index])
    }

    /// Returns the status of each part of the request, in the order of the parts.
    ///
    /// There is one part if the request is counted under one subject, or if no store decided. With
    /// several parts, the other methods describe the [governing part](Self::governing_part).
    #[must_use]
    pub fn parts(&self) -> impl ExactSizeIterator<Item = PartStatus<'_>> {
        let parts = self.decided_parts();
        (0..parts.map_or(1, |parts| parts.all().len())).map(move |index| match parts {
            Some(parts) => PartStatus {
                decision: &parts.all()[index],
                origin: self.origin,
                is_shadow: parts.flags.is_shadow(index),
                is_disclosed: parts.flags.is_disclosed(index),
                labels: self.labels_of(index, &parts.all()[index]),
            },
            None => PartStatus {
                decision: self,
                origin: self.origin,
                is_shadow: false,
                is_disclosed: true,
                labels: self.labels_of(0, self),
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
        self.decided_parts()
            .map_or(Some(0), |parts| parts.governing.get_or_find(|| find_governing(parts)))
    }

    /// Returns the position of the part that denies the request for the longest time, whether it is
    /// disclosed or not. If several parts deny it for the same time, the governing part precedes
    /// the others. Returns `None` if no part denies it.
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

    /// Changes an allowed peek into a denial by the part at `index`, because requests in its wait
    /// queue take its remaining units. The time until the queue has room is not known, so the
    /// client may retry after a second.
    pub(crate) fn denied_behind_queue(mut self, index: usize) -> Self {
        let retry_micros = 1_000_000;
        if self.decided_parts().is_some() {
            let parts = &mut self.linked.get_or_new().parts;
            (parts.is_denied, parts.governing) = (true, GoverningPart::unknown());
            let part = &mut parts.all_mut()[index];
            part.statuses.deny_by_scarcest(retry_micros);
            part.verdict = Verdict::Denied;
        } else {
            self.statuses.deny_by_scarcest(retry_micros);
        }
        self.verdict = Verdict::Denied;
        self
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
            Some(parts) if self.governing_part() != Some(index) && index < parts.all().len() => {
                let mut decision = self.clone();
                decision.linked.get_or_new().parts.governing = GoverningPart::at(index);
                Cow::Owned(decision)
            }
            _ => Cow::Borrowed(self),
        }
    }

    /// Returns the position of the part under whose subject the decision is reported: the part that
    /// denies, or else the governing one.
    pub(crate) fn reported_part(&self) -> usize {
        if self.decided_parts().is_none() {
            return 0;
        }
        self.denying_part().or(self.governing_part()).unwrap_or(0)
    }

    /// Returns the units that the store charged to all parts together.
    pub(crate) fn charged_in_all(&self) -> u64 {
        match self.decided_parts() {
            None => self.charged,
            Some(parts) => parts.all().iter().map(|part| part.charged).fold(0, u64::saturating_add),
        }
    }

    /// Returns the limits that deny a request of one part, or would deny it if they were not in
    /// shadow.
    pub(crate) fn over(&self) -> LimitSet {
        self.statuses.over()
    }

    /// Returns the limits of all parts that can deny the request.
    pub(crate) fn enforced_of_all_parts(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        let enforced = self.parts().filter(PartStatus::is_enforced);
        enforced.flat_map(|part| part.limits().filter(|limit| !limit.limit().is_shadow()))
    }

    /// Returns the decision on the part at `index` alone, with which its charge is refunded or
    /// settled. Returns `None` if there is no such part.
    pub(crate) fn of_part(&self, index: usize) -> Option<Self> {
        let Some(parts) = self.decided_parts() else {
            return (index == 0).then(|| self.clone());
        };
        let part = parts.all().get(index)?;
        let verdict = match part.verdict {
            Verdict::Allowed if parts.is_denied => Verdict::Denied,
            verdict => verdict,
        };
        Some(Self { verdict, origin: self.origin, ..part.clone() })
    }

    /// Returns the status of the part that the [rule](crate::rules) called `name` counts. Returns
    /// `None` if this rule does not count the request, or if neither a store nor the policy itself
    /// decided.
    ///
    /// # Examples
    ///
    /// ```
    /// use rl_core::key::Identified;
    /// use rl_core::rules::{Rule, Rules};
    /// use rl_core::{Limit, RateLimiter, Subject};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tokens = Rule::named("tokens").per(Identified).limit(Limit::per_minute(10_000));
    /// let limiter = RateLimiter::builder().rules(Rules::new().rule(tokens)).build()?;
    /// let decision = limiter.rule("tokens").of(&Subject::user("alice")).cost(1_200).check().await;
    /// let tokens = decision.rule("tokens").and_then(|part| part.limits().next());
    /// assert_eq!(tokens.map(|limit| limit.remaining()), Some(8_800));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<PartStatus<'_>> {
        self.parts().find(|part| part.rule() == Some(name))
    }

    /// Sets the rules that count the parts.
    pub(crate) fn labelled(mut self, rules: Arc<dyn LabelledParts>) -> Self {
        self.labels_mut().rules = Some(rules);
        self
    }

    /// Returns the limits that responses list: the enforced limits of all parts that are enforced
    /// and disclosed.
    pub(crate) fn listed(&self) -> impl Iterator<Item = LimitStatus<'_>> {
        let listed = self.parts().filter(|part| part.is_enforced() && part.is_disclosed());
        listed.flat_map(|part| part.limits().filter(|limit| !limit.limit().is_shadow()))
    }
}

/// Returns the position of the disclosed and enforced part that denies for the longest time, or
/// else of the one with the fewest units remaining.
fn find_governing(parts: &DecidedParts<Decision>) -> Option<usize> {
    let mut governing = None;
    for (index, decision) in parts.all().iter().enumerate() {
        let (is_shadow, is_disclosed) =
            (parts.flags.is_shadow(index), parts.flags.is_disclosed(index));
        let (origin, labels) = (decision.origin, PartLabels::NONE);
        let part = PartStatus { decision, origin, is_shadow, is_disclosed, labels };
        if part.is_enforced() && part.is_disclosed {
            let candidate = (part.retry_after(), Reverse(part.remaining()));
            if governing.is_none_or(|(_, best)| candidate > best) {
                governing = Some((index, candidate));
            }
        }
    }
    governing.map(|(index, _)| index)
}
