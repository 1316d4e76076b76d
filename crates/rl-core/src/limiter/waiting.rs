//! Requests that wait until their limits allow them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::operation::Operation;
use super::pipeline::Pipeline;
use crate::decision::{Decision, LimitStatus, RetryAfter};
use crate::maybe_ready::MaybeReady;
use crate::model::{Algorithm, Cost, Mode, Subject};

/// The end of a wait that is too long to be added to a time.
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

/// Checks a request. If it is denied, it waits in the queue of its subject.
pub(super) fn check_waiting(
    pipeline: &Arc<Pipeline>,
    subject: &Subject,
    cost: Cost,
    wait: Wait,
) -> MaybeReady<Decision> {
    let operation = Operation { reserves: wait.reserves, ..pipeline.operation(Mode::Check, cost) };
    // Waiting does not help if the policy alone denies the request.
    if let Some(denial) = pipeline.try_deny_by_policy(subject, operation) {
        return MaybeReady::ready(denial);
    }
    let (pipeline, subject) = (Arc::clone(pipeline), subject.clone());
    if pipeline.wait_queues.has_waiting(&subject) {
        return MaybeReady::later(async move {
            wait_in_queue(&pipeline, &subject, operation, wait, None).await
        });
    }
    match pipeline.decide_by_steps(&subject, operation) {
        MaybeReady::Ready(Some(decision)) if !is_worth_a_wait(&decision) => {
            MaybeReady::ready(decision)
        }
        decision => MaybeReady::later(async move {
            let decision = decision.await;
            if is_worth_a_wait(&decision) {
                wait_in_queue(&pipeline, &subject, operation, wait, Some(decision)).await
            } else {
                decision
            }
        }),
    }
}

/// Waits in the queue of the subject. `denied` is the earlier denial, if the request has already
/// been checked.
async fn wait_in_queue(
    pipeline: &Arc<Pipeline>,
    subject: &Subject,
    operation: Operation,
    Wait { at_most, queue, .. }: Wait,
    denied: Option<Decision>,
) -> Decision {
    let begin = Instant::now();
    let until = begin.checked_add(at_most).unwrap_or_else(|| begin + A_CENTURY);
    let Some(ticket) = pipeline.wait_queues.enter(subject, queue) else {
        return match denied {
            Some(denied) => denied,
            None => decide_without_waiting(pipeline, subject, operation).await,
        };
    };
    let (_head, denied) = match ticket.try_take_head() {
        Some(head) => (head, denied),
        // An earlier denial is out of date once other requests have been served, so there is none.
        None => match timeout_at(until, ticket.take_head()).await {
            Ok(head) => (head, None),
            Err(_) => return decide_without_waiting(pipeline, subject, operation).await,
        },
    };
    let mut decision = match denied {
        Some(denied) => denied,
        None => pipeline.decide_by_steps(subject, operation).await,
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
        let silent = Operation { reports_denial: false, ..operation };
        decision = pipeline.decide_by_steps(subject, silent).await;
    }
    decision
}

/// Decides a request that found the queue full, or that waited too long to reach its head.
///
/// It peeks first. If the limits deny the request, nothing is charged, and units that come free go
/// to the queue.
async fn decide_without_waiting(
    pipeline: &Arc<Pipeline>,
    subject: &Subject,
    operation: Operation,
) -> Decision {
    let peek = Operation { mode: Mode::Peek, reserves: false, ..operation };
    let available = pipeline.decide_by_steps(subject, peek).await;
    if available.is_allowed() {
        pipeline.decide_by_steps(subject, operation).await
    } else {
        available
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
    let over = denied.enforced().filter(LimitStatus::is_over);
    let waits = over.map(|limit| match (limit.limit().algorithm(), limit.retry_after()) {
        (Algorithm::Concurrency, RetryAfter::In(wait)) => wait.min(POLL_INTERVAL),
        (_, RetryAfter::In(wait)) => wait,
        (_, RetryAfter::Now | RetryAfter::Never) => Duration::ZERO,
    });
    waits.max().unwrap_or(POLL_INTERVAL)
}
