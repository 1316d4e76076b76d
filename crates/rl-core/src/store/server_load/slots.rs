//! The servers that decide a request, and the slots of a decision in flight, one on each of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::load::{CallBounds, FullServer, ServerLoad};
use crate::model::FailureKind;

/// The loads of the servers that decide a request.
#[derive(Debug, Default)]
pub struct ServerLoads<'a>(Loads<'a>);

#[derive(Debug, Default)]
enum Loads<'a> {
    #[default]
    None,
    One(&'a Arc<ServerLoad>),
    Several(SmallVec<[Arc<ServerLoad>; 2]>),
}

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
    sent_before: u64,
    /// The number of decisions that had been made when this one was sent.
    answered_before: u64,
    /// Whether this slot counts as a call that has no reply yet.
    is_call: bool,
}

impl<'a> ServerLoads<'a> {
    /// Returns whether the servers of the request are not known.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        matches!(self.0, Loads::None)
    }

    fn as_slice(&self) -> &[Arc<ServerLoad>] {
        match &self.0 {
            Loads::None => &[],
            Loads::One(load) => std::slice::from_ref(load),
            Loads::Several(loads) => loads,
        }
    }

    /// Returns a refusal if a server has no free slot.
    pub(crate) fn refusal(&self, bounds: CallBounds) -> Option<FullServer> {
        self.as_slice().iter().find_map(|load| {
            let in_flight = load.in_flight();
            let is_full = in_flight >= load.bound(bounds);
            is_full.then(|| load.recheck_bound(bounds, in_flight)).and_then(Result::err)
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

impl<'a> From<&'a Arc<ServerLoad>> for ServerLoads<'a> {
    fn from(load: &'a Arc<ServerLoad>) -> Self {
        Self(Loads::One(load))
    }
}

/// Leaves out repeated servers.
impl FromIterator<Arc<ServerLoad>> for ServerLoads<'_> {
    fn from_iter<I: IntoIterator<Item = Arc<ServerLoad>>>(loads: I) -> Self {
        let mut several = SmallVec::<[Arc<ServerLoad>; 2]>::new();
        for load in loads {
            if !several.iter().any(|known| Arc::ptr_eq(known, &load)) {
                several.push(load);
            }
        }
        Self(if several.is_empty() { Loads::None } else { Loads::Several(several) })
    }
}

impl ServerSlot {
    fn take(load: &Arc<ServerLoad>, bounds: CallBounds) -> Result<Self, FullServer> {
        // Counts first and checks afterwards, so that concurrent callers never exceed the bound.
        let ahead = load.in_flight.fetch_add(1, Ordering::Relaxed);
        if ahead >= load.bound(bounds)
            && let Err(refusal) = load.recheck_bound(bounds, ahead)
        {
            load.in_flight.fetch_sub(1, Ordering::Relaxed);
            return Err(refusal);
        }
        if load.has_own_calls {
            load.replies.record_call();
        }
        let sent_before = load.sent.fetch_add(1, Ordering::Relaxed);
        let answered_before = load.answered.load(Ordering::Relaxed);
        let is_call = load.has_own_calls;
        Ok(Self { load: Arc::clone(load), sent_before, answered_before, is_call })
    }
}

impl Drop for ServerSlot {
    fn drop(&mut self) {
        self.load.in_flight.fetch_sub(1, Ordering::Relaxed);
        if self.is_call {
            self.load.replies.record_abandoned_call();
        }
    }
}

impl ServerSlots {
    /// Returns the time at which the decision was sent.
    pub(crate) const fn sent_at(&self) -> Instant {
        self.sent_at
    }

    /// Returns whether a server answers that this decision does not need, so that a failure
    /// concerns only a part of the store.
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
    pub(crate) fn finish(mut self) {
        for ServerSlot { load, is_call, .. } in &mut self.slots {
            load.count_answered(self.sent_at);
            if std::mem::take(is_call) {
                load.replies.record_awaited_reply();
            }
        }
    }

    /// Records that the deadline has passed, adjusts the bound, and returns why the decision was
    /// not made in time: [`FailureKind::TimedOut`] if a server has not replied, which is an outage,
    /// and otherwise [`FailureKind::Overloaded`]. `deadline` is the time that was allowed.
    pub(crate) fn record_timeout(&self, deadline: Duration) -> FailureKind {
        let now = Instant::now();
        let waited = now - self.sent_at;
        for ServerSlot { load, sent_before, .. } in &self.slots {
            load.detect_flood(*sent_before, waited, now);
            if load.replies.shows_outage(waited, deadline, now) {
                return FailureKind::TimedOut;
            }
        }
        // If the timer fired late, this process gets too little CPU time, and the servers may be
        // fast.
        if waited <= deadline + deadline / 8 {
            for ServerSlot { load, answered_before, .. } in &self.slots {
                if load.replies.has_outstanding_reply() {
                    load.shrink(self.bounds, self.sent_at, *answered_before, now);
                }
            }
        }
        FailureKind::Overloaded
    }

    /// Returns the numbers of a refusal for the log: the decisions in flight and the bound on the
    /// server that has the most.
    pub(crate) fn figures(&self) -> (usize, usize) {
        let figures = self.slots.iter().map(|s| (s.load.in_flight(), s.load.bound(self.bounds)));
        figures.max().unwrap_or_default()
    }
}
