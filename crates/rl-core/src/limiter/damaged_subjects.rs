//! Subjects whose stored value is damaged, or whose policy cannot be read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::model::Redacted;
use crate::model::Subject;
use crate::observe::{Ended, Transition};

/// A condition is considered over when it has not occurred for this time, even if no success has
/// shown its end.
pub(super) const LONG_RECOVERY_PERIOD: Duration = Duration::from_secs(60);

/// The maximum number of subjects that are reported by name. Further ones are reported together.
const MAX_SUBJECTS: usize = 64;

/// Samples the reports of damaged subjects: one when a subject is found damaged, one when it has
/// recovered.
#[derive(Debug, Default)]
pub(super) struct DamagedSubjects {
    // The number of damaged subjects. While it is 0, a decision only loads this number.
    count: AtomicUsize,
    state: Mutex<DamagedState>,
}

#[derive(Debug)]
struct DamagedState {
    subjects: HashMap<Redacted, Transition>,
    /// The subjects beyond [`MAX_SUBJECTS`].
    others: Transition,
    /// The time of the last sweep, which removes subjects that send no more requests.
    swept_at: Instant,
}

impl Default for DamagedState {
    fn default() -> Self {
        let (subjects, others) = (HashMap::new(), Transition::new(LONG_RECOVERY_PERIOD));
        Self { subjects, others, swept_at: Instant::now() }
    }
}

impl DamagedSubjects {
    fn state(&self) -> MutexGuard<'_, DamagedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that `subject` was found damaged. Returns `None` if that is reported already, and
    /// `Some(None)` if too many subjects are damaged to name this one.
    pub(super) fn add<'a>(&self, subject: &'a Subject) -> Option<Option<&'a Subject>> {
        let tag = subject.redacted();
        let mut state = self.state();
        let (count, has_room) = (state.subjects.len(), state.subjects.len() < MAX_SUBJECTS);
        match state.subjects.get(&tag) {
            Some(known) => {
                known.occurred();
                None
            }
            None if has_room => {
                let known = Transition::new(LONG_RECOVERY_PERIOD);
                known.occurred();
                state.subjects.insert(tag, known);
                self.count.store(count + 1, Ordering::Relaxed);
                Some(Some(subject))
            }
            None => state.others.occurred().then_some(None),
        }
    }

    /// Removes a subject whose request was decided. Returns the subjects that are no longer
    /// damaged: this one, and at times also subjects that send no more requests.
    ///
    /// Costs one relaxed load while no value is damaged.
    pub(super) fn recover(&self, subject: &Subject) -> Vec<(Redacted, Ended)> {
        if self.count.load(Ordering::Relaxed) == 0 { Vec::new() } else { self.remove(subject) }
    }

    #[cold]
    fn remove(&self, subject: &Subject) -> Vec<(Redacted, Ended)> {
        let subject = subject.redacted();
        let mut state = self.state();
        let mut recovered = Vec::new();
        let is_sweep = state.swept_at.elapsed() >= LONG_RECOVERY_PERIOD / 4;
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
            recovered.extend(ended.map(|ended| (*known, ended)));
            ended.is_none()
        });
        if state.subjects.is_empty() {
            state.others.end();
        }
        self.count.store(state.subjects.len(), Ordering::Relaxed);
        recovered
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_subject_recovers_when_it_is_decided_or_sends_no_more_requests() {
        let damaged = DamagedSubjects::default();
        let [alice, bob, carol] = ["alice", "bob", "carol"].map(Subject::user);
        assert_eq!(damaged.recover(&alice), []);
        assert_eq!(damaged.add(&alice), Some(Some(&alice)));
        assert_eq!(damaged.add(&alice), None);
        assert_eq!(damaged.add(&bob), Some(Some(&bob)));
        assert_eq!(damaged.recover(&carol), []);

        let over = damaged.recover(&alice);
        assert!(
            matches!(over[..], [(subject, ended)] if subject == alice.redacted() && ended.count == 2)
        );
        assert_eq!(damaged.recover(&alice), []);

        advance(LONG_RECOVERY_PERIOD).await;
        let over = damaged.recover(&carol);
        assert!(matches!(over[..], [(subject, _)] if subject == bob.redacted()), "{over:?}");
        assert_eq!(damaged.count.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn subjects_beyond_the_maximum_share_one_log_line() {
        let damaged = DamagedSubjects::default();
        let subjects: Vec<_> = (0..1_000).map(|id| Subject::user(&id.to_string())).collect();
        let reports: Vec<_> = subjects.iter().filter_map(|one| damaged.add(one)).collect();
        let (named, together) = reports.split_at(MAX_SUBJECTS);
        assert!(named.iter().all(Option::is_some));
        assert_eq!(together, [None]);
    }
}
