//! Who takes units ahead and gives them back: one at a time for each subject. No I/O.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use indexmap::map::Entry;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};
use tokio::task::AbortHandle;

use super::super::who::{ByWho, Who};
use super::held::Lease;

#[derive(Default)]
pub(super) struct Table(Mutex<ByWho<Lease>>);

/// What those need who take and give back.
#[derive(Default)]
pub(super) struct Taking {
    /// How many units were taken last.
    pub(super) size: u64,
    pub(super) ending: Option<Ending>,
}

/// The task that ends a lease; there is one for each at most.
pub(super) struct Ending {
    pub(super) wakes: u64,
    pub(super) task: AbortHandle,
}

/// A place in the table. Where nothing is held, the last to leave forgets it; as long as anybody is
/// there, all who come meet in the same.
pub(super) struct Place {
    pub(super) table: Arc<Table>,
    pub(super) who: Who,
    pub(super) turn: Arc<Turn<Taking>>,
}

/// One whose turn it is to take and to give back.
pub(in super::super) struct Holder {
    // Left before the place is.
    pub(super) taking: OwnedMutexGuard<Taking>,
    pub(super) place: Place,
}

impl Table {
    pub(super) fn lock(&self) -> MutexGuard<'_, ByWho<Lease>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a subject, which is made if there are less than `most`.
    pub(super) fn enter(self: &Arc<Self>, who: Who, most: usize) -> Option<Place> {
        let mut held = self.lock();
        let is_full = held.len() >= most;
        let lease = match held.entry(who.clone()) {
            Entry::Vacant(_) if is_full => return None,
            lease => lease.or_default(),
        };
        lease.places += 1;
        Some(Place { table: Arc::clone(self), who, turn: Arc::clone(&lease.turn) })
    }

    /// The place of a subject, if it is there.
    pub(super) fn find(self: &Arc<Self>, who: Who) -> Option<Place> {
        self.enter(who, 0)
    }
}

impl Place {
    pub(super) async fn turn(self) -> Holder {
        Holder { taking: Arc::clone(&self.turn).lock_owned().await, place: self }
    }

    /// Does something with what is held.
    pub(super) fn with_lease<T>(&self, then: impl FnOnce(&mut Lease) -> T) -> T {
        let mut held = self.table.lock();
        then(held.get_mut(&self.who.as_ref()).expect("whoever has a place is in the table"))
    }
}

impl Holder {
    /// Until when what is held may be spent.
    pub(super) fn until(&self) -> Option<u64> {
        self.place.with_lease(|lease| lease.terms.as_ref().map(|terms| terms.until))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.table.lock();
        let Some(lease) = held.get_mut(&self.who.as_ref()) else { return };
        lease.places -= 1;
        if lease.places == 0 && lease.terms.is_none() {
            held.swap_remove(&self.who.as_ref());
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.task.abort();
    }
}
