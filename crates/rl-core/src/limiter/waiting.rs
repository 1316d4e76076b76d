#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::RateLimiter;
use super::decide::Question;
use crate::decision::{Decision, LimitStatus, RetryAfter};
use crate::maybe_ready::MaybeReady;
use crate::model::Mode;
use crate::model::{Algorithm, Cost, Subject};

impl RateLimiter {
    /// [`check`](Self::check), which waits until the limits grant the cost: for `at_most` so long,
    /// with at most `queue` requests of the subject in the line, first come first served.
    ///
    /// Denied is whoever comes when the line is full, and when it is its turn, who would have to wait for
    /// longer, and what no wait helps; being turned away for a store that failed is no
    /// reason to wait. The
    /// order holds among the requests of this limiter and its clones; other instances that share its
    /// store have lines of their own.
    ///
    /// To hold a place under a concurrency limit, give the decision to [`permit`](Self::permit).
    ///
    /// The observer is told when a request begins to wait, by its denial, and when it is allowed in the
    /// end.
    ///
    /// Requests wait on tokio's timers, whatever the clock of the store. Tests that must not wait in
    /// real time give the store a [`TokioClock`](crate::time::TokioClock).
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped leaves its place in the line, and the next one moves up. A check that
    /// is under way then may have taken its units.
    ///
    /// # Panics
    ///
    /// The future panics outside a tokio runtime with a timer, if it has to wait.
    pub fn check_waiting(
        &self,
        subject: &Subject,
        cost: impl Into<Cost>,
        at_most: Duration,
        queue: usize,
    ) -> MaybeReady<Decision> {
        let wait = Wait { at_most, queue, reserves: false };
        self.check_waiting_as(subject, cost.into(), wait)
    }

    pub(crate) fn check_waiting_as(
        &self,
        subject: &Subject,
        cost: Cost,
        wait: Wait,
    ) -> MaybeReady<Decision> {
        let (this, subject) = (self.clone(), subject.clone());
        // Waiting cannot help against a denial by the policy alone.
        if self.inner.enabled
            && let Some(policy) = self.inner.policies.cached(&subject)
            && let Some(denied) =
                self.denied_by_policy(policy, &subject, self.question(Mode::Check, cost))
        {
            return MaybeReady::ready(denied);
        }
        if self.inner.lines.is_waited_for(&subject) {
            return MaybeReady::later(async move { this.wait(&subject, cost, wait, None).await });
        }
        match self.check_as(&subject, cost, wait.reserves) {
            MaybeReady::Ready(Some(decision)) if !is_worth_a_wait(&decision) => {
                MaybeReady::ready(decision)
            }
            decision => MaybeReady::later(async move {
                let decision = decision.await;
                if is_worth_a_wait(&decision) {
                    this.wait(&subject, cost, wait, Some(decision)).await
                } else {
                    decision
                }
            }),
        }
    }

    /// Waits in line; `denied` is how the request fared before, if it has been asked.
    async fn wait(
        &self,
        subject: &Subject,
        cost: Cost,
        Wait { at_most, queue, reserves }: Wait,
        denied: Option<Decision>,
    ) -> Decision {
        let begin = Instant::now();
        // For ever, if the clock does not reach so far.
        let until = begin.checked_add(at_most).unwrap_or_else(|| begin + A_CENTURY);
        let Some(place) = self.inner.lines.join(subject, queue) else {
            return match denied {
                Some(denied) => denied,
                None => self.stand_back(subject, cost, reserves).await,
            };
        };
        let (_turn, denied) = match place.turn_now() {
            Some(turn) => (turn, denied),
            // What was true before others had their turn will not be then.
            None => match timeout_at(until, place.turn()).await {
                Ok(turn) => (turn, None),
                Err(_) => return self.stand_back(subject, cost, reserves).await,
            },
        };
        let mut decision = match denied {
            Some(denied) => denied,
            None => self.check_as(subject, cost, reserves).await,
        };
        while is_worth_a_wait(&decision) {
            match Instant::now().checked_add(next_look(&decision)) {
                // Looks sooner if a permit has been given back meanwhile.
                Some(look) if look <= until => {
                    let _ = timeout_at(look, place.moved_up.notified()).await;
                }
                _ => break,
            }
            // Told when it has ended well; that it began to wait has been.
            let question =
                Question { is_told: false, reserves, ..self.question(Mode::Check, cost) };
            decision = self.decide_as(subject, question).await;
        }
        decision
    }

    /// How a request fares that does not get its turn: no better than those who wait.
    async fn stand_back(&self, subject: &Subject, cost: Cost, reserves: bool) -> Decision {
        let seen = self.peek(subject, cost).await;
        // The units that are there belong to who waits, unless nobody does any more.
        if seen.is_allowed() { self.check_as(subject, cost, reserves).await } else { seen }
    }
}

/// The longest that a request waits.
const A_CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

/// How a request waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// The longest time that it waits.
    pub(crate) at_most: Duration,
    /// The most requests of the subject that wait.
    pub(crate) queue: usize,
    /// Whether its charge is a reservation.
    pub(crate) reserves: bool,
}

/// Whether the limits deny it now and may grant it later.
fn is_worth_a_wait(decision: &Decision) -> bool {
    !decision.is_allowed()
        && decision.origin().enforces()
        && decision.retry_after() != RetryAfter::Never
}

/// How long to wait until the limits grant it, or are worth another look: when a permit is given back
/// on another instance, nobody tells.
fn next_look(denied: &Decision) -> Duration {
    const LOOK: Duration = Duration::from_millis(50);

    let over = denied.enforced().filter(LimitStatus::is_over);
    let waits = over.map(|limit| match (limit.limit().algorithm(), limit.retry_after()) {
        (Algorithm::Concurrency, RetryAfter::In(wait)) => wait.min(LOOK),
        (_, RetryAfter::In(wait)) => wait,
        (_, RetryAfter::Now | RetryAfter::Never) => Duration::ZERO,
    });
    waits.max().unwrap_or(LOOK)
}

/// The subjects whose requests wait, each with a line.
#[derive(Debug, Default)]
pub(super) struct Lines(Mutex<HashMap<Subject, Line>>);

#[derive(Debug, Default)]
struct Line {
    turn: Arc<Turn>,
    // Told when a permit is given back.
    moved_up: Arc<Notify>,
    waiting: usize,
}

/// Whose turn it is holds the only permit; a semaphore is fair.
#[derive(Debug)]
struct Turn(Arc<Semaphore>);

impl Default for Turn {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

/// A place in a line, left when it is dropped.
struct Place<'a> {
    lines: &'a Lines,
    subject: &'a Subject,
    turn: Arc<Turn>,
    moved_up: Arc<Notify>,
}

impl Lines {
    fn is_waited_for(&self, subject: &Subject) -> bool {
        self.lock().contains_key(subject)
    }

    /// Tells the first in line that a permit of the subject has been given back.
    pub(super) fn move_up(&self, subject: &Subject) {
        if let Some(line) = self.lock().get(subject) {
            line.moved_up.notify_one();
        }
    }

    /// A place at the end of the subject's line, unless it is full.
    fn join<'a>(&'a self, subject: &'a Subject, queue: usize) -> Option<Place<'a>> {
        let mut lines = self.lock();
        if lines.get(subject).map_or(0, |line| line.waiting) >= queue {
            return None;
        }
        let line = lines.entry(subject.clone()).or_default();
        line.waiting += 1;
        let (turn, moved_up) = (Arc::clone(&line.turn), Arc::clone(&line.moved_up));
        Some(Place { lines: self, subject, turn, moved_up })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Subject, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place<'_> {
    /// The turn, if nobody is before.
    fn turn_now(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.turn.0).try_acquire_owned().ok()
    }

    async fn turn(&self) -> OwnedSemaphorePermit {
        let turn = Arc::clone(&self.turn.0).acquire_owned().await;
        turn.expect("the semaphore of a line is never closed")
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.lock();
        if let Some(line) = lines.get_mut(self.subject) {
            line.waiting -= 1;
            if line.waiting == 0 {
                lines.remove(self.subject);
            }
        }
    }
}
