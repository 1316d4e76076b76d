//! What is held of a subject, and how it is spent. No I/O.

use std::sync::Arc;

use tokio::sync::Mutex as Turn;

use super::super::answer::Answer;
use super::place::Taking;
use crate::model::Origin;
use crate::time::Timestamp;
use crate::{Cost, Decision, Policy};

/// The lease of one subject. Spending needs no turn: while units are there, no request waits.
#[derive(Default)]
pub(super) struct Lease {
    pub(super) terms: Option<Terms>,
    pub(super) turn: Arc<Turn<Taking>>,
    /// How many tasks take units, give them back, or wait for their turn.
    pub(super) places: usize,
}

/// Under which conditions units are held.
pub(super) struct Terms {
    pub(super) policy: Policy,
    /// Where the limits stood when they were charged.
    pub(super) answer: Answer,
    pub(super) charged: Timestamp,
    /// When the server's answer was there, and until when the lease may be spent.
    pub(super) heard: u64,
    pub(super) until: u64,
    /// When a unit was spent last.
    pub(super) touched: u64,
    pub(super) left: u64,
    /// How many units the server had left when it answered.
    pub(super) rest: u64,
}

impl Lease {
    /// Spends `cost` of what is held, if that is enough and the lease has not ended.
    #[inline(always)]
    pub(super) fn spend(&mut self, policy: &Policy, cost: Cost, now: u64) -> Option<Decision> {
        let terms = open(&mut self.terms, policy, now);
        let terms = terms.filter(|terms| terms.left >= cost.units())?;
        terms.left -= cost.units();
        terms.touched = now;
        Some(terms.decision(cost, cost.units(), now))
    }

    /// Adds what was taken to what is held, and decides on `cost`. Returns no decision if that is more
    /// than is held now and the server has more, which it has not if it `is_short`. Returns also what was
    /// held before, if that lease has ended.
    pub(super) fn add(
        &mut self,
        mut taken: Terms,
        cost: Cost,
        is_short: bool,
    ) -> (Option<Decision>, Option<Terms>) {
        let mut over = None;
        // What was held is of the same windows if those have not ended by now.
        match open(&mut self.terms, &taken.policy, taken.heard) {
            Some(kept) if kept.left > 0 => {
                (taken.until, taken.left) = (taken.until.min(kept.until), taken.left + kept.left);
            }
            Some(_) => {}
            None => over = self.terms.take(),
        }
        let taken = self.terms.insert(taken);
        // Before others spend it.
        let units = if taken.left >= cost.units() { cost.units() } else { 0 };
        taken.left -= units;
        let decision = (is_short || units == cost.units())
            .then(|| taken.decision(cost, units, taken.heard).from(Origin::Store));
        (decision, over)
    }

    /// Whether the cost is more than is held, and the server had nothing left: then to take ahead is of no
    /// use, and the request needs no turn.
    pub(super) fn is_beyond(&mut self, policy: &Policy, cost: Cost, now: u64) -> bool {
        open(&mut self.terms, policy, now)
            .is_some_and(|terms| terms.rest == 0 && cost.units() > terms.left)
    }

    /// Takes up to `units` of what is held away, to be given back.
    pub(super) fn take_back(&mut self, units: u64) -> Option<Returned> {
        let terms = self.terms.as_mut()?;
        let units = units.min(terms.left);
        terms.left -= units;
        terms.rest = terms.rest.saturating_add(units);
        Some(Returned { policy: terms.policy.clone(), charged: terms.charged, units })
    }

    /// Whether the lease has ended, or no unit of it was spent for `idle` µs, and no task has a place.
    pub(super) fn is_due(&self, now: u64, idle: u64) -> bool {
        let is_over = |terms: &Terms| now >= terms.until || terms.idle_since(now) >= idle;
        self.places == 0 && self.terms.as_ref().is_none_or(is_over)
    }

    /// The units that are held and not spent.
    pub(super) fn left(&self) -> u64 {
        self.terms.as_ref().map_or(0, |terms| terms.left)
    }
}

/// What is held under this policy, if the lease has not ended.
pub(super) fn open<'a>(
    terms: &'a mut Option<Terms>,
    policy: &Policy,
    now: u64,
) -> Option<&'a mut Terms> {
    terms.as_mut().filter(|terms| terms.policy == *policy && now < terms.until)
}

/// Units that go back to the server.
pub(super) struct Returned {
    pub(super) policy: Policy,
    pub(super) charged: Timestamp,
    pub(super) units: u64,
}

impl Terms {
    /// Decides on a call that was given `taken`: what is held does not count as used.
    #[inline(always)]
    fn decision(&self, cost: Cost, taken: u64, now: u64) -> Decision {
        let later = now.saturating_sub(self.heard);
        self.answer.with_unspent(&self.policy, cost, taken, self.left, later)
    }

    /// How long no unit has been spent, in µs.
    pub(super) fn idle_since(&self, now: u64) -> u64 {
        now.saturating_sub(self.touched)
    }
}

impl From<Terms> for Returned {
    fn from(Terms { policy, charged, left: units, .. }: Terms) -> Self {
        Self { policy, charged, units }
    }
}
