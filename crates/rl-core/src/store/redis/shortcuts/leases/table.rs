//! The leases of all subjects. Each subject has a lock, so that one task at a time refills its
//! lease. No I/O.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use indexmap::map::Entry;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::slot::{LeaseSlot, RefillState};
use crate::store::redis::subject_key::{KeyedSubject, SubjectMap};

/// The number of slots that are compared to select one for replacement.
const COMPARED: usize = 8;

/// The time in µs for which a lease is not replaced after one of its units was spent.
const RECENT: u64 = 1_000_000;

/// The number of slots that a sweep visits each time it holds the lock of the table.
const VISITED_PER_LOCK: usize = 1_024;

#[derive(Default)]
pub(super) struct LeaseTable {
    slots: Mutex<SubjectMap<LeaseSlot>>,
    /// The index at which the next search for a replaceable slot begins.
    next: AtomicUsize,
}

/// Keeps the slot of a subject in the table. When the last guard is dropped, a slot without a lease
/// is removed.
pub(super) struct SlotGuard {
    pub(super) table: Arc<LeaseTable>,
    pub(super) subject: KeyedSubject,
    refill: Arc<AsyncMutex<RefillState>>,
}

/// The permission to refill or empty a slot. One task at a time has it.
pub(super) struct RefillGuard {
    // This field comes first, so that the lock is released before the slot.
    pub(super) state: OwnedMutexGuard<RefillState>,
    pub(super) slot: SlotGuard,
}

/// The result of [`LeaseTable::make_room`].
pub(super) enum FreedSlot {
    /// A slot without unspent units was removed.
    Made,
    /// This slot is to be replaced. The caller returns its units, then drops the guard. The drop
    /// removes the slot from the table.
    Replaced(RefillGuard),
    /// None of the compared slots can be replaced, because all of them have a guard, or a lease
    /// with recently spent units.
    None,
}

impl LeaseTable {
    pub(super) fn lock(&self) -> MutexGuard<'_, SubjectMap<LeaseSlot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a guard for a subject's slot, and adds the slot if the subject has none. Returns
    /// `None` if it has none and the table has `max` slots already.
    pub(super) fn enter(self: &Arc<Self>, subject: KeyedSubject, max: usize) -> Option<SlotGuard> {
        let mut slots = self.lock();
        let is_full = slots.len() >= max;
        let slot = match slots.entry(subject.key) {
            Entry::Vacant(_) if is_full => return None,
            entry => entry.or_insert_with(|| LeaseSlot::new(subject.clone())),
        };
        slot.guards += 1;
        Some(SlotGuard { table: Arc::clone(self), subject, refill: Arc::clone(&slot.refill) })
    }

    /// Returns a guard for a subject's slot, if there is one.
    pub(super) fn find(self: &Arc<Self>, subject: KeyedSubject) -> Option<SlotGuard> {
        self.enter(subject, 0)
    }

    /// Makes room for a slot. Compares a few slots, and removes one without unspent units. If all
    /// have some, selects the one that has been idle for longest.
    pub(super) fn make_room(self: &Arc<Self>, now: u64) -> FreedSlot {
        let mut slots = self.lock();
        let (count, from) = (slots.len(), self.next.fetch_add(COMPARED, Ordering::Relaxed));
        let mut idlest = None;
        for index in (0..COMPARED.min(count)).map(|n| from.wrapping_add(n) % count) {
            let slot = &slots[index];
            if slot.guards > 0 {
                continue;
            }
            let Some(lease) = slot.lease.as_ref().filter(|lease| lease.unspent > 0) else {
                slots.swap_remove_index(index);
                return FreedSlot::Made;
            };
            let idle = if now < lease.expires { lease.idle_time(now) } else { u64::MAX };
            if idle >= RECENT && idlest.is_none_or(|(_, longest)| idle > longest) {
                idlest = Some((index, idle));
            }
        }
        let found = idlest.and_then(|(index, _)| slots.get_index_mut(index));
        let Some((_, slot)) = found else { return FreedSlot::None };
        // The lock is free, because the slot has no guard.
        let Ok(state) = Arc::clone(&slot.refill).try_lock_owned() else { return FreedSlot::None };
        slot.guards += 1;
        let (subject, refill) = (slot.subject.clone(), Arc::clone(&slot.refill));
        FreedSlot::Replaced(RefillGuard {
            state,
            slot: SlotGuard { table: Arc::clone(self), subject, refill },
        })
    }

    /// Visits the slots that no task uses and whose lease has expired or is idle. Removes those
    /// without unspent units. Returns the subjects of the others, at most `max`, so that the caller
    /// can return their units.
    ///
    /// The lock is released several times during the sweep. A slot that is moved in the meantime
    /// may be missed, and is visited by the next sweep.
    pub(super) fn sweep(&self, now: u64, idle: u64, max: usize) -> Vec<KeyedSubject> {
        let (mut due, mut from) = (Vec::new(), 0);
        loop {
            let mut slots = self.lock();
            let to = slots.len().min(from + VISITED_PER_LOCK);
            // The loop runs backwards, because the last slot takes the index of a removed one.
            for index in (from..to).rev() {
                match slots.get_index(index) {
                    Some((_, slot)) if !slot.is_unused(now, idle) => {}
                    Some((_, slot)) if slot.unspent() > 0 => {
                        if due.len() < max {
                            due.push(slot.subject.clone());
                        }
                    }
                    _ => drop(slots.swap_remove_index(index)),
                }
            }
            if to >= slots.len() {
                return due;
            }
            from = to;
        }
    }

    /// Returns all subjects that have a slot.
    pub(super) fn subjects(&self) -> Vec<KeyedSubject> {
        self.lock().values().map(|slot| slot.subject.clone()).collect()
    }
}

impl SlotGuard {
    /// Waits for the refill lock.
    pub(super) async fn lock_refill(self) -> RefillGuard {
        RefillGuard { state: Arc::clone(&self.refill).lock_owned().await, slot: self }
    }

    /// Calls `f` with the slot.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut LeaseSlot) -> T) -> T {
        let mut slots = self.table.lock();
        f(slots.get_mut(&self.subject.key).expect("a slot with a guard stays in the table"))
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        let mut slots = self.table.lock();
        let Some(slot) = slots.get_mut(&self.subject.key) else { return };
        slot.guards -= 1;
        if slot.guards == 0 && slot.lease.is_none() {
            slots.swap_remove(&self.subject.key);
        }
    }
}
