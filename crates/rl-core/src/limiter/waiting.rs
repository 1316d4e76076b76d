//! Requests that wait until their limits allow them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::counters::Counters;
use super::operation::Operation;
use super::owned_parts::OwnedParts;
use super::pipeline::Pipeline;
use crate::decision::{Decision, LimitStatus, RetryAfter};
use crate::maybe_ready::MaybeReady;
use crate::model::{Algorithm, Cost, Mode, Subject};
use crate::store::Part;

/// The wait that replaces one that is too long to be added to an `Instant`.
const A_CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The time between two checks under a concurrency limit. Another instance that frees a place does
/// not notify this one, so the request has to poll.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The bounds of a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// The longest time that a request waits.
    pub(crate) at_most: Duration,
    /// The maximum number of requests of one subject that wait at the same time.
    pub(crate) queue: usize,
    /// Whether the charge is a reservation.
    pub(crate) reserves: bool,
}

/// A request that may wait.
pub(super) struct WaitingRequest {
    pipeline: Arc<Pipeline>,
    counted: Counted,
    operation: Operation,
    wait: Wait,
}

/// The subject or the parts of a request.
enum Counted {
    Subject(Subject, Cost),
    Parts(OwnedParts),
}

impl WaitingRequest {
    /// Creates a request of one subject, under its own policy.
    pub(super) fn of_subject(
        pipeline: &Arc<Pipeline>,
        subject: &Subject,
        cost: Cost,
        wait: Wait,
    ) -> Self {
        Self::new(pipeline, Counted::Subject(subject.clone(), cost), wait)
    }

    /// Creates a request of several parts.
    pub(super) fn of_parts(pipeline: &Arc<Pipeline>, parts: &[Part<'_>], wait: Wait) -> Self {
        Self::new(pipeline, Counted::Parts(OwnedParts::new(parts)), wait)
    }

    fn new(pipeline: &Arc<Pipeline>, counted: Counted, wait: Wait) -> Self {
        let operation = Operation { reserves: wait.reserves, ..pipeline.operation(Mode::Check) };
        Self { pipeline: Arc::clone(pipeline), counted, operation, wait }
    }

    /// Checks the request. If it is denied, it waits in the queue of one part: the part that denies
    /// it for the longest time, or a part for which other requests wait already.
    pub(super) fn check(self) -> MaybeReady<Decision> {
        // Waiting does not help if a policy alone denies the request.
        if let Some(denial) = self.try_deny_by_policy() {
            return MaybeReady::ready(denial);
        }
        if let Some(part) = self.part_with_queue() {
            return MaybeReady::later(async move { self.wait_in_queue(part, None).await });
        }
        match self.decide(self.operation) {
            MaybeReady::Ready(Some(decision)) if !is_worth_a_wait(&decision) => {
                MaybeReady::ready(decision)
            }
            decision => MaybeReady::later(async move {
                let decision = decision.await;
                if is_worth_a_wait(&decision) {
                    self.wait_in_queue(decision.reported_part(), Some(decision)).await
                } else {
                    decision
                }
            }),
        }
    }

    fn try_deny_by_policy(&self) -> Option<Decision> {
        let Self { pipeline, operation, .. } = self;
        match &self.counted {
            Counted::Subject(subject, cost) => {
                let policy = pipeline.policies.cached(subject)?;
                pipeline.try_deny_by_policy(&[Part::new(subject, policy, *cost)], *operation)
            }
            Counted::Parts(parts) => pipeline.try_deny_by_policy(&parts.as_parts(), *operation),
        }
    }

    fn decide(&self, operation: Operation) -> MaybeReady<Decision> {
        match &self.counted {
            Counted::Subject(subject, cost) => {
                self.pipeline.decide_by_steps(subject, *cost, operation)
            }
            Counted::Parts(parts) => {
                self.pipeline.decide_parts_by_steps(&parts.as_parts(), operation)
            }
        }
    }

    /// Returns the position of the first enforced part for which other requests wait.
    fn part_with_queue(&self) -> Option<usize> {
        let has_waiting = |counters| self.pipeline.wait_queues.has_waiting(counters);
        match &self.counted {
            Counted::Subject(subject, _) => has_waiting(subject.into()).then_some(0),
            Counted::Parts(parts) => parts
                .as_parts()
                .iter()
                .position(|part| !part.is_shadow() && has_waiting(Counters::from(part))),
        }
    }

    /// Returns the counters of the part at `index`, which has a queue of its own.
    fn counters(&self, index: usize) -> Counters<'_> {
        match &self.counted {
            Counted::Subject(subject, _) => subject.into(),
            Counted::Parts(parts) => parts.counters(index),
        }
    }

    /// Waits in the queue of the part at `index`. `denied` is the earlier denial, if the request has
    /// already been checked.
    async fn wait_in_queue(self, index: usize, denied: Option<Decision>) -> Decision {
        let Wait { at_most, queue, .. } = self.wait;
        let begin = Instant::now();
        let until = begin.checked_add(at_most).unwrap_or_else(|| begin + A_CENTURY);
        let Some(ticket) = self.pipeline.wait_queues.enter(self.counters(index), queue) else {
            return match denied {
                Some(denied) => denied,
                None => self.decide_without_waiting().await,
            };
        };
        let (_head, denied) = match ticket.try_take_head() {
            Some(head) => (head, denied),
            // Other requests have been served meanwhile, so an earlier denial is out of date: the
            // request is checked again.
            None => match timeout_at(until, ticket.take_head()).await {
                Ok(head) => (head, None),
                Err(_) => return self.decide_without_waiting().await,
            },
        };
        let mut decision = match denied {
            Some(denied) => denied,
            None => self.decide(self.operation).await,
        };
        while is_worth_a_wait(&decision) {
            match Instant::now().checked_add(time_until_next_check(&decision)) {
                // If a place is freed meanwhile, the pause ends early.
                Some(next) if next <= until => {
                    let _ = timeout_at(next, ticket.released()).await;
                }
                _ => break,
            }
            // Only the first denial and the last decision are reported.
            decision = self.decide(Operation { reports_denial: false, ..self.operation }).await;
        }
        decision
    }

    /// Decides a request that found the queue full, or that waited too long to reach its head.
    ///
    /// It peeks first. If the limits deny the request, nothing is charged, and units that come free go
    /// to the queue.
    async fn decide_without_waiting(&self) -> Decision {
        let peek = Operation { mode: Mode::Peek, reserves: false, ..self.operation };
        let available = self.decide(peek).await;
        if available.is_allowed() { self.decide(self.operation).await } else { available }
    }
}

/// Returns whether limits deny the request now and may grant it later.
fn is_worth_a_wait(decision: &Decision) -> bool {
    !decision.is_allowed()
        && decision.origin().enforces()
        && decision.retry_after() != RetryAfter::Never
}

/// Returns the time until the limits grant the request, or until the next check of a concurrency limit.
fn time_until_next_check(denied: &Decision) -> Duration {
    let over = denied.enforced_of_all_parts().filter(LimitStatus::is_over);
    let waits = over.map(|limit| match (limit.limit().algorithm(), limit.retry_after()) {
        (Algorithm::Concurrency, RetryAfter::In(wait)) => wait.min(POLL_INTERVAL),
        (_, RetryAfter::In(wait)) => wait,
        (_, RetryAfter::Now | RetryAfter::Never) => Duration::ZERO,
    });
    waits.max().unwrap_or(POLL_INTERVAL)
}
