//! Gives each thread a slot number, by which it finds counters that no other thread writes.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

/// The number of slots that a thread can have for itself. Each of them has a bit in [`TAKEN`].
pub(super) const OWN_SLOTS: usize = 64;

/// The slot that all further threads share.
pub(super) const SHARED_SLOT: usize = OWN_SLOTS;

const UNASSIGNED: usize = usize::MAX;

thread_local! {
    static SLOT: Cell<usize> = const { Cell::new(UNASSIGNED) };
    /// The claim of this thread on its slot. It is dropped when the thread ends, which frees the
    /// slot.
    static CLAIM: Cell<Option<SlotClaim>> = const { Cell::new(None) };
}

/// The slots that belong to a thread, one bit for each.
///
/// A slot gets a new owner under this lock. So the new owner sees all counts of the previous one.
static TAKEN: Mutex<u64> = Mutex::new(0);

/// The claim of a thread on a slot of its own.
struct SlotClaim(usize);

impl Drop for SlotClaim {
    fn drop(&mut self) {
        // Destructors of this thread that run later count in the shared slot.
        SLOT.set(SHARED_SLOT);
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.0);
    }
}

/// Returns the slot of this thread.
#[inline(always)]
pub(super) fn current() -> usize {
    let slot = SLOT.get();
    if slot == UNASSIGNED { assign() } else { slot }
}

/// Claims the first free slot for this thread. If there is none, the thread uses the shared slot.
#[cold]
fn assign() -> usize {
    let slot = {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let free = taken.trailing_ones() as usize;
        if free < OWN_SLOTS {
            *taken |= 1 << free;
        }
        free.min(SHARED_SLOT)
    };
    SLOT.set(slot);
    if slot < OWN_SLOTS {
        // An error is impossible: once `CLAIM` has been destroyed, `SLOT` is the shared slot, and
        // this function is no longer called.
        let _ = CLAIM.try_with(|claim| claim.set(Some(SlotClaim(slot))));
    }
    SLOT.get()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn threads_that_run_at_the_same_time_share_no_slot_of_their_own() {
        let barrier = Barrier::new(100);
        let slots: Vec<usize> = std::thread::scope(|scope| {
            let slot_of_thread = || {
                let slot = current();
                assert_eq!(current(), slot, "a thread keeps its slot");
                barrier.wait();
                slot
            };
            let threads: Vec<_> = (0..100).map(|_| scope.spawn(slot_of_thread)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let own: Vec<_> = slots.iter().filter(|slot| **slot < OWN_SLOTS).collect();
        assert_eq!(own.iter().collect::<BTreeSet<_>>().len(), own.len());
        assert!(slots.iter().all(|slot| *slot <= SHARED_SLOT));
        assert!(slots.contains(&SHARED_SLOT), "there are more threads than slots");
    }

    #[test]
    fn the_slots_of_threads_that_have_ended_are_used_again() {
        // Without reuse, at most `OWN_SLOTS` threads would get slots of their own. Not every thread
        // has to get one, because other tests occupy slots too.
        let mut own = 0;
        for _ in 0..1_000 {
            own += usize::from(std::thread::spawn(current).join().unwrap() < OWN_SLOTS);
        }
        assert!(own > OWN_SLOTS, "{own}");
    }
}
