//! Denials that need no counter: blocks, limits of 0, and costs above every capacity.

#[cfg(test)]
mod tests;

use super::RateLimiter;
use super::decide::Question;
use crate::decision::Decision;
use crate::model::Mode;
use crate::model::Subject;
use crate::policy::Policy;

impl RateLimiter {
    /// Returns the denial of a request that the policy alone denies.
    ///
    /// It precedes the breaker, the count of decisions in flight, the store and the failure policy, so it
    /// holds when none of them can decide.
    #[inline]
    pub(super) fn denied_by_policy(
        &self,
        policy: &Policy,
        subject: &Subject,
        question: Question,
    ) -> Option<Decision> {
        let needed = question.mode.required(question.cost);
        // A limiter in shadow denies nothing, and a charge is for work that is done already.
        if !policy.may_deny_alone(needed) || self.inner.is_shadow || question.mode == Mode::Charge {
            return None;
        }
        self.deny_by_policy(policy, subject, question, needed)
    }

    #[cold]
    fn deny_by_policy(
        &self,
        policy: &Policy,
        subject: &Subject,
        question: Question,
        needed: u64,
    ) -> Option<Decision> {
        let denial = self.blocked(policy, question).or_else(|| {
            let never = policy.never_grants(needed);
            never.then(|| Decision::never_granted(policy, question.cost, needed))
        })?;
        Some(self.report(subject, question, denial))
    }

    /// Returns the denial of a block that holds now.
    fn blocked(&self, policy: &Policy, question: Question) -> Option<Decision> {
        let block = policy.block()?;
        let now = self.inner.clock.now();
        block.holds_at(now).then(|| Decision::blocked(block, question.cost, now))
    }
}
