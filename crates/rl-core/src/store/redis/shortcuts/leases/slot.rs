//! What is held of a subject, and how it is spent. No I/O.

use std::sync::Arc;

use tokio::sync::Mutex as Turn;

use super::table::Taking;
use crate::decision::Decision;
use crate::decision::Origin;
use crate::model::Cost;
use crate::policy::Policy;
use crate::store::redis::encoding::reply::Answer;
use crate::time::Timestamp;

/// The lease of one subject. Spending needs no turn, so no request waits while units are held.
#[derive(Default)]
pub(crate) struct Lease {
    pub(crate) terms: Option<Terms>,
    pub(crate) turn: Arc<Turn<Taking>>,
    /// The number of tasks that take units, give them back, or wait for their turn.
    pub(crate) places: usize,
}

/// The held units and their conditions.
pub(crate) struct Terms {
    pub(crate) policy: Policy,
    /// Where the limits stood when they were charged.
    pub(crate) answer: Answer,
    pub(crate) charged: Timestamp,
    /// When the server's answer was there, and until when the lease may be spent.
    pub(crate) heard: u64,
    pub(crate) until: u64,
    /// When a unit was spent last.
    pub(crate) touched: u64,
    pub(crate) left: u64,
    /// The units that the server had left when it answered.
    pub(crate) rest: u64,
}

impl Lease {
    /// Spends `cost` of the held units, if they suffice and the lease has not ended.
    #[inline(always)]
    pub(crate) fn spend(&mut self, policy: &Policy, cost: Cost, now: u64) -> Option<Decision> {
        let terms = open(&mut self.terms, policy, now);
        let terms = terms.filter(|terms| terms.left >= cost.units())?;
        terms.left -= cost.units();
        terms.touched = now;
        Some(terms.decision(cost, cost.units(), now))
    }

    /// Adds taken units to the held ones, and decides on `cost`. Returns no decision if the cost is more than
    /// is held now and the server may have more, that is, unless it `is_short`. Also returns the units held
    /// before, if their lease has ended.
    pub(crate) fn add(
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
            .then(|| taken.decision(cost, units, taken.heard).with_origin(Origin::Store));
        (decision, over)
    }

    /// Returns whether the cost is more than is held, and the server had nothing left. Then taking units
    /// ahead cannot help, and the request needs no turn.
    pub(crate) fn is_beyond(&mut self, policy: &Policy, cost: Cost, now: u64) -> bool {
        open(&mut self.terms, policy, now)
            .is_some_and(|terms| terms.rest == 0 && cost.units() > terms.left)
    }

    /// Removes up to `units` of the held units, to give them back.
    pub(crate) fn take_back(&mut self, units: u64) -> Option<Returned> {
        let terms = self.terms.as_mut()?;
        let units = units.min(terms.left);
        terms.left -= units;
        terms.rest = terms.rest.saturating_add(units);
        Some(Returned { policy: terms.policy.clone(), charged: terms.charged, units })
    }

    /// Returns whether the lease has ended or is idle for `idle` µs, while no task has a place.
    pub(crate) fn is_due(&self, now: u64, idle: u64) -> bool {
        let is_over = |terms: &Terms| now >= terms.until || terms.idle_since(now) >= idle;
        self.places == 0 && self.terms.as_ref().is_none_or(is_over)
    }

    /// Returns the units that are held and not spent.
    pub(crate) fn left(&self) -> u64 {
        self.terms.as_ref().map_or(0, |terms| terms.left)
    }
}

/// Returns the units held under this policy, if the lease has not ended.
pub(crate) fn open<'a>(
    terms: &'a mut Option<Terms>,
    policy: &Policy,
    now: u64,
) -> Option<&'a mut Terms> {
    terms.as_mut().filter(|terms| terms.policy == *policy && now < terms.until)
}

/// Units that go back to the server.
pub(crate) struct Returned {
    pub(crate) policy: Policy,
    pub(crate) charged: Timestamp,
    pub(crate) units: u64,
}

impl Terms {
    /// Decides on a call that was given `taken` units. Held units do not count as used.
    #[inline(always)]
    fn decision(&self, cost: Cost, taken: u64, now: u64) -> Decision {
        let later = now.saturating_sub(self.heard);
        self.answer.with_unspent(&self.policy, cost, taken, self.left, later)
    }

    /// Returns the time since a unit was spent last, in µs.
    pub(crate) fn idle_since(&self, now: u64) -> u64 {
        now.saturating_sub(self.touched)
    }
}

impl From<Terms> for Returned {
    fn from(Terms { policy, charged, left: units, .. }: Terms) -> Self {
        Self { policy, charged, units }
    }
}
