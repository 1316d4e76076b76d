//! The table of leases, and turns: one task at a time takes or gives back units of a subject. No I/O.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use indexmap::map::Entry;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use super::slot::Lease;
use crate::store::redis::subject_key::{ByWho, Who};

/// The leases that are compared to find one to replace.
const COMPARED: usize = 8;

/// A lease that was spent within this time is not replaced, in µs.
const RECENT: u64 = 1_000_000;

/// The leases that a sweep visits under one lock of the table.
const LOOKED_AT: usize = 1_024;

#[derive(Default)]
pub(crate) struct Table {
    leases: Mutex<ByWho<Lease>>,
    /// Where the next search for a lease to replace begins.
    next: AtomicUsize,
}

/// The data of the task that has the turn.
#[derive(Default)]
pub(crate) struct Taking {
    /// How many units were taken last.
    pub(crate) size: u64,
}

/// A place in the table, which keeps the entry of a subject in it: all tasks of the subject share the entry.
/// The last task to leave removes an entry without units.
pub(crate) struct Place {
    pub(crate) table: Arc<Table>,
    pub(crate) who: Who,
    pub(crate) turn: Arc<Turn<Taking>>,
}

/// The turn of one task to take or give back units.
pub(crate) struct Holder {
    // Released before the place is left.
    pub(crate) taking: OwnedMutexGuard<Taking>,
    pub(crate) place: Place,
}

/// What a full table can offer.
pub(crate) enum Room {
    /// An entry with nothing left was removed.
    Made,
    /// The entry is removed when its units have been given back.
    Idle(Holder),
    /// All entries that were compared are in use.
    None,
}

impl Table {
    pub(crate) fn lock(&self) -> MutexGuard<'_, ByWho<Lease>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a place of a subject. Adds an entry for it if there are fewer than `most`.
    pub(crate) fn enter(self: &Arc<Self>, who: Who, most: usize) -> Option<Place> {
        let mut leases = self.lock();
        let is_full = leases.len() >= most;
        let lease = match leases.entry(who.clone()) {
            Entry::Vacant(_) if is_full => return None,
            lease => lease.or_default(),
        };
        lease.places += 1;
        Some(Place { table: Arc::clone(self), who, turn: Arc::clone(&lease.turn) })
    }

    /// Returns a place of a subject, if it has an entry.
    pub(crate) fn find(self: &Arc<Self>, who: Who) -> Option<Place> {
        self.enter(who, 0)
    }

    /// Looks for an entry to replace: one with nothing left, else the one that has been idle for longest.
    pub(crate) fn make_room(self: &Arc<Self>, now: u64) -> Room {
        let mut leases = self.lock();
        let (count, from) = (leases.len(), self.next.fetch_add(COMPARED, Ordering::Relaxed));
        let mut idlest = None;
        for place in (0..COMPARED.min(count)).map(|n| from.wrapping_add(n) % count) {
            let lease = &leases[place];
            if lease.places > 0 {
                continue;
            }
            let Some(terms) = lease.terms.as_ref().filter(|terms| terms.left > 0) else {
                leases.swap_remove_index(place);
                return Room::Made;
            };
            let idle = if now < terms.until { terms.idle_since(now) } else { u64::MAX };
            if idle >= RECENT && idlest.is_none_or(|(_, longest)| idle > longest) {
                idlest = Some((place, idle));
            }
        }
        let found = idlest.and_then(|(place, _)| leases.get_index_mut(place));
        let Some((who, lease)) = found else { return Room::None };
        // The turn is free, because no task has a place.
        let Ok(taking) = Arc::clone(&lease.turn).try_lock_owned() else { return Room::None };
        lease.places += 1;
        let (who, turn) = (who.clone(), Arc::clone(&lease.turn));
        Room::Idle(Holder { taking, place: Place { table: Arc::clone(self), who, turn } })
    }

    /// Removes leases with nothing left that have ended or are idle, and returns up to `most` subjects whose
    /// units are to be given back. If an entry moves meanwhile, the next sweep finds it.
    pub(crate) fn sweep(&self, now: u64, idle: u64, most: usize) -> Vec<Who> {
        let (mut due, mut from) = (Vec::new(), 0);
        loop {
            let mut leases = self.lock();
            let to = leases.len().min(from + LOOKED_AT);
            // Backwards: the last entry takes the place of one that is removed.
            for place in (from..to).rev() {
                match leases.get_index(place) {
                    Some((_, lease)) if !lease.is_due(now, idle) => {}
                    Some((who, lease)) if lease.left() > 0 => {
                        if due.len() < most {
                            due.push(who.clone());
                        }
                    }
                    _ => drop(leases.swap_remove_index(place)),
                }
            }
            if to >= leases.len() {
                return due;
            }
            from = to;
        }
    }

    /// Returns all subjects that have an entry.
    pub(crate) fn subjects(&self) -> Vec<Who> {
        self.lock().keys().cloned().collect()
    }
}

impl Place {
    pub(crate) async fn turn(self) -> Holder {
        Holder { taking: Arc::clone(&self.turn).lock_owned().await, place: self }
    }

    /// Calls `then` with the lease.
    pub(crate) fn with_lease<T>(&self, then: impl FnOnce(&mut Lease) -> T) -> T {
        let mut leases = self.table.lock();
        then(leases.get_mut(&self.who.as_ref()).expect("an entry with a place stays in the table"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut leases = self.table.lock();
        let Some(lease) = leases.get_mut(&self.who.as_ref()) else { return };
        lease.places -= 1;
        if lease.places == 0 && lease.terms.is_none() {
            leases.swap_remove(&self.who.as_ref());
        }
    }
}
