//! How those are told who travelled for one subject.

use std::iter::Zip;
use std::ops::Range;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::super::RedisStore;
use super::super::answer::{Answer, Asked};
use super::super::who::Who;
use super::batch::{Caller, Costs, Run};
use crate::model::Mode;
use crate::store::StoreError;
use crate::{Cost, Decision, FailureKind, Policy};

/// So many are not told at once.
const MANY: usize = 16;

/// Callers of one subject that are told, in the order in which they came.
pub(super) struct Telling<'a> {
    store: &'a RedisStore,
    who: Who,
    callers: Zip<Range<u16>, std::vec::IntoIter<Caller>>,
    answer: Arc<Answer>,
    costs: Costs,
    calls: u16,
    is_noted: bool,
}

impl<'a> Telling<'a> {
    pub(super) fn new(store: &'a RedisStore, run: Run, answer: Answer, costs: Costs) -> Self {
        store.note_healed(answer.healed);
        let Run { who, callers } = run;
        let calls = u16::try_from(callers.len()).unwrap_or(u16::MAX);
        let (callers, answer) = ((0..calls).zip(callers), Arc::new(answer));
        Self { store, who, callers, answer, costs, calls, is_noted: false }
    }

    /// Whether the others have something to do while some are told.
    pub(super) fn are_many(&self) -> bool {
        self.callers.len() >= MANY
    }

    /// Tells the first quarter.
    pub(super) fn tell_some(&mut self) {
        self.tell(self.callers.len() / 4);
    }

    /// Tells all that are left.
    pub(super) fn tell_all(mut self) {
        self.tell(usize::MAX);
    }

    fn tell(&mut self, most: usize) {
        let Self { store, who, callers, answer, costs, calls, is_noted } = self;
        for (call, Caller { policy, cost, asking, tell }) in callers.take(most) {
            let part = Part { answer: Arc::clone(answer), policy, cost, call, calls: *calls };
            // All of one cost that are denied are denied alike.
            if !answer.passes(call) && (*costs == Costs::Mixed || !*is_noted) {
                store.note_denial(who.as_ref(), &part.decision(), asking);
                *is_noted = true;
            }
            // Who has given up stays charged: whether it was in time, nobody can tell.
            let _ = tell.send(Ok(part));
        }
    }
}

/// Where the answer comes.
pub(in super::super) type Told = oneshot::Receiver<Result<Part, StoreError>>;

/// Waits to be told. Small: it is made for each call.
pub(in super::super) async fn wait(told: Told) -> Result<Decision, StoreError> {
    match told.await {
        Ok(part) => part.map(|part| part.decision()),
        // Whoever should have told is gone with its runtime.
        Err(_) => Err(StoreError::new(FailureKind::Unavailable)),
    }
}

/// What one of those is told who travelled for a subject. The decision is made where it is waited for: it
/// is larger than this.
pub(in super::super) struct Part {
    answer: Arc<Answer>,
    policy: Policy,
    cost: Cost,
    call: u16,
    calls: u16,
}

impl Part {
    fn decision(&self) -> Decision {
        let Self { ref policy, cost, calls, .. } = *self;
        self.answer.decision(self.call, Asked { policy, mode: Mode::Check, cost, calls })
    }
}
