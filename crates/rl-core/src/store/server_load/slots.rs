//! The slots of a decision in flight, one on each server that it needs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::bounds::{CallBounds, FullServer};
use super::load::{ServerLoad, ServerLoads};
use crate::model::FailureKind;

/// The slots of a decision in flight. They are free again when this value is dropped.
#[derive(Debug)]
pub(crate) struct ServerSlots {
    slots: SmallVec<[ServerSlot; 1]>,
    sent_at: Instant,
    bounds: CallBounds,
}

#[derive(Debug)]
struct ServerSlot {
    load: Arc<ServerLoad>,
    /// The number of decisions that had been sent before this one.
    sent: u64,
    /// The number of decisions that had been made when this one was sent.
    answered: u64,
    /// Whether this slot counts as a call that has no reply yet.
    is_call: bool,
}

impl ServerLoads<'_> {
    /// Returns a refusal if a server has no free slot.
    pub(crate) fn refusal(&self, bounds: CallBounds) -> Option<FullServer> {
        self.as_slice().iter().find_map(|load| {
            let in_flight = load.waiting();
            let is_full = in_flight >= load.bound(bounds);
            is_full.then(|| load.refuse(bounds, in_flight)).and_then(Result::err)
        })
    }

    /// Takes a slot on each server.
    ///
    /// # Errors
    ///
    /// Returns a refusal, and takes no slot, if a server has none.
    pub(crate) fn enter(&self, bounds: CallBounds) -> Result<ServerSlots, FullServer> {
        let sent_at = Instant::now();
        let slots = self.as_slice().iter().map(|load| ServerSlot::take(load, bounds));
        let slots = slots.collect::<Result<_, _>>()?;
        Ok(ServerSlots { slots, sent_at, bounds })
    }
}

impl ServerSlot {
    fn take(load: &Arc<ServerLoad>, bounds: CallBounds) -> Result<Self, FullServer> {
        // Counts first and checks afterwards, so that concurrent callers never exceed the bound.
        let ahead = load.waiting.fetch_add(1, Ordering::Relaxed);
        if ahead >= load.bound(bounds)
            && let Err(refusal) = load.refuse(bounds, ahead)
        {
            load.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(refusal);
        }
        if load.has_own_calls {
            load.replies.sent();
        }
        let sent = load.sent.fetch_add(1, Ordering::Relaxed);
        let answered = load.answered.load(Ordering::Relaxed);
        Ok(Self { load: Arc::clone(load), sent, answered, is_call: load.has_own_calls })
    }
}

impl Drop for ServerSlot {
    fn drop(&mut self) {
        self.load.waiting.fetch_sub(1, Ordering::Relaxed);
        if self.is_call {
            self.load.replies.abandoned();
        }
    }
}

impl ServerSlots {
    /// Returns the time at which the decision was sent.
    pub(crate) const fn sent_at(&self) -> Instant {
        self.sent_at
    }

    /// Returns whether a server answers that this decision does not need, so that a failure concerns
    /// only a part of the store.
    pub(crate) fn has_other_server(&self) -> bool {
        let (now, time) = (Instant::now(), self.bounds.deadline / 2);
        self.slots
            .iter()
            .any(|ServerSlot { load, .. }| load.group.has_other(&load.replies, time, now))
    }

    /// Returns the runtimes that read the replies of the servers, as far as they are known.
    pub(crate) fn runtimes(&self) -> impl Iterator<Item = &Handle> {
        self.slots.iter().filter_map(|slot| slot.load.runtime.as_ref())
    }

    /// Records that the decision was made.
    pub(crate) fn answered(mut self) {
        for ServerSlot { load, is_call, .. } in &mut self.slots {
            load.count_answered(self.sent_at);
            if std::mem::take(is_call) {
                load.replies.answered();
            }
        }
    }

    /// Returns why the decision was not made in time: [`FailureKind::TimedOut`] if a server is
    /// silent, which is an outage, and otherwise [`FailureKind::Overloaded`]. `patience` is the
    /// time that was allowed for the decision.
    pub(crate) fn timed_out(&self, patience: Duration) -> FailureKind {
        let (now, sent) = (Instant::now(), self.sent_at);
        let waited = now - sent;
        for ServerSlot { load, sent, .. } in &self.slots {
            load.detect_flood(*sent, waited, now);
            if load.replies.shows_outage(waited, patience, now) {
                return FailureKind::TimedOut;
            }
        }
        // If the timer fired late, this process gets too little CPU time, and the servers may be
        // fast.
        if waited <= patience + patience / 8 {
            for ServerSlot { load, answered, .. } in &self.slots {
                if load.replies.is_owing() {
                    load.shrink(self.bounds, sent, *answered, now);
                }
            }
        }
        FailureKind::Overloaded
    }

    /// Returns the numbers of a refusal for the log: the decisions in flight and the bound on the
    /// server that has the most.
    pub(crate) fn figures(&self) -> (usize, usize) {
        let figures = self.slots.iter().map(|s| (s.load.waiting(), s.load.bound(self.bounds)));
        figures.max().unwrap_or_default()
    }
}
