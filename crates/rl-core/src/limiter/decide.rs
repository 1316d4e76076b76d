//! From a question to a decision: the policy, the breaker, the store, the deadline, and what stands
//! in.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::RateLimiter;
use super::ask::{Waiting, timed_out};
use super::breaker::Ticket;
use super::progress::Late;
use crate::decision::{Decision, Origin};
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, FailureKind, Subject};
use crate::model::{Mode, StoreError};
use crate::observe;
use crate::policy::Policy;
use crate::store::{DecideRequest, Part};

/// What the limits of a subject are asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) mode: Mode,
    pub(super) cost: Cost,
    pub(super) deadline: Duration,
    /// Whether the decision is told to the observer and the log.
    pub(super) is_told: bool,
    /// Whether the charge is a reservation, if the limiter makes any.
    pub(super) reserves: bool,
}

impl RateLimiter {
    pub(super) fn question(&self, mode: Mode, cost: Cost) -> Question {
        Question { mode, cost, deadline: self.inner.deadline, is_told: true, reserves: false }
    }

    /// Checks, with a reservation if it `reserves`: the units come back if the process dies.
    #[inline]
    pub(crate) fn check_as(
        &self,
        subject: &Subject,
        cost: Cost,
        reserves: bool,
    ) -> MaybeReady<Decision> {
        if reserves && self.inner.reservation.is_some() {
            self.decide_as(subject, Question { reserves, ..self.question(Mode::Check, cost) })
        } else {
            self.decide(subject, Mode::Check, cost)
        }
    }

    /// Decides a request of `subject`, without waiting if the policy and the store allow it.
    #[inline]
    pub(super) fn decide(&self, subject: &Subject, mode: Mode, cost: Cost) -> MaybeReady<Decision> {
        let inner = &*self.inner;
        if inner.has_fast_path
            && let Some(policy) = inner.policies.cached(subject)
            && !(policy.has_permits() || policy.has_shadow())
            && !policy.may_deny_alone(mode.required(cost))
            && !observe::may_decisions_be_logged()
        {
            let parts = [Part::new(subject, policy, cost)];
            let request = DecideRequest::new(&inner.namespace, &parts, mode);
            if let Some(mut decision) = inner.store.try_decide(&request) {
                decision.set_limiter_id(self.id());
                return MaybeReady::ready(decision);
            }
        }
        self.decide_as(subject, self.question(mode, cost))
    }

    #[inline(never)]
    pub(super) fn decide_as(&self, subject: &Subject, question: Question) -> MaybeReady<Decision> {
        if !self.inner.enabled {
            return self.undecided(subject, question, Origin::Disabled);
        }
        if question.mode != Mode::Charge
            && let Some(policy) = self.inner.policies.cached(subject)
        {
            return self.decide_under(policy, subject, question);
        }
        match self.inner.policies.policy(subject) {
            MaybeReady::Ready(Some(policy)) => {
                self.source_calm();
                self.decide_or_pass(policy, subject, question)
            }
            found => {
                let (this, subject) = (self.clone(), subject.clone());
                MaybeReady::later(async move {
                    // The look-up is part of the decision, and of its time.
                    let (progress, deadline) =
                        (&this.inner.source_health.progress, question.deadline);
                    let sent = progress.send();
                    let found = timeout_at(sent.at + deadline, found).await;
                    let mut policy = found.unwrap_or_else(|_| Err(timed_out()));
                    match &policy {
                        Ok(_) => {
                            progress.answered(sent);
                            this.source_answered(&subject);
                        }
                        Err(error) if error.kind() == FailureKind::TimedOut => {
                            if progress.judge(sent, deadline, Instant::now()) != Late::Outage {
                                policy = Err(StoreError::new(FailureKind::Overloaded));
                            }
                        }
                        Err(_) => {}
                    }
                    let deadline = deadline.saturating_sub(sent.at.elapsed());
                    this.decide_or_pass(policy, &subject, Question { deadline, ..question }).await
                })
            }
        }
    }

    fn decide_or_pass(
        &self,
        policy: Result<Option<Policy>, StoreError>,
        subject: &Subject,
        question: Question,
    ) -> MaybeReady<Decision> {
        let policy = match self.or_when_overloaded(policy) {
            // Work that is done already holds no place.
            Ok(Some(policy)) if question.mode == Mode::Charge => {
                policy.only(|_, limit| !limit.holds_permits())
            }
            Ok(policy) => policy,
            Err(error) => {
                self.source_failed(subject, &error);
                return self.stand_in(None, subject, question, error.kind());
            }
        };
        match policy {
            Some(policy) => self.decide_under(&policy, subject, question),
            None => self.undecided(subject, question, Origin::Unlimited),
        }
    }

    pub(super) fn decide_under(
        &self,
        policy: &Policy,
        subject: &Subject,
        question: Question,
    ) -> MaybeReady<Decision> {
        if let Some(denied) = self.denied_by_policy(policy, subject, question) {
            return MaybeReady::ready(denied);
        }
        let ticket = match self.inner.breaker.admit() {
            Ok(ticket) => ticket,
            Err(failure) => {
                self.inner.store_health.outage.count_if_on();
                return self.stand_in(Some(policy), subject, question, failure);
            }
        };
        // Checked before the store is asked, so that refused requests cost next to nothing.
        if self.inner.in_flight.is_full() {
            return self.decide_overloaded(policy, subject, question);
        }
        let is_for_permits = policy.has_permits() && question.mode != Mode::Peek;
        let answer = if is_for_permits {
            self.ask_for_permits(policy, subject, question)
        } else {
            self.ask_at_leisure(&self.inner.store, policy, subject, question)
        };
        match answer {
            MaybeReady::Ready(Some(Ok(mut decision))) => {
                self.conclude(subject, question, ticket, &mut decision);
                MaybeReady::ready(decision)
            }
            MaybeReady::Ready(Some(Err(error))) => {
                self.decide_failed(policy, subject, question, ticket, &error)
            }
            MaybeReady::Ready(None) => unreachable!("nobody has taken the answer"),
            MaybeReady::Boxed(answer) => {
                // Who asks for permits minds the deadline already.
                let deadline = (!is_for_permits).then_some(question.deadline);
                self.decide_later(policy, subject, question, ticket, answer, deadline)
            }
        }
    }

    /// A decision that has to be waited for.
    #[inline(never)]
    fn decide_later(
        &self,
        policy: &Policy,
        subject: &Subject,
        question: Question,
        ticket: Ticket,
        answer: Waiting<Result<Decision, StoreError>>,
        deadline: Option<Duration>,
    ) -> MaybeReady<Decision> {
        let Some(slot) = self.inner.in_flight.enter() else {
            drop(answer);
            return self.decide_overloaded(policy, subject, question);
        };
        let (this, policy, subject) = (self.clone(), policy.clone(), subject.clone());
        MaybeReady::later(async move {
            let answer = match deadline {
                Some(deadline) => {
                    let answer = timeout_at(slot.sent_at() + deadline, answer).await;
                    answer.unwrap_or_else(|_| Err(timed_out()))
                }
                None => answer.await,
            };
            match answer {
                Ok(mut decision) => {
                    slot.answered();
                    this.conclude(&subject, question, ticket, &mut decision);
                    decision
                }
                Err(error) if error.kind() == FailureKind::TimedOut => {
                    if slot.timed_out(question.deadline) {
                        return this.decide_overloaded(&policy, &subject, question).await;
                    }
                    // If the look-up of the policy took most of the time, that says nothing about the
                    // store. A ticket that is dropped has told nothing.
                    if question.deadline >= this.inner.deadline / 2 {
                        this.store_failed(&subject, ticket, &error);
                    }
                    this.stand_in(Some(&policy), &subject, question, error.kind()).await
                }
                Err(error) => {
                    drop(slot);
                    this.decide_failed(&policy, &subject, question, ticket, &error).await
                }
            }
        })
    }

    /// Notes what the store has decided, and tells it.
    #[inline]
    fn conclude(
        &self,
        subject: &Subject,
        question: Question,
        ticket: Ticket,
        decision: &mut Decision,
    ) {
        // What is known without asking says nothing about the store.
        if !matches!(decision.origin(), Origin::LocalDeny | Origin::Leased) {
            self.store_answered(subject, ticket);
        }
        self.tell(subject, question, decision);
    }

    pub(super) fn undecided(
        &self,
        subject: &Subject,
        question: Question,
        origin: Origin,
    ) -> MaybeReady<Decision> {
        let decision = Decision::undecided(question.cost, origin);
        MaybeReady::ready(self.report(subject, question, decision))
    }

    /// Tells what was decided. A decision that is worth a wait is told when the wait has ended.
    pub(super) fn report(
        &self,
        subject: &Subject,
        question: Question,
        mut decision: Decision,
    ) -> Decision {
        self.tell(subject, question, &mut decision);
        decision
    }

    #[inline]
    fn tell(&self, subject: &Subject, question: Question, decision: &mut Decision) {
        if self.inner.is_shadow {
            decision.apply_shadow();
        }
        decision.set_limiter_id(self.id());
        if question.is_told || decision.is_allowed() {
            observe::decided(subject, decision);
            if decision.has_shadow() {
                self.report_shadow(subject, decision);
            }
            if let Some(observer) = &self.inner.observer {
                observer.decided(subject, decision);
            }
        }
    }
}
