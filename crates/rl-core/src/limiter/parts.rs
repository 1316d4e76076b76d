//! The parts of a request: their counters, their charges, and copies that outlive the request.
//!
//! Parts with the same namespace and subject share their counters, and are charged together. A
//! limit that counts requests counts them as one request. Such parts are therefore refunded,
//! renewed and settled together.

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::model::{Cost, Subject};
use crate::policy::Policy;
use crate::store::{Namespace, Part};

/// Identifies the counters of a subject.
#[derive(Clone, Copy, Debug)]
pub(super) struct CounterKey<'a> {
    /// The namespace, if it is not the limiter's own.
    pub(super) namespace: Option<&'a Namespace>,
    pub(super) subject: &'a Subject,
}

impl<'a> CounterKey<'a> {
    /// Returns a part that charges the counters.
    pub(super) const fn part(self, policy: &'a Policy, cost: Cost) -> Part<'a> {
        let part = Part::new(self.subject, policy, cost);
        match self.namespace {
            Some(namespace) => part.with_namespace(namespace),
            None => part,
        }
    }

    /// Returns whether both identify the same counters. `own` is the namespace of the limiter.
    pub(super) fn is_same(self, other: CounterKey<'_>, own: &Namespace) -> bool {
        self.subject == other.subject
            && self.namespace.unwrap_or(own) == other.namespace.unwrap_or(own)
    }
}

impl<'a> From<&'a Subject> for CounterKey<'a> {
    fn from(subject: &'a Subject) -> Self {
        Self { namespace: None, subject }
    }
}

impl<'a> From<&Part<'a>> for CounterKey<'a> {
    fn from(part: &Part<'a>) -> Self {
        Self { namespace: part.namespace, subject: part.subject }
    }
}

/// The charge of the parts that share their counters.
#[derive(Debug)]
pub(super) struct Charge<'a> {
    pub(super) counters: CounterKey<'a>,
    /// The decision on these parts. Its cost is the sum of their costs, and its charged units are
    /// the sum of theirs.
    pub(super) decision: Decision,
    pub(super) parts: SmallVec<[ChargedPart; 1]>,
}

/// A part of a request, and the units that were charged to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChargedPart {
    /// The position of the part in the request.
    pub(super) index: usize,
    pub(super) units: u64,
}

impl<'a> Charge<'a> {
    /// Returns the charges that `decision` has made to `parts`. `own` is the namespace of parts
    /// without one.
    ///
    /// Leaves out the parts that the decision does not contain. If no store has decided, these are
    /// all but the first.
    pub(super) fn of_parts(
        own: &Namespace,
        parts: &'a [Part<'a>],
        decision: &Decision,
    ) -> SmallVec<[Self; 2]> {
        let mut charges: SmallVec<[Self; 2]> = SmallVec::new();
        for (index, part) in parts.iter().enumerate() {
            let Some(of_part) = decision.of_part(index) else { continue };
            let counters = CounterKey::from(part);
            let part = ChargedPart { index, units: of_part.charged() };
            let known = charges.iter_mut().find(|known| counters.is_same(known.counters, own));
            let Some(known) = known else {
                let parts = SmallVec::from_buf([part]);
                charges.push(Self { counters, decision: of_part, parts });
                continue;
            };
            let cost = known.decision.cost().units().saturating_add(of_part.cost().units());
            let units = known.decision.charged().saturating_add(part.units);
            known.decision = known.decision.clone().with_units(Cost::new(cost), units);
            known.parts.push(part);
        }
        charges
    }
}

/// Returns one sum for each part: the costs of all parts that have the same counters as this part.
pub(super) fn summed_costs(own: &Namespace, parts: &[Part<'_>]) -> SmallVec<[Cost; 4]> {
    let sum = |part: &Part<'_>| {
        let counters = CounterKey::from(part);
        let same = parts.iter().filter(|other| counters.is_same(CounterKey::from(*other), own));
        let units = same.map(|part| part.cost.units()).fold(0, u64::saturating_add);
        Cost::new(units)
    };
    parts.iter().map(sum).collect()
}

/// The owned parts of a request, for tasks and futures that outlive the references of a [`Part`].
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
    pub(super) fn counters(&self, index: usize) -> CounterKey<'_> {
        let OwnedPart { namespace, subject, .. } = &self.0[index];
        CounterKey { namespace: namespace.as_ref(), subject }
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
