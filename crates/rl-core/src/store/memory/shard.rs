//! A part of the store's subjects, under one lock.
//!
//! A shard has at most `capacity` subjects. For each new subject it inspects a few entries, in
//! turn. It drops expired entries, and evicts the entry with the smallest used fraction if the
//! shard is full. A denied subject is never evicted, so that a client cannot end a denial by
//! inventing subjects. If all inspected subjects are denied, new subjects share one entry until
//! there is room again.

use super::entry::Entry;
use super::packed_entry::TimeBase;
use super::table::{MAX_RECORDS, Table};
use crate::policy::Policy;
use crate::store::fingerprint::Fingerprint;
use crate::store::{Refund, Renewal};
use crate::time::Timestamp;

/// The number of entries inspected for each new subject: enough to find expired entries faster than
/// new ones are added.
const INSPECTED: usize = 8;

/// The number of rounds of inspection after which new subjects share an entry.
const ROUNDS: usize = 8;

/// An entry with at most this used fraction, scaled to 0–255, is evicted without an inspection of
/// further entries.
const SMALL_FRACTION: u8 = 127;

/// The largest number of subjects of a shard, without the shared entry.
pub(super) const MAX_SUBJECTS: usize = MAX_RECORDS - 16;

/// Subjects and their entries.
#[derive(Debug)]
pub(super) struct Shard {
    entries: Table<Entry>,
    base: TimeBase,
    capacity: usize,
    /// The position of the next entry to inspect.
    cursor: usize,
    /// The subject to evict, if the request that needs its room is granted.
    victim: Option<Fingerprint>,
    last_eviction: Eviction,
    /// Whether new subjects have ever been counted in the shared entry.
    has_shared: bool,
    /// The number of subjects that were evicted for others.
    evicted: u64,
}

/// The eviction of a subject in the microsecond of its last change.
///
/// The subject may return in the same microsecond. Its next charge must then get a later time, so
/// that a refund of the evicted charge does not find it.
#[derive(Clone, Copy, Debug)]
struct Eviction {
    at: Timestamp,
    /// The earliest time of a decision for a new subject at `at`.
    earliest_decision: Timestamp,
}

/// The room that was found for a new subject.
#[derive(Clone, Copy, Debug)]
enum Room {
    Free,
    /// The room of the entry at this position, which has to be evicted.
    Of(usize),
}

impl Shard {
    /// Creates an empty shard for `capacity` subjects.
    pub(super) fn new(capacity: usize, base: TimeBase) -> Self {
        Self {
            entries: Table::new(),
            base,
            capacity,
            cursor: 0,
            victim: None,
            last_eviction: Eviction { at: Timestamp::EPOCH, earliest_decision: Timestamp::EPOCH },
            has_shared: false,
            evicted: 0,
        }
    }

    /// Returns the largest number of subjects, without the shared entry.
    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns how many subjects were evicted for others.
    pub(super) const fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Returns the number of entries, expired ones included.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the time from which the entries count their times.
    #[inline]
    pub(super) const fn base(&self) -> TimeBase {
        self.base
    }

    /// Returns the position of the subject's entry. It is valid until an entry is removed.
    #[inline]
    pub(super) fn position(&self, subject: Fingerprint) -> Option<usize> {
        self.entries.position(subject)
    }

    /// Returns the entry at `position`.
    #[inline]
    pub(super) fn entry(&mut self, position: usize) -> &mut Entry {
        self.entries.value_mut(position)
    }

    /// Adds an entry without used units for a subject that has none. Returns its position. The shard
    /// may then have more entries than its capacity, until [`make_room`](Self::make_room) is called.
    pub(super) fn add(&mut self, subject: Fingerprint, policy: &Policy) -> usize {
        self.has_shared |= subject == Fingerprint::OVERFLOW;
        self.entries.add(subject, Entry::new(policy));
        self.entries.len() - 1
    }

    /// Removes the entry of a subject.
    pub(super) fn remove(&mut self, subject: Fingerprint) {
        self.entries.remove(subject);
    }

    /// Returns whether there is room for a new subject, whose request uses this fraction of its
    /// limits. If another subject has to be evicted for it, chooses that subject.
    ///
    /// Drops expired entries. The entries of the subjects in `kept` stay.
    pub(super) fn has_room(&mut self, now: Timestamp, fraction: u8, kept: &[Fingerprint]) -> bool {
        let room = self.find_room(now, fraction, kept);
        self.victim = match room {
            Some(Room::Of(position)) => self.entries.at(position).map(|(subject, _)| subject),
            Some(Room::Free) | None => None,
        };
        room.is_some()
    }

    /// Evicts subjects until the shard has no more of them than its capacity, or until all others
    /// are denied. The entries of the subjects in `kept` stay.
    pub(super) fn make_room(&mut self, now: Timestamp, kept: &[Fingerprint]) {
        while self.subjects() > self.capacity {
            let victim = self.victim.take().and_then(|subject| self.entries.position(subject));
            let position = match victim {
                Some(position) => position,
                None => match self.find_room(now, 0, kept) {
                    Some(Room::Of(position)) => position,
                    Some(Room::Free) => continue,
                    None => return,
                },
            };
            self.note_eviction(position, now);
            self.entries.remove_at(position);
        }
    }

    /// Returns the number of subjects that have entries of their own.
    fn subjects(&self) -> usize {
        let has_shared = self.has_shared && self.entries.get(Fingerprint::OVERFLOW).is_some();
        self.entries.len() - usize::from(has_shared)
    }

    /// Finds room for a new subject at `now`. Inspects the next few entries, and drops expired ones.
    /// In a full shard, chooses the inspected entry with the smallest used fraction. Stops early at
    /// an entry whose fraction is small and no larger than that of the new subject. Returns `None` if
    /// no inspected entry may be evicted.
    fn find_room(&mut self, now: Timestamp, newcomer: u8, kept: &[Fingerprint]) -> Option<Room> {
        let small = newcomer.min(SMALL_FRACTION);
        for _ in 0..ROUNDS {
            let mut best: Option<(u8, usize)> = None;
            let is_full = self.subjects() >= self.capacity;
            for _ in 0..INSPECTED.min(self.entries.len()) {
                if self.cursor >= self.entries.len() {
                    self.cursor = 0;
                }
                let position = self.cursor;
                let Some((subject, entry)) = self.entries.at(position) else { break };
                if kept.contains(&subject) {
                    self.cursor += 1;
                    continue;
                }
                if entry.is_expired(now, self.base) {
                    // The last entry moves to this position, and is inspected next. The best
                    // candidate so far may be that entry, so the candidate is dropped.
                    self.entries.remove_at(position);
                    best = None;
                    continue;
                }
                self.cursor += 1;
                if is_full && subject != Fingerprint::OVERFLOW && !entry.is_denied(now, self.base) {
                    let fraction = entry.used_fraction();
                    if best.is_none_or(|(least, _)| fraction < least) {
                        best = Some((fraction, position));
                    }
                    if fraction <= small {
                        break;
                    }
                }
            }
            if self.subjects() < self.capacity {
                return Some(Room::Free);
            }
            if let Some((_, position)) = best {
                return Some(Room::Of(position));
            }
        }
        None
    }

    /// Counts the eviction of the entry at `position`. Remembers it as the last one if the subject
    /// was last changed at `now`, or less than a millisecond later because the clock stepped back.
    fn note_eviction(&mut self, position: usize, now: Timestamp) {
        self.evicted += 1;
        let last_change = self.entries.value_mut(position).last_change(self.base);
        if is_same_moment(last_change, now) {
            let earliest_decision = earliest_after_reset(last_change, now);
            self.last_eviction = Eviction { at: now, earliest_decision };
        }
    }

    /// Returns the time of a decision on a new subject at `now`. It is later if the subject may have
    /// been evicted in the same microsecond.
    pub(super) fn after_eviction(&self, now: Timestamp) -> Timestamp {
        let Eviction { at, earliest_decision } = self.last_eviction;
        if now == at { now.max(earliest_decision) } else { now }
    }

    /// Refunds units to the states in the entry of `holder`: the subject, or the shared entry.
    pub(super) fn refund(&mut self, holder: Fingerprint, refund: &Refund<'_>, now: Timestamp) {
        if let Some(entry) = self.entries.get_mut(holder) {
            entry.amend(refund.policy, now, self.base, |index, step, states, now| {
                step.refund(states, now, refund.charged, refund.units_of(index));
            });
        }
    }

    /// Renews the lease of permits, if every concurrency limit still holds some of them.
    ///
    /// Returns the time at which the renewed lease begins, or `None` if nothing was renewed.
    pub(super) fn renew(
        &mut self,
        holder: Fingerprint,
        renewal: &Renewal<'_>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        self.entries.get_mut(holder)?.renew(renewal, now, self.base)
    }

    /// Returns the fingerprint of the entry with the permits that `refund` would release: that of
    /// the subject, or that of the shared entry.
    ///
    /// A subject that was counted in the shared entry may have got an entry of its own since.
    pub(super) fn permit_holder(
        &self,
        subject: Fingerprint,
        refund: &Refund<'_>,
        now: Timestamp,
    ) -> Fingerprint {
        if !self.has_shared {
            return subject;
        }
        let holds = |entry: &Entry| entry.holds(refund, now);
        let is_own = self.entries.get(subject).is_some_and(holds);
        let is_shared = !is_own && self.entries.get(Fingerprint::OVERFLOW).is_some_and(holds);
        if is_shared { Fingerprint::OVERFLOW } else { subject }
    }

    /// Resets one limit of a subject. `index` is its index in the policy.
    pub(super) fn reset_limit(
        &mut self,
        subject: Fingerprint,
        policy: &Policy,
        index: usize,
        now: Timestamp,
    ) {
        if let Some(entry) = self.entries.get_mut(subject) {
            let earliest = earliest_after_reset(entry.last_change(self.base), now);
            entry.reset_limit(policy, index, (now, earliest), self.base);
        }
    }

    /// Resets all limits of a subject.
    pub(super) fn reset_all(&mut self, subject: Fingerprint, now: Timestamp) {
        let Some(entry) = self.entries.get_mut(subject) else { return };
        let last_change = entry.last_change(self.base);
        if is_same_moment(last_change, now) {
            entry.reset_all(earliest_after_reset(last_change, now), self.base);
        } else {
            self.entries.remove(subject);
        }
    }
}

/// Returns the earliest time of a decision after a reset at `now`. The entry was last changed at
/// `last_change`.
///
/// A refund names a charge by its time. If a reset comes in the same microsecond as a charge, the
/// next charge gets a time one microsecond later. A refund of the first charge then does not find
/// it.
fn earliest_after_reset(last_change: Timestamp, now: Timestamp) -> Timestamp {
    if last_change < now { now } else { last_change.plus_micros(1) }
}

/// Returns whether the result of [`earliest_after_reset`] must be stored when the whole entry is
/// removed. This is the case if the last change was at `now`, or less than a millisecond later
/// because the clock has stepped back.
///
/// After a larger step back, the next decision may use the time of the clock.
fn is_same_moment(last_change: Timestamp, now: Timestamp) -> bool {
    const STEP_BACK_MICROS: u64 = 1_000;

    last_change >= now && last_change.micros_since(now) < STEP_BACK_MICROS
}
