//! How those are told who travelled for one subject.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::batch::{Caller, Costs, Run};
use crate::decision::Decision;
use crate::model::Mode;
use crate::model::StoreError;
use crate::model::{Cost, FailureKind};
use crate::policy::Policy;
use crate::store::redis::RedisStore;
use crate::store::redis::encoding::reply::{Answer, Asked};
use crate::store::redis::subject_key::Who;

/// So many are not told at once.
const MANY: usize = 16;

/// Callers of one subject that are told, in the order in which they came.
pub(crate) struct Telling<'a> {
    store: &'a RedisStore,
    who: Who,
    callers: std::vec::IntoIter<Caller>,
    answer: Arc<Answer>,
    costs: Costs,
    /// How many calls have been told.
    told: u16,
    is_noted: bool,
}

impl<'a> Telling<'a> {
    pub(crate) fn new(store: &'a RedisStore, run: Run, answer: Answer, costs: Costs) -> Self {
        store.note_healed(answer.healed);
        let Run { who, callers } = run;
        let (callers, answer) = (callers.into_iter(), Arc::new(answer));
        Self { store, who, callers, answer, costs, told: 0, is_noted: false }
    }

    /// Whether the server would wait for long if all were told at once.
    pub(crate) fn are_many(&self) -> bool {
        self.callers.len() >= MANY
    }

    /// Tells the first quarter. The fewer, the more are told while these are on their way; with nobody, calls
    /// of a few and of all others would take turns for ever.
    pub(crate) fn tell_some(&mut self) {
        self.tell(self.callers.len() / 4);
    }

    /// Tells all that are left.
    pub(crate) fn tell_all(mut self) {
        self.tell(usize::MAX);
    }

    fn tell(&mut self, most: usize) {
        let Self { store, who, callers, answer, costs, told, is_noted } = self;
        for Caller { policy, question, asking, tell } in callers.take(most) {
            *told += question.calls();
            let (cost, call) = (question.cost(), *told - 1);
            let part = Part { answer: Arc::clone(answer), policy, cost, call };
            // All of one cost that are denied are denied alike.
            let is_new = *costs == Costs::Mixed || !*is_noted;
            let is_denied = !answer.passes(call);
            let is_noted_later = asking.is_some_and(|asking| is_denied || asking.is_known);
            if is_noted_later && is_new {
                store.note_denial(who.as_ref(), &part.decision(), asking);
                *is_noted |= is_denied;
            }
            // Who has given up stays charged: whether it was in time, nobody can tell.
            let _ = tell.send(Ok(part));
        }
    }
}

/// Where the answer comes.
pub(crate) type Told = oneshot::Receiver<Result<Part, StoreError>>;

/// Waits to be told. Small: it is made for each call.
pub(crate) async fn wait(told: Told) -> Result<Decision, StoreError> {
    wait_for_part(told).await.map(|part| part.decision())
}

pub(crate) async fn wait_for_part(told: Told) -> Result<Part, StoreError> {
    // Whoever should have told is gone with its runtime.
    told.await.unwrap_or_else(|_| Err(StoreError::new(FailureKind::Unavailable)))
}

/// What one of those is told who travelled for a subject. The decision is made where it is waited for: it
/// is larger than this.
pub(crate) struct Part {
    answer: Arc<Answer>,
    policy: Policy,
    cost: Cost,
    call: u16,
}

impl Part {
    /// All that was answered of the subject.
    pub(crate) fn into_answer(self) -> Answer {
        Arc::unwrap_or_clone(self.answer)
    }

    pub(crate) fn decision(&self) -> Decision {
        let Self { ref policy, cost, call, .. } = *self;
        self.answer.decision(call, Asked { policy, mode: Mode::Check, cost })
    }
}
