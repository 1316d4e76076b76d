//! The calls that wait to be sent. No I/O.

use std::collections::VecDeque;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use indexmap::IndexMap;

use super::batch::QueuedCall;
use super::pace::{Pace, Queue};
use crate::store::redis::encoding::placement::Placement;
use crate::store::redis::encoding::policy::{MAX_SUBJECTS, has_fast_path};
use crate::store::redis::layer::Request;
use crate::store::redis::subject_key::IdentityHasher;

/// The largest number of shared calls in flight, if there are few slot groups. Further calls
/// are collected until one of them returns.
const MAX_IN_FLIGHT: usize = 4;

/// The number of slot groups for each shared call in flight, if there are many of them.
///
/// If each group had a call in flight, calls would contain few subjects. With one call for every
/// four groups, a request waits for about two round trips at most.
const GROUPS_PER_CALL: usize = 4;

/// A request as the key of a map: requests of the same subjects are equal.
#[derive(Clone, Debug)]
pub(super) struct BySubjects(pub(super) Arc<Request>);

impl PartialEq for BySubjects {
    fn eq(&self, other: &Self) -> bool {
        self.0.has_subjects_of(&other.0)
    }
}

impl Eq for BySubjects {}

impl Hash for BySubjects {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let bits = self.0.parts.iter().map(|part| part.subject.key.bits());
        state.write_u64(bits.fold(0, |all, bits| all.rotate_left(1) ^ bits));
    }
}

/// The bounds on the size and the number of *shared calls*: script calls for the subjects of several
/// requests, all of one slot group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchLimits {
    /// The largest number of subjects in a call.
    pub(super) max_subjects: usize,
    /// The largest number of shared calls in flight. A call with `max_subjects` subjects is sent
    /// even if this number is reached.
    pub(super) max_in_flight: usize,
}

#[derive(Default)]
pub(crate) struct BatchQueue {
    /// The waiting calls of the subjects that have a call in flight or due.
    pub(super) subjects:
        IndexMap<BySubjects, VecDeque<QueuedCall>, BuildHasherDefault<IdentityHasher>>,
    /// Subjects to send with the next flush.
    ready: Vec<QueuedSubject>,
    /// Subjects that wait until fewer shared calls are in flight. The group that has waited longest
    /// comes first.
    collected: IndexMap<u16, Vec<QueuedSubject>>,
    /// Groups that have collected enough subjects for a full call since the last flush.
    full: Vec<u16>,
    /// Counts shared calls only.
    pub(super) pace: Pace,
}

/// The subjects of a request, with calls that wait to be sent.
pub(super) struct QueuedSubject {
    pub(super) subjects: BySubjects,
    /// Only subjects of one group share a call.
    pub(super) group: u16,
}

impl BatchLimits {
    /// Returns the bounds of calls under this placement of keys.
    pub(super) fn new(placement: &Placement) -> Self {
        let (max_subjects, groups) = match placement {
            Placement::OneServer => (MAX_SUBJECTS, 1),
            Placement::SubjectSlots => (1, 1),
            Placement::GroupSlots(groups) => (MAX_SUBJECTS, groups.count()),
        };
        Self { max_subjects, max_in_flight: MAX_IN_FLIGHT.max(groups / GROUPS_PER_CALL) }
    }

    /// Returns whether a check can share a call with checks of other subjects.
    pub(super) fn can_share_call(self, request: &Request) -> bool {
        self.max_subjects > 1 && request.parts.iter().all(|part| has_fast_path(&part.policy))
    }
}

impl BatchQueue {
    /// Marks the calls of a subject as due.
    pub(super) fn make_ready(&mut self, subject: QueuedSubject, limits: BatchLimits) {
        let first = self.subjects.get(&subject.subjects).and_then(VecDeque::front);
        if !first.is_some_and(|call| limits.can_share_call(&call.request)) {
            self.ready.push(subject);
            return;
        }
        let group = subject.group;
        let collected = self.collected.entry(group).or_default();
        collected.push(subject);
        if collected.len().is_multiple_of(limits.max_subjects) {
            self.full.push(group);
        }
    }

    /// Takes the subjects that are ready, and the collected subjects that are due. Also returns the
    /// number of the collected ones.
    ///
    /// If few calls are in flight, whole groups are due, and those that have waited longest come
    /// first. Otherwise only full calls are due.
    pub(super) fn take_due(&mut self, limits: BatchLimits) -> (Vec<QueuedSubject>, usize) {
        let mut due = std::mem::take(&mut self.ready);
        let ready = due.len();
        let count =
            self.pace.max_in_flight.saturating_sub(self.pace.in_flight).min(self.collected.len());
        due.extend(self.collected.drain(..count).flat_map(|(_, subjects)| subjects));
        for group in self.full.drain(..) {
            if let Some(subjects) = self.collected.get_mut(&group) {
                let full = subjects.len() / limits.max_subjects * limits.max_subjects;
                due.extend(subjects.drain(..full));
                if subjects.is_empty() {
                    self.collected.shift_remove(&group);
                }
            }
        }
        let collected = due.len() - ready;
        (due, collected)
    }
}

impl Queue for BatchQueue {
    fn pace(&mut self) -> &mut Pace {
        &mut self.pace
    }

    fn is_due(&self) -> bool {
        !self.ready.is_empty()
            || !self.full.is_empty()
            || (self.pace.has_room() && !self.collected.is_empty())
    }

    fn discard(&mut self) {
        self.full.clear();
        let collected = std::mem::take(&mut self.collected).into_values().flatten();
        for queued in self.ready.drain(..).chain(collected) {
            self.subjects.swap_remove(&queued.subjects);
        }
    }
}
