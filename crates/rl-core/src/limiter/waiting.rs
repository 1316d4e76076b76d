#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::RateLimiter;
use crate::{Algorithm, Cost, Decision, Eventual, LimitReport, RetryAfter, Subject};

impl RateLimiter {
    /// [`check`](Self::check), which waits until the limits grant the cost: for `at_most` so long,
    /// with at most `queue` requests of the subject in the line, first come first served.
    ///
    /// Denied at once is who would have to wait for longer, whoever comes when the line is full, and
    /// what no wait helps; being turned away for a store that failed is no reason to wait. The order
    /// holds among the requests of this limiter and its clones; other instances that share its store
    /// have lines of their own.
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
    ) -> Eventual<Decision> {
        let (this, subject, cost) = (self.clone(), subject.clone(), cost.into());
        let wait = Wait { at_most, queue };
        if self.inner.lines.is_waited_for(&subject) {
            return Eventual::later(async move { this.wait(&subject, cost, wait, None).await });
        }
        match self.check(&subject, cost) {
            Eventual::Ready(Some(decision)) if !is_worth_a_wait(&decision) => {
                Eventual::ready(decision)
            }
            decision => Eventual::later(async move {
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
        Wait { at_most, queue }: Wait,
        denied: Option<Decision>,
    ) -> Decision {
        let until = Instant::now() + at_most;
        let lines = &self.inner.lines;
        let Some(place) = lines.join(subject, queue, denied.as_ref()) else {
            return self.or_check(subject, cost, denied.or_else(|| lines.latest(subject))).await;
        };
        let Ok(_turn) = timeout_at(until, place.turn()).await else {
            return self.or_check(subject, cost, lines.latest(subject)).await;
        };
        let mut denied = denied;
        loop {
            let decision = match denied.take() {
                Some(decision) => decision,
                None => self.check(subject, cost).await,
            };
            if !is_worth_a_wait(&decision) {
                return decision;
            }
            match Instant::now().checked_add(next_look(&decision)) {
                Some(look) if look <= until => {
                    place.tell(decision);
                    // Looks sooner if a permit has been given back meanwhile.
                    let _ = timeout_at(look, place.moved_up.notified()).await;
                }
                _ => return decision,
            }
        }
    }

    /// What is known of the line, or else how the request itself fares.
    async fn or_check(&self, subject: &Subject, cost: Cost, known: Option<Decision>) -> Decision {
        match known {
            Some(decision) => decision,
            None => self.check(subject, cost).await,
        }
    }
}

#[derive(Clone, Copy)]
struct Wait {
    at_most: Duration,
    queue: usize,
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

    let over = denied.enforced().filter(LimitReport::is_over);
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

#[derive(Debug)]
struct Line {
    // Whose turn it is holds the only permit; a semaphore is fair.
    turn: Arc<Semaphore>,
    // Told when a permit is given back.
    moved_up: Arc<Notify>,
    waiting: usize,
    // How the first in line fared last, once it is known.
    latest: Option<Decision>,
}

/// A place in a line, left when it is dropped.
struct Place<'a> {
    lines: &'a Lines,
    subject: &'a Subject,
    turn: Arc<Semaphore>,
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

    /// How the first in line fared last.
    fn latest(&self, subject: &Subject) -> Option<Decision> {
        self.lock().get(subject).and_then(|line| line.latest.clone())
    }

    /// A place at the end of the subject's line, unless it is full; `denied` is how a first in line
    /// has fared.
    fn join<'a>(
        &'a self,
        subject: &'a Subject,
        queue: usize,
        denied: Option<&Decision>,
    ) -> Option<Place<'a>> {
        let mut lines = self.lock();
        if lines.get(subject).map_or(0, |line| line.waiting) >= queue {
            return None;
        }
        let line = lines.entry(subject.clone()).or_insert_with(|| Line {
            turn: Arc::new(Semaphore::new(1)),
            moved_up: Arc::default(),
            waiting: 0,
            latest: denied.cloned(),
        });
        line.waiting += 1;
        let (turn, moved_up) = (Arc::clone(&line.turn), Arc::clone(&line.moved_up));
        Some(Place { lines: self, subject, turn, moved_up })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Subject, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place<'_> {
    async fn turn(&self) -> OwnedSemaphorePermit {
        let turn = Arc::clone(&self.turn).acquire_owned().await;
        turn.expect("the semaphore of a line is never closed")
    }

    /// Tells those behind how the first in line fares.
    fn tell(&self, denied: Decision) {
        if let Some(line) = self.lines.lock().get_mut(self.subject) {
            line.latest = Some(denied);
        }
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
