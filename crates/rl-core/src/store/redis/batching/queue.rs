//! The calls that wait to be sent. No I/O.

use std::collections::VecDeque;

use super::batch::QueuedCall;
use crate::policy::Policy;
use crate::store::redis::encoding::policy::has_fast_path;
use crate::store::redis::subject_key::{KeyedSubject, SubjectMap};

/// The most shared calls in flight. Further calls are collected until one of them returns.
pub(super) const MAX_IN_FLIGHT: usize = 4;

#[derive(Default)]
pub(super) struct BatchQueue {
    /// The waiting calls of each subject that has a call in flight or due.
    pub(super) subjects: SubjectMap<VecDeque<QueuedCall>>,
    /// Subjects to send with the next flush.
    pub(super) ready: Vec<KeyedSubject>,
    /// Subjects that wait until fewer than `MAX_IN_FLIGHT` shared calls are in flight.
    pub(super) collected: Vec<KeyedSubject>,
    /// The number of shared calls in flight that are not overdue.
    pub(super) in_flight: usize,
    /// Whether a task is about to flush the queue.
    pub(super) is_flushing: bool,
    /// Whether a task is waking the callers of a batch.
    pub(super) is_delivering: bool,
    /// Whether a call is in flight that was sent without the queue.
    pub(super) has_solo: bool,
}

impl BatchQueue {
    /// Marks the calls of a subject as due.
    pub(super) fn make_ready(&mut self, subject: KeyedSubject, max_subjects: usize) {
        let first = self.subjects.get(&subject.key).and_then(VecDeque::front);
        if first.is_some_and(|call| can_share_call(&call.policy, max_subjects)) {
            self.collected.push(subject);
        } else {
            self.ready.push(subject);
        }
    }

    /// Returns how many of the collected subjects are due: all of them, or only full calls while
    /// too many calls are in flight.
    pub(super) fn collected_due(&self, max_subjects: usize) -> usize {
        let count = self.collected.len();
        if self.in_flight < MAX_IN_FLIGHT { count } else { count / max_subjects * max_subjects }
    }

    /// Returns true if subjects are due and no task is about to flush the queue. The caller starts
    /// that task.
    pub(super) fn begin_flush(&mut self, max_subjects: usize) -> bool {
        let is_due = !self.ready.is_empty() || self.collected_due(max_subjects) > 0;
        is_due && !std::mem::replace(&mut self.is_flushing, true)
    }
}

/// Returns whether subjects under this policy can share a call.
pub(super) fn can_share_call(policy: &Policy, max_subjects: usize) -> bool {
    max_subjects > 1 && has_fast_path(policy)
}
