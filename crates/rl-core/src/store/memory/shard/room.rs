//! Room for several new subjects of one request.
//!
//! A request of several parts is charged whole or not at all. So the room for its new subjects is
//! planned first, and nothing is evicted until the request is granted.

use smallvec::SmallVec;

use super::{Claims, Shard, Vacancy};
use crate::decision::Decision;
use crate::store::fingerprint::Fingerprint;
use crate::store::memory::entry::Entry;
use crate::store::memory::run::{DecideArgs, TooManyStates};
use crate::time::Timestamp;

impl Shard {
    /// Finds room for `count` new subjects of a request at `now`. Returns for how many of them
    /// there is room, and the subjects to [evict](Self::evict) for them.
    ///
    /// Drops expired entries, and evicts nothing. The entries of the subjects of `request` stay.
    pub(in crate::store::memory) fn plan_room(
        &mut self,
        count: usize,
        request: &[Fingerprint],
        now: Timestamp,
    ) -> (usize, SmallVec<[Fingerprint; 4]>) {
        let mut subjects: SmallVec<[Fingerprint; 16]> = SmallVec::from_slice(request);
        let mut free = 0;
        for _ in 0..count {
            match self.find_room(now, 0, Claims { subjects: &subjects, free }) {
                Some(Vacancy::Free) => free += 1,
                Some(Vacancy::Evict(position)) => {
                    subjects.extend(self.entries.at(position).map(|(subject, _)| subject));
                }
                None => break,
            }
        }
        let evicted = &subjects[request.len()..];
        (free + evicted.len(), SmallVec::from_slice(evicted))
    }

    /// Evicts a subject to make room for a new one at `now`.
    pub(in crate::store::memory) fn evict(&mut self, subject: Fingerprint, now: Timestamp) {
        if let Some(position) = self.entries.position(subject) {
            self.note_eviction(position, now);
            self.entries.remove_at(position);
        }
    }

    /// Decides like [`decide`](Self::decide). A new subject gets an entry without an eviction,
    /// because there is room for it.
    ///
    /// # Errors
    ///
    /// Fails like [`decide`](Self::decide).
    pub(in crate::store::memory) fn decide_with_room(
        &mut self,
        subject: Fingerprint,
        args: DecideArgs<'_>,
        decision: &mut Decision,
    ) -> Result<(), TooManyStates> {
        if let Some(entry) = self.entries.get_mut(subject) {
            return entry.decide(&mut self.context, args, decision);
        }
        let args = self.after_eviction(args);
        if let Some(entry) = Entry::decide_newcomer(&mut self.context, args, decision)? {
            self.entries.add(subject, entry);
        }
        Ok(())
    }

    /// Decides for a new subject in the entry that new subjects share.
    ///
    /// # Errors
    ///
    /// Fails like [`decide`](Self::decide).
    pub(in crate::store::memory) fn decide_in_shared_entry(
        &mut self,
        args: DecideArgs<'_>,
        decision: &mut Decision,
    ) -> Result<(), TooManyStates> {
        self.has_shared = true;
        self.decide_with_room(Fingerprint::OVERFLOW, args, decision)
    }

    /// Returns a copy of the entry that new subjects share.
    pub(in crate::store::memory) fn copy_shared_entry(&self) -> Option<Entry> {
        self.entries.get(Fingerprint::OVERFLOW).cloned()
    }

    /// Replaces the entry that new subjects share by an earlier copy.
    pub(in crate::store::memory) fn restore_shared_entry(&mut self, copy: Option<Entry>) {
        match (self.entries.get_mut(Fingerprint::OVERFLOW), copy) {
            (Some(shared), Some(copy)) => *shared = copy,
            _ => self.entries.remove(Fingerprint::OVERFLOW),
        }
    }
}
