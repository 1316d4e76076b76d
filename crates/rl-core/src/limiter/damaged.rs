//! Subjects whose stored value is damaged: a log line when one is found, and one when it has recovered.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::failure::LONG_CALM;
use crate::model::Redacted;
use crate::model::Subject;
use crate::observe::{Ended, Transition};

/// Subjects that have log lines of their own; further ones are counted together.
const MOST: usize = 64;

/// The subjects whose stored value was found damaged.
#[derive(Debug, Default)]
pub(super) struct Damaged {
    // The number of subjects, so that a decision costs one load while none is damaged.
    count: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    subjects: HashMap<Redacted, Transition>,
    /// Those beyond [`MOST`].
    others: Transition,
    /// The last sweep over subjects that send no more requests.
    swept_at: Instant,
}

impl Default for State {
    fn default() -> Self {
        let (subjects, others) = (HashMap::new(), Transition::new(LONG_CALM));
        Self { subjects, others, swept_at: Instant::now() }
    }
}

/// Which log line a damaged value gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A line that names the subject.
    First,
    /// A line that says that there are too many to name.
    TooMany,
    /// Nothing.
    Again,
}

impl Damaged {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the value of a subject is damaged.
    pub(super) fn found(&self, subject: Redacted) -> Found {
        let mut state = self.state();
        let (count, has_room) = (state.subjects.len(), state.subjects.len() < MOST);
        match state.subjects.get(&subject) {
            Some(known) => {
                known.occurred();
                Found::Again
            }
            None if has_room => {
                let known = Transition::new(LONG_CALM);
                known.occurred();
                state.subjects.insert(subject, known);
                self.count.store(count + 1, Ordering::Relaxed);
                Found::First
            }
            None if state.others.occurred() => Found::TooMany,
            None => Found::Again,
        }
    }

    /// Notes that a request of the subject was decided. Returns the subjects whose damage is over: this
    /// one, and at times those that send no more requests.
    ///
    /// Costs one relaxed load while no value is damaged.
    #[inline]
    pub(super) fn decided(&self, subject: &Subject) -> Vec<(Redacted, Ended)> {
        if self.count.load(Ordering::Relaxed) == 0 { Vec::new() } else { self.over(subject) }
    }

    #[cold]
    fn over(&self, subject: &Subject) -> Vec<(Redacted, Ended)> {
        let subject = subject.redacted();
        let mut state = self.state();
        let mut over = Vec::new();
        let is_sweep = state.swept_at.elapsed() >= LONG_CALM / 4;
        if is_sweep {
            state.swept_at = Instant::now();
        }
        state.subjects.retain(|known, damage| {
            let ended = if *known == subject {
                damage.end()
            } else if is_sweep {
                damage.ended()
            } else {
                None
            };
            over.extend(ended.map(|ended| (*known, ended)));
            ended.is_none()
        });
        if state.subjects.is_empty() {
            state.others.end();
        }
        self.count.store(state.subjects.len(), Ordering::Relaxed);
        over
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn damage_is_over_when_its_subject_is_decided_or_sends_no_more_requests() {
        let damaged = Damaged::default();
        let [alice, bob, carol] = ["alice", "bob", "carol"].map(Subject::user);
        assert_eq!(damaged.decided(&alice), []);
        assert_eq!(damaged.found(alice.redacted()), Found::First);
        assert_eq!(damaged.found(alice.redacted()), Found::Again);
        assert_eq!(damaged.found(bob.redacted()), Found::First);
        assert_eq!(damaged.decided(&carol), []);

        let over = damaged.decided(&alice);
        assert!(
            matches!(over[..], [(subject, ended)] if subject == alice.redacted() && ended.count == 2)
        );
        assert_eq!(damaged.decided(&alice), []);

        advance(LONG_CALM).await;
        let over = damaged.decided(&carol);
        assert!(matches!(over[..], [(subject, _)] if subject == bob.redacted()), "{over:?}");
        assert_eq!(damaged.count.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn many_damaged_values_are_named_up_to_a_number_and_then_counted_together() {
        let damaged = Damaged::default();
        let found = (0..1_000).map(|id| damaged.found(Subject::user(&id.to_string()).redacted()));
        let found: Vec<_> = found.collect();
        let of = |kind| found.iter().filter(|found| **found == kind).count();
        assert_eq!((of(Found::First), of(Found::TooMany)), (MOST, 1));
    }
}
