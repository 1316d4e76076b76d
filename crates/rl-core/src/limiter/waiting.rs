//! Requests that wait until their limits allow them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::operation::Operation;
use super::parts::{CounterKey, OwnedParts};
use super::pauses::A_CENTURY;
use super::pipeline::Pipeline;
use crate::decision::{Decision, LimitStatus, Origin, RetryAfter};
use crate::maybe_ready::MaybeReady;
use crate::model::{Algorithm, Cost, Mode, Subject};
use crate::rules::{OverLimit, RequestParts};
use crate::store::Part;

/// The time between two checks under a concurrency limit. Another instance that frees a place does
/// not notify this one, so the request has to poll.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The bounds of a wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// The longest time that a request waits.
    pub(super) at_most: Duration,
    /// The maximum number of requests of one subject that wait at the same time.
    pub(super) queue: usize,
}

/// A request that may wait.
pub(super) struct QueuedRequest {
    pipeline: Arc<Pipeline>,
    counted: Counted,
    operation: Operation,
}

/// The subject or the parts of a request, and the bounds of its wait.
enum Counted {
    Subject(Subject, Cost, Wait),
    Parts(OwnedParts, Wait),
    /// The parts that rules make of a request, and the setting for rules that have none of their
    /// own.
    Rules(Arc<RequestParts>, OverLimit),
}

impl QueuedRequest {
    /// Creates a request of one subject, under its own policy.
    pub(super) fn of_subject(
        pipeline: &Arc<Pipeline>,
        (subject, cost): (&Subject, Cost),
        wait: Wait,
        operation: Operation,
    ) -> Self {
        Self::new(pipeline, Counted::Subject(subject.clone(), cost, wait), operation)
    }

    /// Creates a request of several parts.
    pub(super) fn of_parts(
        pipeline: &Arc<Pipeline>,
        parts: &[Part<'_>],
        wait: Wait,
        operation: Operation,
    ) -> Self {
        Self::new(pipeline, Counted::Parts(OwnedParts::new(parts), wait), operation)
    }

    /// Creates a request that is counted under rules. If it is denied, the settings of the rules
    /// that deny it say whether it waits. `default` applies to rules that have no setting of their
    /// own.
    pub(super) fn of_rules(
        pipeline: &Arc<Pipeline>,
        parts: &Arc<RequestParts>,
        default: OverLimit,
        operation: Operation,
    ) -> Self {
        Self::new(pipeline, Counted::Rules(Arc::clone(parts), default), operation)
    }

    fn new(pipeline: &Arc<Pipeline>, counted: Counted, operation: Operation) -> Self {
        let operation = Operation { is_counted: false, ..operation };
        Self { pipeline: Arc::clone(pipeline), counted, operation }
    }

    /// Checks the request. If it is denied, it waits in the queue of the part that denies it for
    /// the longest time. If other requests already wait for one of its parts, it enters their queue
    /// before it is checked.
    pub(super) fn check(self) -> MaybeReady<Decision> {
        // Waiting does not help if a policy alone denies the request.
        if let Some(denial) = self.try_deny_by_policy() {
            return MaybeReady::ready(self.counted(denial));
        }
        if let Some((part, wait)) = self.part_with_queue() {
            return MaybeReady::later(async move {
                match self.denial_without_wait().await {
                    Some(denial) => self.counted(denial),
                    None => self.wait(part, wait, None).await,
                }
            });
        }
        match self.decide(self.operation) {
            MaybeReady::Ready(Some(decision)) if self.wait_after(&decision).is_none() => {
                MaybeReady::ready(self.counted(decision))
            }
            decision => MaybeReady::later(async move {
                let decision = decision.await;
                match self.wait_after(&decision) {
                    Some(wait) => self.wait(decision.reported_part(), wait, Some(decision)).await,
                    None => self.counted(decision),
                }
            }),
        }
    }

    /// Returns the denial of a request that some rule would reject at the head of the queue. Such a
    /// request must not take a place in the queue of another rule.
    async fn denial_without_wait(&self) -> Option<Decision> {
        let Counted::Rules(..) = self.counted else { return None };
        let denial = self.peek(self.operation).await;
        (!denial.is_allowed() && self.wait_after(&denial).is_none()).then_some(denial)
    }

    /// Waits in queues, and counts the last decision.
    async fn wait(&self, part: usize, wait: Wait, denied: Option<Decision>) -> Decision {
        let begin = Instant::now();
        let decision = self.wait_in_queue(part, wait, denied).await;
        self.pipeline.tally.waited(begin.elapsed());
        self.counted(decision)
    }

    /// Counts the last decision about the request, and returns it.
    fn counted(&self, decision: Decision) -> Decision {
        self.pipeline.tally.count(Mode::Check, &decision, &|index| self.counters(index));
        decision
    }

    /// Returns the bounds of the wait after a denial; `None` if the request does not wait. Rules
    /// may have different settings, so each denial has bounds of its own.
    fn wait_after(&self, decision: &Decision) -> Option<Wait> {
        if !is_worth_a_wait(decision) && !self.is_paused(decision) {
            return None;
        }
        match &self.counted {
            Counted::Subject(.., wait) | Counted::Parts(_, wait) => Some(*wait),
            Counted::Rules(parts, default) => {
                wait_of(parts.on_over_limit(decision.denying_parts(), *default))
            }
        }
    }

    /// Returns whether a [pause](crate::RateLimiter::pause) denies the request. It denies like a
    /// block, but ends soon.
    fn is_paused(&self, denied: &Decision) -> bool {
        let is_paused =
            |part| self.pipeline.pauses.remaining(self.counters(part).subject).is_some();
        denied.origin() == Origin::Policy
            && denied.retry_after() != RetryAfter::Never
            && is_paused(denied.reported_part())
    }

    fn try_deny_by_policy(&self) -> Option<Decision> {
        let Self { pipeline, operation, .. } = self;
        match &self.counted {
            Counted::Subject(subject, cost, _) => {
                let policy = pipeline.policies.cached(subject)?;
                pipeline.try_deny_by_policy(&[Part::new(subject, policy, *cost)], *operation)
            }
            Counted::Parts(parts, _) => pipeline.try_deny_by_policy(&parts.as_parts(), *operation),
            Counted::Rules(parts, _) => pipeline.try_deny_by_policy(&parts.parts(), *operation),
        }
    }

    fn decide(&self, operation: Operation) -> MaybeReady<Decision> {
        match &self.counted {
            Counted::Subject(subject, cost, _) => {
                self.pipeline.decide_by_steps(subject, *cost, operation)
            }
            Counted::Parts(parts, _) => self.pipeline.decide_parts(&parts.as_parts(), operation),
            Counted::Rules(parts, _) => self.pipeline.decide_parts(&parts.parts(), operation),
        }
    }

    /// Returns the position of the first enforced part for which other requests wait, and the
    /// bounds of a wait for it. A part whose rule rejects or degrades is skipped.
    fn part_with_queue(&self) -> Option<(usize, Wait)> {
        let has_waiting = |part: &Part<'_>| {
            !part.is_shadow() && self.pipeline.wait_queues.has_waiting(CounterKey::from(part))
        };
        match &self.counted {
            Counted::Subject(subject, _, wait) => {
                self.pipeline.wait_queues.has_waiting(subject.into()).then_some((0, *wait))
            }
            Counted::Parts(parts, wait) => {
                Some((parts.as_parts().iter().position(has_waiting)?, *wait))
            }
            Counted::Rules(parts, default) => {
                let of_rules = parts.parts();
                let waited_for = of_rules.iter().enumerate().filter(|(_, part)| has_waiting(part));
                let wait_for =
                    |index| wait_of(parts.on_over_limit(std::iter::once(index), *default));
                waited_for.map(|(index, _)| index).find_map(|index| Some((index, wait_for(index)?)))
            }
        }
    }

    /// Returns the counters of the part at `index`, for which the request waits in one queue.
    fn counters(&self, index: usize) -> CounterKey<'_> {
        match &self.counted {
            Counted::Subject(subject, ..) => subject.into(),
            Counted::Parts(parts, _) => parts.counters(index),
            Counted::Rules(parts, _) => CounterKey::from(&parts.parts()[index]),
        }
    }

    /// Waits in the queue of the part at `index`. `denied` is the earlier denial, if the request
    /// has already been checked.
    ///
    /// If another part denies the request at the head of the queue, the request moves to the queue
    /// of that part. Otherwise it would block requests that wait only for the first part.
    async fn wait_in_queue(
        &self,
        mut index: usize,
        mut wait: Wait,
        mut denied: Option<Decision>,
    ) -> Decision {
        let begin = Instant::now();
        // A denial is reported only if it is the first. An allowed request is always reported.
        let reports_denial = denied.is_none() && self.operation.reports_denial;
        // Each check in the queue gets the full deadline. A look-up before the first check may have
        // used up most of the deadline of the operation.
        let deadline = self.pipeline.stores.deadline;
        let mut operation = Operation { reports_denial, deadline, ..self.operation };
        loop {
            let until = end_of(begin, wait);
            let Some(ticket) = self.pipeline.wait_queues.enter(self.counters(index), wait.queue)
            else {
                return match denied {
                    Some(denied) => denied,
                    None => self.decide_behind_queue(index, operation).await,
                };
            };
            let (_head, denied_now) = match ticket.try_take_head() {
                // A place that was freed before this request entered the queue did not wake it. So
                // a request over a concurrency limit is checked again.
                Some(head) => (head, denied.take().filter(|denied| !is_over_concurrency(denied))),
                // Other requests have been served meanwhile, so an earlier denial is out of date:
                // the request is checked again.
                None => match timeout_at(until, ticket.take_head()).await {
                    Ok(head) => (head, None),
                    Err(_) => return self.decide_behind_queue(index, operation).await,
                },
            };
            let mut decision = match denied_now {
                Some(denied) => denied,
                None => self.decide(operation).await,
            };
            operation.reports_denial = false;
            loop {
                match self.wait_after(&decision) {
                    Some(bounds) => wait = bounds,
                    None => return decision,
                }
                if decision.reported_part() != index {
                    index = decision.reported_part();
                    denied = Some(decision);
                    break;
                }
                match Instant::now().checked_add(time_until_next_check(&decision)) {
                    // If a place is freed meanwhile, the pause ends early.
                    Some(next) if next <= end_of(begin, wait) => {
                        let _ = timeout_at(next, ticket.released()).await;
                    }
                    _ => return decision,
                }
                decision = self.decide(operation).await;
            }
        }
    }

    /// Decides a request that found the queue of the part at `index` full, or that waited too long
    /// to reach its head.
    ///
    /// If the limits would allow the request, units have come free. They belong to the requests
    /// that wait, so the first of them is woken and this one is denied. Otherwise a client that
    /// sends often enough would take every unit before a request that waits.
    async fn decide_behind_queue(&self, index: usize, operation: Operation) -> Decision {
        let peeked = self.peek(operation).await;
        if !peeked.is_allowed() {
            return peeked;
        }
        let counters = self.counters(index);
        if !peeked.origin().enforces() || !self.pipeline.wait_queues.has_waiting(counters) {
            return self.decide(operation).await;
        }
        self.pipeline.wait_queues.notify_released(counters);
        peeked.denied_behind_queue(index)
    }

    fn peek(&self, operation: Operation) -> MaybeReady<Decision> {
        self.decide(Operation { mode: Mode::Peek, reserves: false, ..operation })
    }
}

fn wait_of(over_limit: OverLimit) -> Option<Wait> {
    match over_limit {
        OverLimit::Wait { at_most, queue } => Some(Wait { at_most, queue }),
        OverLimit::Reject | OverLimit::Degrade => None,
    }
}

/// Returns the end of a wait that began at `begin`.
fn end_of(begin: Instant, wait: Wait) -> Instant {
    begin.checked_add(wait.at_most).unwrap_or_else(|| begin + A_CENTURY)
}

/// Returns whether a concurrency limit denies the request.
fn is_over_concurrency(denied: &Decision) -> bool {
    let mut over = denied.enforced_of_all_parts().filter(LimitStatus::is_over);
    over.any(|limit| limit.limit().algorithm() == Algorithm::Concurrency)
}

/// Returns whether limits deny the request now and may grant it later.
fn is_worth_a_wait(decision: &Decision) -> bool {
    !decision.is_allowed()
        && decision.origin().enforces()
        && decision.retry_after() != RetryAfter::Never
}

/// Returns the time until the limits grant the request, or until the next check of a concurrency
/// limit.
fn time_until_next_check(denied: &Decision) -> Duration {
    let over = denied.enforced_of_all_parts().filter(LimitStatus::is_over);
    let waits = over.map(|limit| match (limit.limit().algorithm(), limit.retry_after()) {
        (Algorithm::Concurrency, RetryAfter::In(wait)) => wait.min(POLL_INTERVAL),
        (_, RetryAfter::In(wait)) => wait,
        (_, RetryAfter::Now | RetryAfter::Never) => Duration::ZERO,
    });
    waits.max().unwrap_or(POLL_INTERVAL)
}
