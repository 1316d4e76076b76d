use std::num::NonZeroU8;

use super::compact::{Compact, TimeBase};
use super::entry::{Entry, Slot, Whole};
use super::shape::{Shape, Shapes};
use super::shard::Asked;
use crate::algorithm::State;
use crate::decision::Decision;
use crate::model::{Limit, Moment};
use crate::policy::Policy;
use crate::store::Refund;
use crate::time::Timestamp;

/// The entry of one subject in a shard, in a compact form of fixed size if it fits.
#[derive(Debug)]
pub(super) enum Kept {
    Compact(Compact),
    Whole(Box<Whole>),
}

/// The data that all entries of a shard share.
#[derive(Debug)]
pub(super) struct Held<'a> {
    pub(super) shapes: &'a mut Shapes,
    pub(super) origin: TimeBase,
}

// The enum is no larger than its larger variant.
const _: () = assert!(size_of::<Kept>() == size_of::<Compact>());

impl Kept {
    /// Returns the entry in the smaller form that it fits.
    pub(super) fn of(
        entry: Entry<impl smallvec::Array<Item = Slot>>,
        shape: Option<NonZeroU8>,
        shapes: &Shapes,
        origin: TimeBase,
    ) -> Self {
        let compact = shape.and_then(|number| {
            Compact::pack(&entry, number, shapes.get(usize::from(number.get()) - 1), origin)
        });
        match compact {
            Some(compact) => Self::Compact(compact),
            None => Self::Whole(Box::new(entry.resized())),
        }
    }

    /// Decides under limits of any kind, in either form.
    ///
    /// Returns false, and changes nothing, if a charge would need more states than are kept.
    #[must_use]
    pub(super) fn decide(
        &mut self,
        held: Held<'_>,
        asked: Asked<'_>,
        decision: &mut Decision,
    ) -> bool {
        let (Held { shapes, origin }, policy) = (held, asked.policy);
        if let (Self::Compact(compact), Some(plan)) = (&mut *self, policy.windows())
            && shapes.get(compact.shape()).is_of_windows(plan)
            && compact.decide_windows(plan, origin, asked, decision)
        {
            if decision.taken() > 0
                && !shapes.are_many()
                && !shapes.get(compact.shape()).is_of_limits(policy)
                && let Some(number) = shapes.number(policy)
            {
                compact.set_number(number);
            }
            return true;
        }
        match self {
            Self::Compact(compact) => {
                let mut entry = compact.unpack(shapes.get(compact.shape()), origin);
                if !entry.decide(asked, decision) {
                    return false;
                }
                // The entry keeps its shape until something is charged.
                let shape = shapes.get(compact.shape());
                let is_judged_by = |shape: &Shape| match shapes.are_many() {
                    true => shape.is_of(policy),
                    false => shape.is_of_limits(policy),
                };
                let is_same = decision.taken() == 0 || is_judged_by(shape);
                let shape = if is_same { Some(compact.number()) } else { shapes.number(policy) };
                *self = Self::of(entry, shape, shapes, origin);
            }
            Self::Whole(entry) => {
                if !entry.decide(asked, decision) {
                    return false;
                }
                if decision.taken() > 0
                    && entry.slots().len() == policy.limits().len()
                    && let Some(number) = shapes.number(policy)
                {
                    let shape = shapes.get(usize::from(number.get()) - 1);
                    if let Some(compact) = Compact::pack(entry, number, shape, origin) {
                        *self = Self::Compact(compact);
                    }
                }
            }
        }
        true
    }

    pub(super) fn amend(
        &mut self,
        shapes: &Shapes,
        origin: TimeBase,
        policy: &Policy,
        clock: Timestamp,
        change: impl FnMut(usize, Limit, &mut State, Timestamp),
    ) {
        match self {
            Self::Compact(compact) => {
                let mut entry = compact.unpack(shapes.get(compact.shape()), origin);
                entry.amend(policy, clock, change);
                *self = Self::of(entry, Some(compact.number()), shapes, origin);
            }
            Self::Whole(entry) => entry.amend(policy, clock, change),
        }
    }

    pub(super) fn forget(
        &mut self,
        shapes: &Shapes,
        origin: TimeBase,
        policy: &Policy,
        clock: Timestamp,
        place: usize,
    ) {
        match self {
            Self::Compact(compact) => {
                let mut entry = compact.unpack(shapes.get(compact.shape()), origin);
                entry.forget(policy, clock, place);
                *self = Self::of(entry, Some(compact.number()), shapes, origin);
            }
            Self::Whole(entry) => entry.forget(policy, clock, place),
        }
    }

    /// Forgets all used units, and decides at `next` at the earliest from then on.
    pub(super) fn empty(&mut self, next: Timestamp, origin: TimeBase) {
        let emptied = match self {
            Self::Compact(compact) => compact.emptied(next, origin).map(Self::Compact),
            Self::Whole(_) => None,
        };
        let whole = || Self::Whole(Box::new(Entry::of([], next, Timestamp::EPOCH)));
        *self = emptied.unwrap_or_else(whole);
    }

    /// Returns the time of the last change.
    pub(super) fn last_change(&self, origin: TimeBase) -> Timestamp {
        match self {
            Self::Compact(compact) => compact.last_change(origin),
            Self::Whole(entry) => entry.last(),
        }
    }

    /// Returns whether the entry holds the places that a refund or renewal names.
    pub(super) fn holds(&self, refund: &Refund<'_>, clock: Timestamp) -> bool {
        match self {
            // The compact form holds no concurrency limits.
            Self::Compact(_) => false,
            Self::Whole(entry) => entry.holds(refund, clock),
        }
    }

    #[inline]
    pub(super) fn is_expired(&self, shapes: &Shapes, origin: TimeBase, clock: Moment) -> bool {
        match self {
            Self::Compact(compact) => {
                compact.is_expired(shapes.get(compact.shape()), clock, origin)
            }
            Self::Whole(entry) => entry.is_expired(Timestamp::from_micros(clock.now)),
        }
    }

    #[inline]
    pub(super) fn is_denied(&self, clock: Moment) -> bool {
        match self {
            Self::Compact(compact) => compact.is_denied(clock),
            Self::Whole(entry) => entry.is_denied(Timestamp::from_micros(clock.now)),
        }
    }

    pub(super) fn consumed(&self, shapes: &Shapes, origin: TimeBase) -> u8 {
        match self {
            Self::Compact(compact) => compact.consumed(shapes.get(compact.shape()), origin),
            Self::Whole(entry) => entry.consumed(),
        }
    }
}
