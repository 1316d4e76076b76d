//! The charges of a request: one for each subject under which it is counted.
//!
//! Parts with the same namespace and subject share their counters, and are charged together. A
//! limit that counts requests counts them as one request. Such parts are therefore refunded,
//! renewed and settled together.

use smallvec::SmallVec;

use super::counters::Counters;
use crate::decision::Decision;
use crate::model::Cost;
use crate::store::{Namespace, Part};

/// The charge of the parts that share their counters.
#[derive(Debug)]
pub(super) struct Charge<'a> {
    pub(super) counters: Counters<'a>,
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
            let counters = Counters::from(part);
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
        let counters = Counters::from(part);
        let same = parts.iter().filter(|other| counters.is_same(Counters::from(*other), own));
        let units = same.map(|part| part.cost.units()).fold(0, u64::saturating_add);
        Cost::new(units)
    };
    parts.iter().map(sum).collect()
}
