//! The owned parts of a request, for tasks and futures that outlive the references of a [`Part`].

use smallvec::SmallVec;

use super::counters::Counters;
use crate::model::{Cost, Subject};
use crate::policy::Policy;
use crate::store::{Namespace, Part};

/// The owned parts of a request.
#[derive(Clone, Debug)]
pub(super) struct OwnedParts(SmallVec<[OwnedPart; 1]>);

/// An owned [`Part`].
#[derive(Clone, Debug)]
struct OwnedPart {
    subject: Subject,
    policy: Policy,
    cost: Cost,
    namespace: Option<Namespace>,
    flags: u8,
}

impl OwnedParts {
    /// Copies the parts.
    pub(super) fn new(parts: &[Part<'_>]) -> Self {
        let owned = |part: &Part<'_>| OwnedPart {
            subject: part.subject.clone(),
            policy: part.policy.clone(),
            cost: part.cost,
            namespace: part.namespace.cloned(),
            flags: part.flags,
        };
        Self(parts.iter().map(owned).collect())
    }

    /// Returns the counters of the part at `index`.
    pub(super) fn counters(&self, index: usize) -> Counters<'_> {
        let OwnedPart { namespace, subject, .. } = &self.0[index];
        Counters { namespace: namespace.as_ref(), subject }
    }

    /// Returns the parts.
    pub(super) fn as_parts(&self) -> SmallVec<[Part<'_>; 1]> {
        fn part(owned: &OwnedPart) -> Part<'_> {
            let OwnedPart { subject, policy, cost, .. } = owned;
            let mut part = Part::new(subject, policy, *cost);
            (part.namespace, part.flags) = (owned.namespace.as_ref(), owned.flags);
            part
        }
        self.0.iter().map(part).collect()
    }
}
