//! Leases: units that a node has taken ahead, to be spent without asking the server.
//!
//! * **The bound holds** for any number of nodes: what is spent has been charged before, in every window
//!   of the policy, and is spent before the first of those windows ends. A node that dies and a reply
//!   that is lost leave units unspent, and never spend any twice. `DESIGN.md` has the proof.
//! * **What is not spent comes back** when the lease ends: in the window that has ended nobody misses it,
//!   in the longer ones it is given back. Until then others may be denied what a node holds: at most one
//!   lease for each node.
//! * **Few are leased to who asks seldom**: a lease is twice as large as the one before, up to the
//!   setting, and never more than a quarter of what was left.
//! * Fixed windows that begin with the first request are leased. Others, and everything but checks, go
//!   to the server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indexmap::IndexMap;
use tokio::runtime::Handle;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use super::denials::Asking;
use super::reply::{Answer, Asked};
use super::watch::{Watch, lasts_until};
use super::who::{Who, WhoRef};
use super::{RedisStore, codec, reply};
use crate::model::{Mode, Origin};
use crate::store::{Charge, Refund, RefundOf, StoreError, StoreFuture};
use crate::time::Timestamp;
use crate::{Cost, Decision, Eventual, FailureKind, LimitSet, Policy};

/// Subjects that hold leases at most; others ask the server.
const MOST: usize = 16_384;

pub(super) struct Leases {
    held: Mutex<IndexMap<Who, Arc<Turn<Lease>>>>,
    /// Units of one lease at most.
    most: u64,
    patience: Duration,
    watch: Watch,
    runtime: Handle,
}

/// What is held of one subject.
#[derive(Default)]
struct Lease {
    terms: Option<Terms>,
    /// How many units were taken last.
    size: u64,
}

struct Terms {
    policy: Policy,
    /// Where the limits stood when they were charged.
    answer: Answer,
    charged: Timestamp,
    /// When the server's answer was there, and until when the lease may be spent.
    heard: u64,
    until: u64,
    left: u64,
}

impl Leases {
    pub(super) fn new(most: u64, patience: Duration, watch: Watch) -> Self {
        Self { held: Mutex::default(), most, patience, watch, runtime: Handle::current() }
    }

    fn lock(&self) -> MutexGuard<'_, IndexMap<Who, Arc<Turn<Lease>>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease of a subject; none, if there are too many.
    fn of(&self, who: WhoRef<'_>) -> Option<Arc<Turn<Lease>>> {
        let mut held = self.lock();
        if let Some(lease) = held.get(&who) {
            return Some(Arc::clone(lease));
        }
        (held.len() < MOST).then(|| Arc::clone(held.entry(who.to_owned()).or_default()))
    }

    /// Gives up what is held of a subject, and keeps others from spending and taking more for as long
    /// as the answer lives.
    pub(super) async fn give_up(&self, who: WhoRef<'_>) -> Option<impl Send + use<>> {
        let mut turn = self.of(who)?.lock_owned().await;
        turn.terms = None;
        Some(turn)
    }

    /// Forgets that somebody has a lease, if it is this one.
    fn forget(&self, who: WhoRef<'_>, lease: &Arc<Turn<Lease>>) {
        let mut held = self.lock();
        if held.get(&who).is_some_and(|known| Arc::ptr_eq(known, lease)) {
            held.swap_remove(&who);
        }
    }
}

impl Lease {
    /// Spends `cost` of what is held, if that is enough and it is not too late.
    fn spend(&mut self, policy: &Policy, cost: Cost, now: u64) -> Option<Decision> {
        let terms = self.terms.as_mut()?;
        if terms.policy != *policy || now >= terms.until || terms.left < cost.units() {
            return None;
        }
        terms.left -= cost.units();
        Some(terms.decision(cost, cost.units(), now))
    }
}

impl Terms {
    /// The decision on a call that was given `taken`: what is held is not used yet.
    fn decision(&self, cost: Cost, taken: u64, now: u64) -> Decision {
        let later = now.saturating_sub(self.heard);
        self.answer.with_unspent(&self.policy, cost, taken, self.left, later)
    }
}

impl RedisStore {
    /// Checks `cost` against what is held, and takes more ahead if that is not enough.
    pub(super) fn check_leased(
        &self,
        leases: &Leases,
        charge: Charge<'_>,
        asking: Option<Asking>,
    ) -> StoreFuture<Decision> {
        let Charge { namespace, subject, policy, cost, .. } = charge;
        let who = WhoRef { namespace, subject };
        let Some(lease) = leases.of(who) else { return self.ask_for(charge) };
        if let Ok(mut lease) = lease.try_lock()
            && let Some(decision) = lease.spend(policy, cost, leases.watch.now())
        {
            return Eventual::ready(Ok(decision));
        }
        let (this, who, policy) = (self.clone(), who.to_owned(), policy.clone());
        Eventual::later(async move {
            let Some(leases) = &this.inner.leases else { return Err(gone()) };
            let mut turn = lease.lock_owned().await;
            if let Some(decision) = turn.spend(&policy, cost, leases.watch.now()) {
                return Ok(decision);
            }
            // In a task of its own: whoever gives up waiting does not give up the units.
            let store = this.clone();
            let taken = async move {
                let lease = Arc::clone(OwnedMutexGuard::mutex(&turn));
                let taken = store.take_ahead(turn, who.clone(), &policy, cost, asking).await;
                if let (Err(_), Some(leases)) = (&taken, &store.inner.leases) {
                    leases.forget(who.as_ref(), &lease);
                }
                taken
            };
            leases.runtime.spawn(taken).await.unwrap_or_else(|_| Err(gone()))
        })
    }

    /// Takes units ahead, and decides on the first call that needs them.
    async fn take_ahead(
        &self,
        mut turn: OwnedMutexGuard<Lease>,
        who: Who,
        policy: &Policy,
        cost: Cost,
        asking: Option<Asking>,
    ) -> Result<Decision, StoreError> {
        let Some(leases) = &self.inner.leases else { return Err(gone()) };
        let before = turn.terms.take();
        let is_kept = |terms: &Terms| terms.policy == *policy && leases.watch.now() < terms.until;
        let (kept, ended) = match before {
            Some(terms) if is_kept(&terms) => (Some(terms), None),
            before => (None, before),
        };
        if let Some(ended) = ended {
            self.give_back(who.as_ref(), &ended).await;
        }
        let held = kept.as_ref().map_or(0, |terms| terms.left);
        let quarter = kept.as_ref().map_or(u64::MAX, |terms| terms.answer.least_left(policy) / 4);
        let size = (2 * turn.size.max(1)).min(leases.most).min(quarter.max(1));
        let missing = Cost::new(size.max(cost.units() - held.min(cost.units())));

        let sent = leases.watch.now();
        let (answer, decided) = match self.take(leases, &who, policy, missing).await {
            Ok(answered) => answered,
            Err(error) => {
                turn.terms = kept;
                return Err(error);
            }
        };
        let heard = leases.watch.now();
        let nearest = decided.limits().filter(|limit| limit.is_active());
        let nearest = nearest.map(|limit| limit.reset_after()).min().unwrap_or_default();
        let until = lasts_until(sent, u64::try_from(nearest.as_micros()).unwrap_or(u64::MAX));
        // What was kept is of the same windows if those have not ended by now.
        let (until, held) = match kept {
            Some(kept) if heard < kept.until => (until.min(kept.until), kept.left),
            Some(ended) => {
                self.give_back(who.as_ref(), &ended).await;
                (until, 0)
            }
            None => (until, 0),
        };
        let left = held + decided.granted();
        turn.size = decided.granted();
        let (policy, charged) = (policy.clone(), decided.at());
        let mut terms = Terms { policy, answer, charged, heard, until, left };
        let taken = if left >= cost.units() { cost.units() } else { 0 };
        terms.left -= taken;
        let decision = terms.decision(cost, taken, heard).from(Origin::Store);
        turn.terms = Some(terms);
        self.note_denial(who.as_ref(), &decision, asking);
        self.end_in_time(&turn, who, until.saturating_sub(heard));
        Ok(decision)
    }

    /// Takes up to `units` on the server.
    async fn take(
        &self,
        leases: &Leases,
        who: &Who,
        policy: &Policy,
        units: Cost,
    ) -> Result<(Answer, Decision), StoreError> {
        let Who { namespace, subject } = who;
        let (mode, cost) = (Mode::CheckUpTo, units);
        let command =
            self.inner.commands.decide(&Charge { namespace, subject, policy, mode, cost })?;
        let reply = tokio::time::timeout(leases.patience, self.send(command)).await;
        let reply = reply.unwrap_or_else(|_| Err(StoreError::new(FailureKind::TimedOut)))?;
        let asked = Asked { policy, mode, cost, calls: 1 };
        let answer = reply::read(&reply, 1, codec::shape_len(policy), asked)?.pop().flatten();
        let answer = answer.ok_or_else(reply::undecided)?;
        self.note_healed(answer.healed);
        let decided = answer.decision(0, asked);
        Ok((answer, decided))
    }

    /// Gives back what is not spent when the lease ends, if nobody has come for more by then.
    fn end_in_time(&self, turn: &OwnedMutexGuard<Lease>, who: Who, micros: u64) {
        let Some(leases) = &self.inner.leases else { return };
        let lease = Arc::downgrade(OwnedMutexGuard::mutex(turn));
        let store = Arc::downgrade(&self.inner);
        leases.runtime.spawn(async move {
            pause(Duration::from_micros(micros)).await;
            let (Some(lease), Some(inner)) = (lease.upgrade(), store.upgrade()) else { return };
            let store = Self { inner };
            let Some(leases) = &store.inner.leases else { return };
            let mut turn = lease.lock().await;
            // Another lease has been taken since, which ends by itself.
            let has_ended =
                turn.terms.as_ref().is_some_and(|terms| leases.watch.now() >= terms.until);
            if has_ended && let Some(ended) = turn.terms.take() {
                leases.forget(who.as_ref(), &lease);
                store.give_back(who.as_ref(), &ended).await;
            }
        });
    }

    /// Gives units back that were not spent. If that fails they stay charged.
    async fn give_back(&self, who: WhoRef<'_>, terms: &Terms) {
        let refund = Refund {
            namespace: who.namespace,
            subject: who.subject,
            policy: &terms.policy,
            charged: terms.charged,
            units: terms.left,
            of: RefundOf::All,
            uncharged: LimitSet::EMPTY,
        };
        if terms.left > 0
            && let Some(leases) = &self.inner.leases
            && let Ok(command) = self.inner.commands.refund(&refund)
        {
            let _ = tokio::time::timeout(leases.patience, self.send(command)).await;
            if let Some(denials) = &self.inner.denials {
                denials.forget(who);
            }
        }
    }
}

/// The runtime that the store lives in has ended.
fn gone() -> StoreError {
    StoreError::new(FailureKind::Unavailable)
}

/// The end of a lease is a time, not an event.
#[expect(clippy::disallowed_methods, reason = "a lease ends at a time")]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}
