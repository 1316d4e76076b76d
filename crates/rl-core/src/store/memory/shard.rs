use std::num::NonZeroU8;

use super::compact::{Compact, Origin};
use super::entry::{Entry, Slot, Step, Unpacked, Whole};
use super::fingerprint::Fingerprint;
use super::shape::Shapes;
use super::table::{MOST, Table};
use crate::model::{Cost, Limit, Mode, Outcomes, Policy};
use crate::store::{Refund, Renewal};
use crate::time::Timestamp;

/// Entries looked at for each one that is added: enough to find expired ones faster than new ones
/// come, few enough not to be felt.
const INSPECTED: usize = 8;

/// Rounds of inspection before a full shard counts newcomers together.
const ROUNDS: usize = 8;

/// The most subjects of a shard, beside what is counted together.
pub(super) const MOST_SUBJECTS: usize = MOST - 1;

/// A part of the store's subjects, under one lock.
#[derive(Debug)]
pub(super) struct Shard {
    entries: Table<Kept>,
    shapes: Shapes,
    origin: Origin,
    capacity: usize,
    // Where the next inspection begins; it goes around.
    cursor: usize,
}

/// What is kept of one subject: in places of fixed size, if it fits there.
#[derive(Debug)]
enum Kept {
    Compact(Compact),
    Whole(Box<Whole>),
}

// The form of it costs nothing beside it.
const _: () = assert!(size_of::<Kept>() == size_of::<Compact>());

impl Kept {
    /// The entry in the form that it fits.
    fn of(
        entry: Entry<impl smallvec::Array<Item = Slot>>,
        shape: Option<NonZeroU8>,
        shapes: &Shapes,
        origin: Origin,
    ) -> Self {
        let compact = shape.and_then(|number| {
            Compact::pack(&entry, number, shapes.get(usize::from(number.get()) - 1), origin)
        });
        match compact {
            Some(compact) => Self::Compact(compact),
            None => Self::Whole(Box::new(entry.resized())),
        }
    }

    #[inline]
    fn decide(
        &mut self,
        shapes: &mut Shapes,
        origin: Origin,
        policy: &Policy,
        clock: Timestamp,
        asked: (Mode, Cost),
        outcomes: &mut Outcomes,
    ) -> Step {
        if let (Self::Compact(compact), Some(plan)) = (&mut *self, policy.windows())
            && shapes.get(compact.shape()).is_of_windows(plan)
            && let Some(step) = compact.decide_windows(plan, origin, clock, asked, outcomes)
        {
            return step;
        }
        self.decide_any(shapes, origin, policy, clock, asked, outcomes)
    }

    /// Whatever the limits are.
    fn decide_any(
        &mut self,
        shapes: &mut Shapes,
        origin: Origin,
        policy: &Policy,
        clock: Timestamp,
        asked: (Mode, Cost),
        outcomes: &mut Outcomes,
    ) -> Step {
        match self {
            Self::Compact(compact) => {
                let mut entry = compact.unpack(shapes.get(compact.shape()), origin);
                let step = entry.decide(policy, clock, asked, outcomes);
                // Until something is charged the entry is of the shape that it was.
                let is_same = shapes.get(compact.shape()).is_of(policy) || step.taken == 0;
                let shape = if is_same { Some(compact.number()) } else { shapes.number(policy) };
                *self = Self::of(entry, shape, shapes, origin);
                step
            }
            Self::Whole(entry) => {
                let step = entry.decide(policy, clock, asked, outcomes);
                if step.taken > 0
                    && entry.slots().len() == policy.limits().len()
                    && let Some(number) = shapes.number(policy)
                {
                    let shape = shapes.get(usize::from(number.get()) - 1);
                    if let Some(compact) = Compact::pack(entry, number, shape, origin) {
                        *self = Self::Compact(compact);
                    }
                }
                step
            }
        }
    }

    fn amend(
        &mut self,
        shapes: &Shapes,
        origin: Origin,
        policy: &Policy,
        clock: Timestamp,
        change: impl FnMut(usize, Limit, &mut crate::algorithm::State, Timestamp),
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

    /// Whether places that are to be freed or leased anew are held here.
    fn holds(&self, refund: &Refund<'_>, clock: Timestamp) -> bool {
        match self {
            // A shape has no limit of concurrency.
            Self::Compact(_) => false,
            Self::Whole(entry) => entry.holds(refund, clock),
        }
    }

    fn is_expired(&self, shapes: &Shapes, origin: Origin, now: Timestamp) -> bool {
        match self {
            Self::Compact(compact) => compact.is_expired(shapes.get(compact.shape()), now, origin),
            Self::Whole(entry) => entry.is_expired(now),
        }
    }

    fn is_denied(&self, origin: Origin, now: Timestamp) -> bool {
        match self {
            Self::Compact(compact) => compact.is_denied(now, origin),
            Self::Whole(entry) => entry.is_denied(now),
        }
    }

    fn consumed(&self) -> u8 {
        match self {
            Self::Compact(compact) => compact.consumed(),
            Self::Whole(entry) => entry.consumed(),
        }
    }
}

impl Shard {
    pub(super) fn new(capacity: usize, origin: Origin) -> Self {
        let (entries, shapes) = (Table::new(), Shapes::default());
        Self { entries, shapes, origin, capacity, cursor: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Decides `cost` for all limits of the policy, and charges all of them or none.
    #[inline]
    pub(super) fn decide(
        &mut self,
        subject: Fingerprint,
        policy: &Policy,
        clock: Timestamp,
        asked: (Mode, Cost),
        outcomes: &mut Outcomes,
    ) -> Step {
        match self.entries.get_mut(subject) {
            Some(kept) => {
                kept.decide(&mut self.shapes, self.origin, policy, clock, asked, outcomes)
            }
            None => self.decide_first(subject, policy, clock, asked, outcomes),
        }
    }

    /// Decides for a subject that is not held. It is held once something is charged to it.
    #[cold]
    fn decide_first(
        &mut self,
        subject: Fingerprint,
        policy: &Policy,
        clock: Timestamp,
        asked: (Mode, Cost),
        outcomes: &mut Outcomes,
    ) -> Step {
        let (shapes, origin) = (&mut self.shapes, self.origin);
        let (kept, step) = match shapes.known(policy) {
            Some(shape) => {
                let mut kept = Kept::Compact(Compact::new(shape));
                let step = kept.decide(shapes, origin, policy, clock, asked, outcomes);
                (kept, step)
            }
            // Who is denied is worth no memory, not even that of a shape.
            None => {
                let mut entry = Unpacked::default();
                let step = entry.decide(policy, clock, asked, outcomes);
                if step.taken == 0 {
                    return step;
                }
                let shape = shapes.number(policy);
                (Kept::of(entry, shape, shapes, origin), step)
            }
        };
        if step.taken == 0 {
            return step;
        }
        if self.make_room(clock) {
            self.entries.add(subject, kept);
            return step;
        }
        match self.entries.get_mut(Fingerprint::OVERFLOW) {
            Some(shared) => {
                outcomes.clear();
                shared.decide(&mut self.shapes, origin, policy, clock, asked, outcomes)
            }
            None => {
                self.entries.add(Fingerprint::OVERFLOW, kept);
                step
            }
        }
    }

    /// Gives back what a refund says.
    pub(super) fn amend(
        &mut self,
        subject: Fingerprint,
        policy: &Policy,
        clock: Timestamp,
        change: impl FnMut(usize, Limit, &mut crate::algorithm::State, Timestamp),
    ) {
        if let Some(kept) = self.entries.get_mut(subject) {
            kept.amend(&self.shapes, self.origin, policy, clock, change);
        }
    }

    pub(super) fn renew(
        &mut self,
        subject: Fingerprint,
        renewal: &Renewal<'_>,
        clock: Timestamp,
    ) -> Option<Timestamp> {
        match self.entries.get_mut(subject)? {
            Kept::Compact(_) => None,
            Kept::Whole(entry) => entry.renew(renewal, clock),
        }
    }

    /// Whose entry holds permits of `subject`: its own, unless there is none or they are held by
    /// the shared one. Who was counted with others may have an entry since.
    pub(super) fn holder(
        &self,
        subject: Fingerprint,
        refund: &Refund<'_>,
        clock: Timestamp,
    ) -> Fingerprint {
        let holds = |subject| {
            self.entries.get(subject).is_some_and(|kept: &Kept| kept.holds(refund, clock))
        };
        let is_shared = !holds(subject) && holds(Fingerprint::OVERFLOW);
        if is_shared { Fingerprint::OVERFLOW } else { subject }
    }

    pub(super) fn remove(&mut self, subject: Fingerprint) {
        self.entries.remove(subject);
    }
}

impl Shard {
    /// Drops what has expired among the next few entries. If the shard is still full, drops the one
    /// that has used up the least of its limits, but never one that is in a denied state: a caller
    /// must not get rid of its debt by inventing subjects. Returns whether there is room.
    fn make_room(&mut self, now: Timestamp) -> bool {
        for _ in 0..ROUNDS {
            let mut victim: Option<(u8, Fingerprint)> = None;
            for _ in 0..INSPECTED.min(self.entries.len()) {
                if self.entries.len() == 0 {
                    break;
                }
                if self.cursor >= self.entries.len() {
                    self.cursor = 0;
                }
                let (subject, kept) = self.entries.at(self.cursor);
                if kept.is_expired(&self.shapes, self.origin, now) {
                    // The last entry takes this place and is looked at next.
                    self.entries.remove_at(self.cursor);
                    continue;
                }
                if subject != Fingerprint::OVERFLOW
                    && victim.is_none_or(|(least, _)| kept.consumed() < least)
                    && !kept.is_denied(self.origin, now)
                {
                    victim = Some((kept.consumed(), subject));
                }
                self.cursor += 1;
            }
            if self.entries.len() < self.capacity {
                return true;
            }
            if let Some((_, subject)) = victim {
                self.entries.remove(subject);
                return true;
            }
        }
        false
    }
}
