use indexmap::IndexMap;

use super::entry::Entry;
use super::fingerprint::{BuildAlreadyHashed, Fingerprint};
use crate::time::Timestamp;

/// Entries looked at for each one that is added: enough to find expired ones faster than new ones
/// come, few enough not to be felt.
const INSPECTED: usize = 8;

/// Rounds of inspection before a full shard counts newcomers together.
const ROUNDS: usize = 8;

/// A part of the store's subjects, under one lock.
#[derive(Debug)]
pub(super) struct Shard {
    entries: IndexMap<Fingerprint, Entry, BuildAlreadyHashed>,
    capacity: usize,
    // Where the next inspection begins; it goes around.
    cursor: usize,
}

impl Shard {
    pub(super) fn new(capacity: usize) -> Self {
        Self { entries: IndexMap::default(), capacity, cursor: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn get_mut(&mut self, subject: Fingerprint) -> Option<&mut Entry> {
        self.entries.get_mut(&subject)
    }

    /// The entry that holds permits of `subject`: its own, or the shared one. Who was counted with
    /// others may have an entry since.
    pub(super) fn holding(
        &mut self,
        subject: Fingerprint,
        holds: impl Fn(&Entry) -> bool,
    ) -> Option<&mut Entry> {
        let is_in = |subject| self.entries.get(subject).is_some_and(&holds);
        let is_shared = !is_in(&subject) && is_in(&Fingerprint::OVERFLOW);
        self.entries.get_mut(if is_shared { &Fingerprint::OVERFLOW } else { &subject })
    }

    pub(super) fn remove(&mut self, subject: Fingerprint) {
        self.entries.swap_remove(&subject);
    }

    /// The entry of a subject that has none yet, or the shared one if there is no room.
    pub(super) fn add(&mut self, subject: Fingerprint, now: Timestamp) -> &mut Entry {
        let subject = if self.make_room(now) { subject } else { Fingerprint::OVERFLOW };
        let len = self.entries.len();
        if len == self.entries.capacity() && len <= self.capacity {
            // Doubled as by itself, but never beyond what it may hold: that, and the shared one.
            self.entries.reserve_exact(len.clamp(1, self.capacity + 1 - len));
        }
        self.entries.entry(subject).or_default()
    }

    /// Drops what has expired among the next few entries. If the shard is still full, drops the one
    /// that has used up the least of its limits, but never one that is in a denied state: a caller
    /// must not get rid of its debt by inventing subjects. Returns whether there is room.
    fn make_room(&mut self, now: Timestamp) -> bool {
        for _ in 0..ROUNDS {
            let mut victim: Option<(u16, Fingerprint)> = None;
            for _ in 0..INSPECTED.min(self.entries.len()) {
                if self.cursor >= self.entries.len() {
                    self.cursor = 0;
                }
                let Some((subject, entry)) = self.entries.get_index(self.cursor) else {
                    break;
                };
                if entry.is_expired(now) {
                    // The last entry takes this place and is looked at next.
                    self.entries.swap_remove_index(self.cursor);
                    continue;
                }
                if !entry.is_denied(now)
                    && *subject != Fingerprint::OVERFLOW
                    && victim.is_none_or(|(least, _)| entry.consumed() < least)
                {
                    victim = Some((entry.consumed(), *subject));
                }
                self.cursor += 1;
            }
            if self.entries.len() < self.capacity {
                return true;
            }
            if let Some((_, subject)) = victim {
                self.entries.swap_remove(&subject);
                return true;
            }
        }
        false
    }
}
