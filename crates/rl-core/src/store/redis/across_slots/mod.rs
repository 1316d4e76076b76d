//! Requests whose parts are in several slots of a cluster.
//!
//! A script uses the keys of one slot, so such a request takes a call for each slot. A call charges
//! all parts in its slot, or none of them. If the request is denied after some slots were charged,
//! these charges are given back.
//!
//! ```text
//! scarcest slot ── denies ──────────────────────────► peek at the others ──► denied
//!      │ charges
//!      ▼
//! other slots  ─── one denies ──► give back ────────► peek at the others ──► denied
//!   at once   └─── one fails  ──► give back ───────────────────────────────► error
//!      │ all charge
//!      ▼
//!   allowed
//! ```
//!
//! * **Never above a limit**: a part is charged only by its own script, which checks the limits. A
//!   charge is given back once, by its exact units and time.
//! * **A cancelled request** is charged for all of its parts or for none. Its calls run in a task
//!   of their own, which completes the charges or gives them back.
//! * **A slot that fails** after the request is denied does not change the denial.
//!
//! `DESIGN.md` states the bounds, and proves them.

mod last_seen;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use last_seen::{LastSeen, Slot, Stage, Stages};
use smallvec::smallvec;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::batching::Batcher;
use super::executor::ScriptExecutor;
use super::give_back::GiveBack;
use super::layer::{Amendment, Layer, Request, RequestPart, runtime_has_ended};
use super::shortcuts::{DenialCache, Leases};
use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::{Cost, FailureKind, Mode, StoreError};
use crate::policy::LimitSet;
use crate::store::part_groups::GroupDecisions;
use crate::store::{Refund, RefundOf, StoreFuture};
use crate::time::Timestamp;

/// Decides requests whose parts are in several slots. `C` runs the call to one slot.
pub(super) struct AcrossSlots<C> {
    shared: Arc<Shared<C>>,
}

struct Shared<C> {
    calls: C,
    last_seen: LastSeen,
    give_back: GiveBack,
    /// The longest time that a denied request waits for the status of the parts that do not deny
    /// it.
    status_wait: Duration,
    runtime: Handle,
}

impl<C: SlotCalls> AcrossSlots<C> {
    /// Creates the state that all requests share. Their tasks run in the current runtime.
    pub(super) fn new(calls: C, give_back: GiveBack, status_wait: Duration) -> Self {
        let (runtime, last_seen) = (Handle::current(), LastSeen::new());
        let shared = Shared { calls, last_seen, give_back, status_wait, runtime };
        Self { shared: Arc::new(shared) }
    }

    /// Decides a request. Each slot lists the indices of its parts, and each part is in exactly one
    /// slot.
    pub(super) fn decide(
        &self,
        request: Arc<Request>,
        slots: Vec<Slot>,
    ) -> StoreFuture<GroupDecisions> {
        let shared = Arc::clone(&self.shared);
        let request = Arc::new(SlotRequest { shared, request, slots });
        MaybeReady::later(async move {
            let (reply, received) = oneshot::channel();
            let Shared { runtime, give_back, .. } = &*request.shared;
            let (runtime, task) = (runtime.clone(), give_back.begin_task());
            runtime.spawn(async move {
                request.run(reply).await;
                drop(task);
            });
            received.await.unwrap_or_else(|_| Err(runtime_has_ended()))
        })
    }
}

/// Returns the slots with keys of the request, and the indices of the parts in each of them.
pub(super) fn slots_of(
    executor: &ScriptExecutor,
    request: &Request,
) -> Result<Vec<Slot>, StoreError> {
    let mut slots: Vec<(u16, Slot)> = Vec::new();
    for (index, part) in request.parts.iter().enumerate() {
        let number = executor.slot_of(part)?;
        match slots.iter_mut().find(|(known, _)| *known == number) {
            Some((_, slot)) => slot.push(index),
            None => slots.push((number, smallvec![index])),
        }
    }
    Ok(slots.into_iter().map(|(_, slot)| slot).collect())
}

type Reply = oneshot::Sender<Result<GroupDecisions, StoreError>>;

/// A request, owned by the tasks that decide it.
struct SlotRequest<C> {
    shared: Arc<Shared<C>>,
    request: Arc<Request>,
    slots: Vec<Slot>,
}

/// The decisions so far. A part has none before its slot was called, or if the call failed.
type Decided = Vec<Option<Decision>>;

impl<C: SlotCalls> SlotRequest<C> {
    fn parts(&self) -> &[RequestPart] {
        &self.request.parts
    }

    /// Decides the request, and sends the decisions to the caller.
    async fn run(self: Arc<Self>, reply: Reply) {
        let decided = match self.request.mode {
            Mode::Check | Mode::CheckUpTo => self.reserve(&reply).await,
            Mode::Peek | Mode::Charge => self.call_all().await,
        };
        // An error means that the request was cancelled after the last call. It stays charged, like
        // a request whose parts are all in one slot.
        let _ = reply.send(decided.map(|decided| self.finish(decided)));
    }

    /// Calls all slots at once. A peek charges nothing, and a charge without a check is never
    /// denied, so no denial leaves a charge to give back.
    async fn call_all(&self) -> Result<Decided, StoreError> {
        let mut decided = vec![None; self.parts().len()];
        let all: Vec<usize> = (0..self.slots.len()).collect();
        self.call(&all, &mut decided).await.map(|()| decided)
    }

    /// Charges all slots, in one or two stages, or none.
    async fn reserve(&self, caller: &Reply) -> Result<Decided, StoreError> {
        let mut decided = vec![None; self.parts().len()];
        for stage in self.stages() {
            if caller.is_closed() {
                self.give_back_all(&decided);
                return Err(late());
            }
            let called = self.call(&stage, &mut decided).await;
            if self.slots.iter().any(|slot| self.denies(slot, &decided)) {
                return Ok(self.deny(decided).await);
            }
            if let Err(error) = called {
                self.give_back_all(&decided);
                return Err(error);
            }
        }
        Ok(self.reduce_to_common_units(decided).await)
    }

    /// Returns the stages in which the slots are called.
    ///
    /// Limits and parts in shadow are charged the number of units that the enforced ones grant, or
    /// nothing. So a [`Mode::CheckUpTo`] calls the slots with limits or parts in shadow once that
    /// number is known: after the others, one after the other, and last those that have nothing
    /// else.
    fn stages(&self) -> Stages {
        let stages = self.shared.last_seen.stages(self.parts(), &self.slots);
        let parts = |slot: &usize| self.slots[*slot].iter().map(|&index| &self.parts()[index]);
        let has_shadow =
            |slot: &usize| parts(slot).any(|part| part.is_shadow || part.policy.has_shadow());
        let is_enforced = |slot: &usize| parts(slot).any(|part| !part.is_shadow);
        let all = stages.iter().flatten().copied();
        let (last, others): (Stage, Stage) = all.filter(has_shadow).partition(|s| !is_enforced(s));
        if self.request.mode != Mode::CheckUpTo || last.is_empty() && others.is_empty() {
            return stages;
        }
        let plain = stages
            .iter()
            .map(|stage| stage.iter().copied().filter(|slot| !has_shadow(slot)).collect::<Stage>());
        let others = others.into_iter().map(|slot| Stage::from_iter([slot]));
        plain.chain(others).chain([last]).filter(|stage| !stage.is_empty()).collect()
    }

    /// Calls the slots at these positions at once, and adds their decisions. Waits for all of them.
    /// Returns the first error.
    async fn call(&self, slots: &[usize], decided: &mut Decided) -> Result<(), StoreError> {
        let common = self.common_units(decided);
        let call = |slot: &usize| {
            let costs = |part: &RequestPart| part.cost.units().min(common);
            self.call_slot(&self.slots[*slot], self.request.mode, costs)
        };
        let mut result = Ok(());
        let replies = join_all(slots.iter().map(call).collect()).await;
        for (slot, reply) in slots.iter().zip(replies) {
            match reply {
                Ok(decisions) => self.add(&self.slots[*slot], decisions, decided),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    fn call_slot(
        &self,
        slot: &Slot,
        mode: Mode,
        cost: impl Fn(&RequestPart) -> u64,
    ) -> StoreFuture<GroupDecisions> {
        let parts = slot.iter().map(|&index| &self.parts()[index]);
        let parts = parts.map(|part| part.with_cost(Cost::new(cost(part))));
        self.shared.calls.decide(self.request.of_parts(parts, mode))
    }

    /// Adds the decisions on the groups of a slot.
    fn add(&self, slot: &Slot, decisions: GroupDecisions, decided: &mut Decided) {
        for (&index, decision) in slot.iter().zip(decisions) {
            self.shared.last_seen.record(self.parts()[index].subject.key, &decision);
            decided[index] = Some(decision);
        }
    }

    /// Returns whether an enforced group of the slot denies the request.
    fn denies(&self, slot: &Slot, decided: &Decided) -> bool {
        slot.iter().any(|&index| {
            let is_denied = decided[index].as_ref().is_some_and(|decision| !decision.is_allowed());
            is_denied && !self.parts()[index].is_shadow
        })
    }

    /// Returns the number of units to which a `CheckUpTo` must reduce every charge: the smallest
    /// charge of an enforced group so far that is below its cost. Returns `u64::MAX` if there is
    /// none.
    fn common_units(&self, decided: &Decided) -> u64 {
        let enforced = self.parts().iter().zip(decided).filter(|(part, _)| !part.is_shadow);
        let charged = enforced.filter_map(|(part, decision)| {
            let charged = decision.as_ref()?.charged();
            (self.request.mode == Mode::CheckUpTo && charged < part.cost.units()).then_some(charged)
        });
        charged.min().unwrap_or(u64::MAX)
    }

    /// Denies the request. Gives back the charges of the slots that do not deny it. Replaces their
    /// decisions by their present status, or drops them if the status does not arrive in time.
    async fn deny(&self, mut decided: Decided) -> Decided {
        let others: Vec<usize> = (0..self.slots.len())
            .filter(|slot| !self.denies(&self.slots[*slot], &decided))
            .collect();
        let status = |slot: &usize| {
            let given_back = self.give_back(&[*slot], &decided, 0);
            let required = |part: &RequestPart| self.request.mode.required(part.cost);
            let peek = self.call_slot(&self.slots[*slot], Mode::Peek, required);
            self.status_after(given_back, peek)
        };
        let statuses = join_all(others.iter().map(status).collect()).await;
        for (slot, status) in others.iter().zip(statuses) {
            let slot = &self.slots[*slot];
            slot.iter().for_each(|&index| decided[index] = None);
            if let Ok(decisions) = status {
                self.add(slot, decisions, &mut decided);
            }
        }
        decided
    }

    /// Completes a [`Mode::CheckUpTo`]: reduces each charge to the number of units that all groups
    /// grant.
    async fn reduce_to_common_units(&self, mut decided: Decided) -> Decided {
        let common = self.common_units(&decided);
        let has_excess = |slot: &usize| {
            let mut charged = self.slots[*slot].iter().filter_map(|&index| decided[index].as_ref());
            charged.any(|decision| decision.charged() > common)
        };
        let reduced: Vec<usize> = (0..self.slots.len()).filter(has_excess).collect();
        if reduced.is_empty() {
            return decided;
        }
        let status = |slot: &usize| {
            let given_back = self.give_back(&[*slot], &decided, common);
            // These limits have granted the request, but may have no units left. A peek with a cost
            // of 0 still reports that they grant it.
            let peek = self.call_slot(&self.slots[*slot], Mode::Peek, |_| 0);
            self.status_after(given_back, peek)
        };
        let statuses = join_all(reduced.iter().map(status).collect()).await;
        for (slot, status) in reduced.iter().zip(statuses) {
            let slot = &self.slots[*slot];
            let mut statuses = status.unwrap_or_default().into_iter();
            for &index in slot {
                let Some(charge) = &decided[index] else { continue };
                let (units, at) = (charge.charged().min(common), charge.at());
                // A refund identifies the charge by its time, so the new status must have the same
                // time.
                let status = statuses.next();
                // A peek does not show that a limit in shadow was not charged.
                let status = status.filter(|_| charge.uncharged() == LimitSet::default());
                let mut reduced = status.unwrap_or_else(|| charge.clone());
                reduced.finish(units, at, charge.is_allowed());
                decided[index] = Some(reduced);
            }
        }
        decided
    }

    /// Waits for the status of a slot, for at most the status wait. The slot is read after its
    /// charges were given back.
    fn status_after(
        &self,
        given_back: impl Future<Output = ()> + Send + 'static,
        peek: StoreFuture<GroupDecisions>,
    ) -> StoreFuture<GroupDecisions> {
        let status_wait = self.shared.status_wait;
        MaybeReady::later(async move {
            let status = async {
                given_back.await;
                peek.await
            };
            timeout(status_wait, status).await.unwrap_or_else(|_| Err(late()))
        })
    }

    /// Starts to give back all charges, without waiting.
    fn give_back_all(&self, decided: &Decided) {
        let all: Vec<usize> = (0..self.slots.len()).collect();
        drop(self.give_back(&all, decided, 0));
    }

    /// Starts to give back the charges of these slots, except `kept` units of each group. The
    /// returned future completes after one attempt to refund each charge.
    fn give_back(
        &self,
        slots: &[usize],
        decided: &Decided,
        kept: u64,
    ) -> impl Future<Output = ()> + Send + 'static + use<C> {
        let parts = slots.iter().flat_map(|slot| &self.slots[*slot]);
        let refunds = parts
            .filter_map(|&index| refund_of(&self.parts()[index], decided[index].as_ref()?, kept));
        let run = |refund: Amendment| {
            let calls = self.shared.calls.clone();
            self.shared.give_back.run(move || calls.amend(refund.clone()))
        };
        let refunded = join_all(refunds.map(run).collect());
        async move { drop(refunded.await) }
    }

    /// Returns the decisions on all groups. A group whose status is not known has no limits.
    fn finish(&self, decided: Decided) -> GroupDecisions {
        let at = decided.iter().flatten().next().map_or(Timestamp::EPOCH, Decision::at);
        let parts = self.parts().iter().zip(decided);
        let decisions = parts.map(|(part, decision)| match decision {
            Some(decision) => {
                let charged = decision.charged();
                decision.with_units(part.cost, charged)
            }
            None => part.unknown_status(at),
        });
        decisions.collect()
    }
}

/// Returns the refund of the units that a part was charged beyond `kept`; `None` if there are none.
fn refund_of(part: &RequestPart, decision: &Decision, kept: u64) -> Option<Amendment> {
    let units = decision.charged().saturating_sub(kept);
    let refund = Refund {
        namespace: &part.subject.namespace,
        subject: &part.subject.subject,
        policy: &part.policy,
        charged: decision.at(),
        units,
        of: RefundOf::All,
        uncharged: decision.non_refundable(units),
    };
    (!refund.is_empty()).then(|| Amendment::refund(part.subject.clone(), &refund))
}

const fn late() -> StoreError {
    StoreError::new(FailureKind::TimedOut)
}

/// Runs the calls to one slot. Clones share their state. A call is sent when its future is polled,
/// except a check, which may join a batch earlier.
pub(super) trait SlotCalls: Clone + Send + Sync + 'static {
    /// Decides a request whose parts are all in one slot, in one step.
    fn decide(&self, request: Arc<Request>) -> StoreFuture<GroupDecisions>;

    /// Changes the counts of one subject.
    fn amend(&self, amendment: Amendment) -> StoreFuture<Vec<u8>>;
}

/// Calls slots through the layers of the store: with leased units, by cached denials, or in script
/// calls, which they may share with other requests.
#[derive(Clone)]
pub(super) struct LayerCalls {
    layers: Leases<DenialCache<Batcher<ScriptExecutor>>>,
    /// The longest time that a decision may take. The calls outlive the deadline of the request, so
    /// they need a bound of their own.
    response_timeout: Duration,
}

impl LayerCalls {
    /// Creates the calls of a store with these layers.
    pub(super) fn new(
        layers: &Leases<DenialCache<Batcher<ScriptExecutor>>>,
        response_timeout: Duration,
    ) -> Self {
        Self { layers: layers.clone(), response_timeout }
    }
}

/// Waits for the result of a call, for at most `bound`.
fn within<T: Send + 'static>(bound: Duration, result: StoreFuture<T>) -> StoreFuture<T> {
    match result {
        MaybeReady::Ready(_) => result,
        MaybeReady::Boxed(pending) => MaybeReady::later(async move {
            let result = timeout(bound, pending).await;
            result.unwrap_or_else(|_| Err(StoreError::new(FailureKind::TimedOut)))
        }),
    }
}

impl SlotCalls for LayerCalls {
    fn decide(&self, request: Arc<Request>) -> StoreFuture<GroupDecisions> {
        within(self.response_timeout, self.layers.decide(request))
    }

    fn amend(&self, amendment: Amendment) -> StoreFuture<Vec<u8>> {
        self.layers.amend(smallvec![amendment])
    }
}

/// Waits for all results. They are awaited at the same time.
async fn join_all<T: Send + 'static>(
    mut pending: Vec<StoreFuture<T>>,
) -> Vec<Result<T, StoreError>> {
    let mut results: Vec<_> = pending.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut are_ready = true;
        for (pending, result) in pending.iter_mut().zip(&mut results) {
            if result.is_none() {
                match Pin::new(pending).poll(cx) {
                    Poll::Ready(ready) => *result = Some(ready),
                    Poll::Pending => are_ready = false,
                }
            }
        }
        if are_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}
