use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::observe;

/// The decisions that wait for the store, so many at most: when it is slow, requests must not pile up
/// until memory ends.
#[derive(Debug)]
pub(super) struct InFlight {
    waiting: AtomicUsize,
    most: usize,
    // There were too many, and that was logged.
    is_overloaded: AtomicBool,
}

/// A decision that waits, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot(Arc<InFlight>);

impl InFlight {
    pub(super) fn at_most(most: usize) -> Arc<Self> {
        let (waiting, is_overloaded) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { waiting, most, is_overloaded })
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// A slot, unless all are taken.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Slot> {
        // Taken first: then the excess is given back, and no more than `most` are ever held.
        let slot = Slot(Arc::clone(self));
        (self.waiting.fetch_add(1, Ordering::Relaxed) < self.most).then_some(slot)
    }

    /// Whether that there are too many is worth a line in the log: until now there were not.
    pub(super) fn is_worth_a_line(&self) -> bool {
        !self.is_overloaded.swap(true, Ordering::Relaxed)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let InFlight { waiting, most, is_overloaded } = &*self.0;
        let others = waiting.fetch_sub(1, Ordering::Relaxed) - 1;
        // Well below, or every decision that is done would be a line.
        if is_overloaded.load(Ordering::Relaxed)
            && others <= most / 2
            && is_overloaded.swap(false, Ordering::Relaxed)
        {
            observe::caught_up();
        }
    }
}
