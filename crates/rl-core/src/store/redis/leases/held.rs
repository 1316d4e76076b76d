//! What is held of a subject, and how it is spent. No I/O.

use std::sync::Arc;

use tokio::sync::Mutex as Turn;

use super::super::answer::Answer;
use super::place::Taking;
use crate::model::Origin;
use crate::time::Timestamp;
use crate::{Cost, Decision, Policy};

/// What is held of one subject. To spend it takes nobody's turn: while units are there, nobody waits.
#[derive(Default)]
pub(super) struct Lease {
    pub(super) terms: Option<Terms>,
    pub(super) turn: Arc<Turn<Taking>>,
    /// How many take, give back, or wait for their turn.
    pub(super) places: usize,
}

/// On which terms units are held.
pub(super) struct Terms {
    pub(super) policy: Policy,
    /// Where the limits stood when they were charged.
    pub(super) answer: Answer,
    pub(super) charged: Timestamp,
    /// When the server's answer was there, and until when the lease may be spent.
    pub(super) heard: u64,
    pub(super) until: u64,
    pub(super) left: u64,
    /// Whether the server had less than was asked for.
    pub(super) is_last: bool,
}

impl Lease {
    /// Spends `cost` of what is held, if that is enough and it is not too late.
    #[inline(always)]
    pub(super) fn spend(&mut self, policy: &Policy, cost: Cost, now: u64) -> Option<Decision> {
        let terms = open(&mut self.terms, policy, now);
        let terms = terms.filter(|terms| terms.left >= cost.units())?;
        terms.left -= cost.units();
        Some(terms.decision(cost, cost.units(), now))
    }

    /// Adds what was taken to what is held, and decides on `cost`, unless that is more than there is now
    /// and the server has more. Returns also what was held, if it has ended.
    pub(super) fn add(
        &mut self,
        mut taken: Terms,
        cost: Cost,
    ) -> (Option<Decision>, Option<Terms>) {
        let mut over = None;
        // What was held is of the same windows if those have not ended by now.
        if let Some(kept) = open(&mut self.terms, &taken.policy, taken.heard) {
            (taken.until, taken.left) = (taken.until.min(kept.until), taken.left + kept.left);
        } else {
            over = self.terms.take();
        }
        let taken = self.terms.insert(taken);
        // Before others spend it.
        let units = if taken.left >= cost.units() { cost.units() } else { 0 };
        taken.left -= units;
        let decision = (taken.is_last || units == cost.units())
            .then(|| taken.decision(cost, units, taken.heard).from(Origin::Store));
        (decision, over)
    }

    /// Whether there was nothing left to take: what is asked for meanwhile needs nobody's turn.
    pub(super) fn is_last(&mut self, policy: &Policy, now: u64) -> bool {
        open(&mut self.terms, policy, now).is_some_and(|terms| terms.is_last)
    }
}

/// What is held under this policy, if it is not too late.
pub(super) fn open<'a>(
    terms: &'a mut Option<Terms>,
    policy: &Policy,
    now: u64,
) -> Option<&'a mut Terms> {
    terms.as_mut().filter(|terms| terms.policy == *policy && now < terms.until)
}

impl Terms {
    /// The decision on a call that was given `taken`: what is held is not used yet.
    #[inline(always)]
    fn decision(&self, cost: Cost, taken: u64, now: u64) -> Decision {
        let later = now.saturating_sub(self.heard);
        self.answer.with_unspent(&self.policy, cost, taken, self.left, later)
    }
}
