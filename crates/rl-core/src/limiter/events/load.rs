//! Reports that the store is overloaded or out of memory.

use super::Events;
use crate::model::{FailureKind, StoreError};
use crate::observe::{self, Ended, EventKind};

impl Events {
    /// Reports that the store is overloaded: the number of decisions in flight, and its bound.
    pub(in crate::limiter) fn store_overloaded(&self, (in_flight, bound): (usize, usize)) {
        if self.overload.occurred() {
            let consequence = self.consequence(FailureKind::Overloaded);
            observe::overloaded(self.place(), in_flight, bound, consequence);
            let on_failure = self.on_failure(FailureKind::Overloaded);
            self.emit(EventKind::StoreOverloaded { in_flight, bound, on_failure });
        }
    }

    /// Reports that the store has no memory for a charge.
    pub(in crate::limiter) fn store_out_of_memory(&self, error: &StoreError) {
        if self.memory.occurred() {
            let consequence = self.consequence(FailureKind::OutOfMemory);
            observe::out_of_memory(self.place(), error, consequence);
            let on_failure = self.on_failure(FailureKind::OutOfMemory);
            self.emit(EventKind::StoreOutOfMemory { error, on_failure });
        }
    }

    /// Ends a reported lack of memory, because the store has charged a request.
    pub(in crate::limiter) fn store_charged(&self) {
        if let Some(ended) = self.memory.ended() {
            observe::out_of_memory_ended(self.place(), ended);
            let Ended { lasted, count: undecided } = ended;
            self.emit(EventKind::StoreOutOfMemoryEnded { lasted, undecided });
        }
    }

    /// Ends a reported overload, because the store has decided a request.
    pub(super) fn end_overload(&self) {
        if let Some(ended) = self.overload.ended() {
            observe::overload_ended(self.place(), ended);
            let Ended { lasted, count: refused } = ended;
            self.emit(EventKind::StoreOverloadEnded { lasted, refused });
        }
    }
}
