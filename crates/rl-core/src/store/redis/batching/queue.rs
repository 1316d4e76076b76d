//! Who waits, who is about to leave, and who has to wait for others. No I/O.

use std::collections::VecDeque;

use super::batch::Caller;
use crate::policy::Policy;
use crate::store::redis::encoding::policy::coded;
use crate::store::redis::subject_key::{ByWho, Who};

/// Calls in flight that others wait for, to leave with those who come meanwhile. If everybody left at once,
/// each who is told would ask again alone.
const MOST_IN_FLIGHT: usize = 4;

#[derive(Default)]
pub(crate) struct Line {
    /// Subjects with a call in flight or about to leave, and who waits for it.
    pub(crate) subjects: ByWho<VecDeque<Caller>>,
    /// Those about to leave, whoever else does.
    pub(crate) ready: Vec<Who>,
    /// Those about to leave with others like them.
    pub(crate) gathering: Vec<Who>,
    /// Calls on their way that those wait for.
    pub(crate) in_flight: usize,
    pub(crate) is_departing: bool,
    /// Whether those of one call are being told, and ask again.
    pub(crate) is_telling: bool,
    /// Whether somebody is under way who left without company.
    pub(crate) has_lone: bool,
}

impl Line {
    /// Somebody waits for this one's next call.
    pub(crate) fn make_ready(&mut self, who: Who, most_subjects: usize) {
        let first = self.subjects.get(&who.as_ref()).and_then(VecDeque::front);
        if first.is_some_and(|caller| can_gather(&caller.policy, most_subjects)) {
            self.gathering.push(who);
        } else {
            self.ready.push(who);
        }
    }

    /// How many of those who gather may leave.
    pub(crate) fn gathered(&self, most_subjects: usize) -> usize {
        let count = self.gathering.len();
        if self.in_flight < MOST_IN_FLIGHT { count } else { count / most_subjects * most_subjects }
    }

    /// Whether somebody has to leave, and nobody else sees to it.
    pub(crate) fn is_first_to_depart(&mut self, most_subjects: usize) -> bool {
        let is_due = !self.ready.is_empty() || self.gathered(most_subjects) > 0;
        is_due && !std::mem::replace(&mut self.is_departing, true)
    }
}

/// Whether subjects under this policy can travel in one call.
pub(crate) fn can_gather(policy: &Policy, most_subjects: usize) -> bool {
    most_subjects > 1 && coded(policy).is_all_fixed
}
