//! The groups of a request, owned by the task that decides it.

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::model::Cost;
use crate::policy::Policy;
use crate::store::part_groups::PartGroup;
use crate::store::redis::shortcuts::RequestStamp;
use crate::store::redis::subject_key::{KeyedSubject, KeyedSubjectRef, SubjectKey};
use crate::time::Timestamp;

/// The groups in one slot, as indices into the groups of the request.
pub(crate) type Slot = SmallVec<[usize; 4]>;

/// An owned [`PartGroup`].
#[derive(Clone, Debug)]
pub(super) struct OwnedGroup {
    pub(super) subject: KeyedSubject,
    pub(super) policy: Policy,
    pub(super) cost: Cost,
    pub(super) is_shadow: bool,
    /// The state of the denial cache when the request reached the store.
    pub(super) stamp: Option<RequestStamp>,
}

impl OwnedGroup {
    /// Copies the group.
    pub(super) fn new(group: &PartGroup<'_, SubjectKey>, stamp: Option<RequestStamp>) -> Self {
        let PartGroup { key, namespace, subject, policy, cost, is_shadow } = *group;
        let subject = KeyedSubjectRef { namespace, subject, key }.to_owned();
        Self { subject, policy: policy.clone(), cost, is_shadow, stamp }
    }

    /// Returns the group with another cost.
    pub(super) const fn with_cost(&self, cost: Cost) -> PartGroup<'_, SubjectKey> {
        let Self { subject, policy, is_shadow, .. } = self;
        let KeyedSubjectRef { namespace, subject, key } = subject.as_ref();
        PartGroup { key, namespace, subject, policy, cost, is_shadow: *is_shadow }
    }

    /// Returns the decision on a group whose status is not known. The decision has no limits, and
    /// denies nothing.
    pub(super) fn unknown_status(&self, at: Timestamp) -> Decision {
        let mut decision = Decision::pending(&self.policy, self.cost);
        decision.finish(0, at, true);
        decision
    }
}
