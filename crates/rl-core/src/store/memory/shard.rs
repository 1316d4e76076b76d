use super::super::fingerprint::Fingerprint;
use super::compact::{Compact, Plain, TimeBase};
use super::entry::{Unpacked, after_reset, is_same_moment};
use super::kept::{Held, Kept};
use super::shape::Shapes;
use super::table::{MOST, Table};
use crate::decision::Decision;
use crate::model::{Cost, Limit, Mode};
use crate::policy::Policy;
use crate::store::{Part, Refund, Renewal};
use crate::time::Timestamp;

/// Entries looked at for each one that is added: enough to find expired ones faster than new ones
/// come, few enough not to be felt.
const INSPECTED: usize = 8;

/// So many 255ths of its limits a subject may have used up to be forgotten without a look at others.
const LITTLE: u8 = 127;

/// Rounds of inspection before a full shard counts newcomers together.
const ROUNDS: usize = 8;

/// The most subjects of a shard, beside what is counted together.
pub(super) const MOST_SUBJECTS: usize = MOST - 1;

/// A part of the store's subjects, under one lock.
#[derive(Debug)]
pub(super) struct Shard {
    entries: Table<Kept>,
    shapes: Shapes,
    origin: TimeBase,
    capacity: usize,
    // Where the next inspection begins; it goes around.
    cursor: usize,
    // The time of the last eviction of a subject that was charged at that same time, and the earliest
    // time of a decision for a new subject at that time, which may be the evicted one.
    evicted: (Timestamp, Timestamp),
}

/// What is asked, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) policy: &'a Policy,
    pub(super) clock: Timestamp,
    pub(super) mode: Mode,
    pub(super) cost: Cost,
}

impl<'a> Asked<'a> {
    #[inline]
    pub(super) const fn at(clock: Timestamp, part: &Part<'a>, mode: Mode) -> Self {
        let Part { policy, cost, .. } = *part;
        Self { policy, clock, mode, cost }
    }
}

impl Shard {
    pub(super) fn new(capacity: usize, origin: TimeBase) -> Self {
        let (entries, shapes) = (Table::new(), Shapes::default());
        let evicted = (Timestamp::EPOCH, Timestamp::EPOCH);
        Self { entries, shapes, origin, capacity, cursor: 0, evicted }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Decides for limits that are windows, if it is plain what comes out.
    #[inline(always)]
    pub(super) fn decide_plainly(
        &mut self,
        subject: Fingerprint,
        asked: Asked<'_>,
    ) -> Option<Plain> {
        let plan = asked.policy.windows()?;
        match self.entries.get_mut(subject)? {
            Kept::Compact(compact) => {
                let shape = self.shapes.get(compact.shape());
                // Who is under other limits now gets another shape first: by that it is judged.
                let is_its_shape = shape.is_policy(asked.policy)
                    || shape.is_of_windows(plan)
                        && (shape.has_maxima_of(plan) || self.shapes.are_many());
                if is_its_shape { compact.decide_plainly(plan, self.origin, asked) } else { None }
            }
            Kept::Whole(_) => None,
        }
    }

    /// Decides for all limits of the policy, and charges all of them or none.
    ///
    /// Returns false, and changes nothing, if a charge would need more states of one subject than are
    /// kept.
    #[must_use]
    pub(super) fn decide(
        &mut self,
        subject: Fingerprint,
        asked: Asked<'_>,
        decision: &mut Decision,
    ) -> bool {
        let held = Held { shapes: &mut self.shapes, origin: self.origin };
        match self.entries.get_mut(subject) {
            Some(kept) => kept.decide(held, asked, decision),
            None => self.decide_first(subject, asked, decision),
        }
    }

    /// Decides for a subject that is not held. It is held once something is charged to it.
    #[cold]
    #[inline(never)]
    fn decide_first(
        &mut self,
        subject: Fingerprint,
        mut asked: Asked<'_>,
        decision: &mut Decision,
    ) -> bool {
        let (evicted_at, next) = self.evicted;
        if asked.clock == evicted_at {
            asked.clock = asked.clock.max(next);
        }
        let (shapes, origin) = (&mut self.shapes, self.origin);
        let kept = match shapes.known(asked.policy) {
            Some(shape) => {
                let mut kept = Kept::Compact(Compact::new(shape.number));
                if !kept.decide(Held { shapes, origin }, asked, decision) {
                    return false;
                }
                kept
            }
            // Who is denied is worth no memory, not even that of a shape.
            None => {
                let mut entry = Unpacked::default();
                if !entry.decide(asked, decision) {
                    return false;
                }
                if decision.taken() == 0 {
                    return true;
                }
                let shape = shapes.number(asked.policy);
                Kept::of(entry, shape, shapes, origin)
            }
        };
        if decision.taken() == 0 {
            return true;
        }
        let consumed = kept.consumed(&self.shapes, origin);
        match self.room(asked.clock, consumed) {
            Some(Room::Free) => {
                self.entries.add(subject, kept);
                return true;
            }
            Some(Room::Of(position)) => {
                self.note_eviction(position, asked.clock);
                self.entries.replace_at(position, subject, kept);
                return true;
            }
            None => {}
        }
        match self.entries.get_mut(Fingerprint::OVERFLOW) {
            Some(shared) => {
                decision.outcomes_mut().clear();
                shared.decide(Held { shapes: &mut self.shapes, origin }, asked, decision)
            }
            None => {
                self.entries.add(Fingerprint::OVERFLOW, kept);
                true
            }
        }
    }

    /// Remembers the eviction of the subject at `position`, if it was charged at this same time.
    fn note_eviction(&mut self, position: usize, clock: Timestamp) {
        let last = self.entries.at(position).map(|(_, kept)| kept.last_change(self.origin));
        if let Some(last) = last.filter(|last| is_same_moment(*last, clock)) {
            self.evicted = (clock, after_reset(last, clock));
        }
    }

    /// Forgets the used units of one limit.
    pub(super) fn forget(
        &mut self,
        subject: Fingerprint,
        policy: &Policy,
        clock: Timestamp,
        place: usize,
    ) {
        if let Some(kept) = self.entries.get_mut(subject) {
            kept.forget(&self.shapes, self.origin, policy, clock, place);
        }
    }

    /// Forgets all used units of a subject.
    pub(super) fn forget_all(&mut self, subject: Fingerprint, clock: Timestamp) {
        let Some(kept) = self.entries.get_mut(subject) else { return };
        let last = kept.last_change(self.origin);
        if is_same_moment(last, clock) {
            kept.empty(after_reset(last, clock), self.origin);
        } else {
            self.entries.remove(subject);
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
}

/// Where somebody is to be held.
enum Room {
    Free,
    /// In the place of who stands at this position.
    Of(usize),
}

impl Shard {
    /// Drops what has expired among the next few entries. If the shard is still full, finds the one
    /// that has used up the least of its limits, but never one that is in a denied state: a caller
    /// must not get rid of its debt by inventing subjects. Nobody is sought any further once there is one
    /// that has used up no more than the newcomer, and little.
    fn room(&mut self, now: Timestamp, newcomer: u8) -> Option<Room> {
        let (clock, little) = (self.origin.moment(now), newcomer.min(LITTLE));
        for _ in 0..ROUNDS {
            let mut victim: Option<(u8, usize)> = None;
            let is_full = self.entries.len() >= self.capacity;
            for _ in 0..INSPECTED.min(self.entries.len()) {
                if self.cursor >= self.entries.len() {
                    self.cursor = 0;
                }
                let Some((subject, kept)) = self.entries.at(self.cursor) else { break };
                if kept.is_expired(&self.shapes, self.origin, clock) {
                    // The last entry takes this place and is looked at next: maybe it was the one.
                    self.entries.remove_at(self.cursor);
                    victim = None;
                    continue;
                }
                if is_full && subject != Fingerprint::OVERFLOW && !kept.is_denied(clock) {
                    let consumed = kept.consumed(&self.shapes, self.origin);
                    if victim.is_none_or(|(least, _)| consumed < least) {
                        victim = Some((consumed, self.cursor));
                    }
                }
                self.cursor += 1;
                if victim.is_some_and(|(least, _)| least <= little) {
                    break;
                }
            }
            if self.entries.len() < self.capacity {
                return Some(Room::Free);
            }
            if let Some((_, position)) = victim {
                return Some(Room::Of(position));
            }
        }
        None
    }
}
