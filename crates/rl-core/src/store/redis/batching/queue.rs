//! The calls that wait to be sent. No I/O.

use std::collections::VecDeque;

use indexmap::IndexMap;

use super::batch::{Batch, BatchCosts, QueuedCall, SubjectBatch};
use super::pace::{Pace, Queue};
use crate::store::redis::encoding::placement::Placement;
use crate::store::redis::encoding::policy::{MAX_SUBJECTS, has_fast_path, max_requests};
use crate::store::redis::layer::Request;
use crate::store::redis::subject_key::{SubjectKey, SubjectMap};

/// A batch of fewer subjects or requests is not divided into halves.
pub(super) const MIN_HALF: usize = 8;

/// The largest number of shared calls in flight, if there are few slot groups. Further calls
/// are collected until one of them returns.
const MAX_IN_FLIGHT: usize = 4;

/// The number of slot groups for each shared call in flight, if there are many of them.
///
/// If each group had a call in flight, calls would contain few subjects. With one call for every
/// four groups, a request waits for about two round trips at most.
const GROUPS_PER_CALL: usize = 4;

/// The bounds on the size and the number of *shared calls*: script calls for several subjects of
/// one slot group.
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
    /// The waiting calls of each subject that has a call in flight or due.
    pub(super) subjects: SubjectMap<VecDeque<QueuedCall>>,
    /// Subjects to send with the next flush.
    ready: Vec<QueuedSubject>,
    /// Subjects that wait until fewer shared calls are in flight. The group that has waited longest
    /// comes first.
    collected: IndexMap<u16, Vec<QueuedSubject>>,
    /// Groups that have collected enough subjects for a full call since the last flush.
    full: Vec<u16>,
    /// The waiting requests of several parts, by the policies and the slot group of their parts.
    /// The list that has waited longest comes first.
    pub(super) lists: VecDeque<RequestList>,
    /// Counts shared calls only.
    pub(super) pace: Pace,
}

/// Requests whose parts have the same policies and slot group, in the order of their arrival. They
/// may share subjects, so this is also the order in which they are decided.
pub(super) struct RequestList {
    group: u16,
    /// The largest number of requests in one call.
    max_requests: usize,
    calls: VecDeque<QueuedCall>,
}

/// A subject with calls that wait to be sent.
pub(super) struct QueuedSubject {
    pub(super) subject: SubjectKey,
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
    /// Returns whether no call waits or is in flight.
    pub(super) fn is_idle(&self) -> bool {
        let Pace { in_flight, has_solo, .. } = self.pace;
        self.subjects.is_empty() && self.lists.is_empty() && in_flight == 0 && !has_solo
    }

    /// Adds a request of several parts to the list of its policies and slot group.
    pub(super) fn add_request(&mut self, call: QueuedCall, group: u16) {
        let is_same = |list: &&mut RequestList| {
            let first = list.calls.front();
            list.group == group
                && first.is_some_and(|first| first.request.has_policies_of(&call.request))
        };
        if let Some(list) = self.lists.iter_mut().find(is_same) {
            list.calls.push_back(call);
            return;
        }
        let max_requests = max_requests(call.request.parts.iter().map(|part| &part.policy));
        let calls = VecDeque::from([call]);
        self.lists.push_back(RequestList { group, max_requests, calls });
    }

    /// Takes the batches of requests of several parts that are due, and counts them as in flight.
    /// While few calls are in flight, all requests are due, as are all subjects of a slot group;
    /// otherwise only full batches are. If no call is in flight, a long list is divided into two
    /// batches. Drops cancelled requests.
    pub(super) fn take_due_requests(&mut self) -> Vec<Batch> {
        let mut batches = Vec::new();
        let (in_flight, has_room) = (self.pace.in_flight, self.pace.has_room());
        for mut list in std::mem::take(&mut self.lists) {
            let (group, calls) = (list.group, &mut list.calls);
            calls.retain(|call| !call.reply.is_closed());
            let mut most = list.max_requests;
            if in_flight == 0 {
                most = most.min(calls.len().div_ceil(2).max(MIN_HALF));
            }
            while !calls.is_empty() && (has_room || calls.len() >= most) {
                let calls = calls.drain(..most.min(calls.len())).collect();
                let subjects = vec![SubjectBatch { group, calls }];
                batches.push(Batch { group, costs: BatchCosts::Mixed, subjects });
            }
            if !calls.is_empty() {
                self.lists.push_back(list);
            }
        }
        self.pace.in_flight += batches.len();
        batches
    }

    /// Marks the calls of a subject as due.
    pub(super) fn make_ready(&mut self, subject: QueuedSubject, limits: BatchLimits) {
        let first = self.subjects.get(&subject.subject).and_then(VecDeque::front);
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
        let is_full = |list: &RequestList| list.calls.len() >= list.max_requests;
        !self.ready.is_empty()
            || !self.full.is_empty()
            || self.lists.iter().any(is_full)
            || (self.pace.has_room() && !(self.collected.is_empty() && self.lists.is_empty()))
    }

    fn discard(&mut self) {
        self.full.clear();
        self.lists.clear();
        let collected = std::mem::take(&mut self.collected).into_values().flatten();
        for queued in self.ready.drain(..).chain(collected) {
            self.subjects.swap_remove(&queued.subject);
        }
    }
}
