//! Leases: units that a node has taken ahead, to be spent without asking the server.
//!
//! * **The bound holds** for any number of nodes: what is spent has been charged before, in every window
//!   of the policy, and is spent before the first of those windows ends. A node that dies and a reply
//!   that is lost leave units unspent, and never spend any twice. `DESIGN.md` has the proof.
//! * **What is not spent comes back** when the lease ends: in the window that has ended nobody misses it,
//!   in the longer ones it is given back. Until then others may be denied what a node holds: at most one
//!   lease for each node.
//! * **Leases of many subjects are taken in one call**, if they are of one size under one policy.
//! * **Few are leased to who asks seldom**: a lease is twice as large as the one before, up to the
//!   setting, and never more than a quarter of what was left.
//! * Fixed windows that begin with the first request are leased. Others, and everything but checks, go
//!   to the server.

mod held;
mod place;

use std::sync::{Arc, Weak};
use std::time::Duration;

use held::{Terms, open};
pub(super) use place::Holder;
use place::{Ending, Table};
use tokio::runtime::Handle;

use super::answer::{Answer, Asked};
use super::combine::{self, Joined, Question};
use super::denials::Asking;
use super::watch::lasts_until;
use super::who::{Who, WhoRef};
use super::{Inner, RedisStore, reply};
use crate::model::Mode;
use crate::store::{Refund, RefundOf, StoreError, StoreFuture};
use crate::{Cost, Decision, Eventual, FailureKind, LimitSet, Policy};

/// The largest lease: what the number of calls in one script call can say.
const MOST_UNITS: u16 = u16::MAX - 1;

/// Subjects that hold leases at most; others ask the server.
const MOST: usize = 16_384;

pub(super) struct Leases {
    table: Arc<Table>,
    /// Units of one lease at most.
    most: u64,
    patience: Duration,
    runtime: Handle,
}

impl Leases {
    pub(super) fn new(most: u64, patience: Duration) -> Self {
        let most = most.min(MOST_UNITS.into());
        Self { table: Arc::default(), most, patience, runtime: Handle::current() }
    }

    /// Spends `cost` of what is held of a subject, if that is enough.
    #[inline(always)]
    pub(super) fn spend(
        &self,
        who: WhoRef<'_>,
        policy: &Policy,
        cost: Cost,
        now: u64,
    ) -> Option<Decision> {
        self.table.lock().get_mut(&who)?.spend(policy, cost, now)
    }

    /// Gives up what is held of a subject, and keeps others from spending and taking more for as long
    /// as the answer lives. For that there is always room.
    pub(super) async fn give_up(&self, who: Who) -> Option<Holder> {
        let holder = self.table.enter(who, usize::MAX)?.turn().await;
        holder.place.with_lease(|lease| lease.terms = None);
        Some(holder)
    }
}

impl RedisStore {
    /// Checks `cost`, which is more than what is held, and takes more ahead.
    pub(super) fn check_leased(
        &self,
        leases: &Leases,
        who: WhoRef<'_>,
        policy: &Policy,
        cost: Cost,
        asking: Option<Asking>,
    ) -> StoreFuture<Decision> {
        if cost.units() > leases.most && leases.table.lock().get(&who).is_none() {
            return self.check(who, policy, cost, asking);
        }
        let (this, who, policy) = (self.clone(), who.to_owned(), policy.clone());
        Eventual::later(async move { this.wait_for_turn(who, policy, cost, asking).await })
    }

    async fn wait_for_turn(
        self,
        who: Who,
        policy: Policy,
        cost: Cost,
        mut asking: Option<Asking>,
    ) -> Result<Decision, StoreError> {
        let Some(leases) = &self.inner.leases else { return Err(gone()) };
        let Some(place) = leases.table.enter(who.clone(), MOST) else {
            return self.check(who.as_ref(), &policy, cost, asking).await;
        };
        let holder = place.turn().await;
        let now = self.inner.watch.now();
        if let Some(decision) = holder.place.with_lease(|lease| lease.spend(&policy, cost, now)) {
            return Ok(decision);
        }
        // Those before may have learned that this one is denied.
        if let Some(denials) = &self.inner.denials {
            match denials.find(who.as_ref(), &policy, cost, self.inner.watch.now()) {
                Ok(denial) => return Ok(denial),
                Err(again) => asking = Some(again),
            }
        }
        let now = self.inner.watch.now();
        if holder.place.with_lease(|lease| lease.is_last(&policy, now)) {
            drop(holder);
            return self.check(who.as_ref(), &policy, cost, asking).await;
        }
        // In a task of its own: whoever gives up waiting does not give up the units.
        let store = self.clone();
        if cost.units() > leases.most {
            let emptied = async move { store.empty(&holder).await };
            leases.runtime.spawn(emptied).await.map_err(|_| gone())?;
            return self.check(who.as_ref(), &policy, cost, asking).await;
        }
        // Boxed: it is large, and a task is moved more than once until it begins.
        let taken = Box::pin(async move { store.take_ahead(holder, &policy, cost, asking).await });
        leases.runtime.spawn(taken).await.unwrap_or_else(|_| Err(gone()))
    }

    /// Takes units ahead, and decides on the first call that needs them.
    async fn take_ahead(
        &self,
        mut holder: Holder,
        policy: &Policy,
        cost: Cost,
        asking: Option<Asking>,
    ) -> Result<Decision, StoreError> {
        let Some(leases) = &self.inner.leases else { return Err(gone()) };
        // If what was held has ended under way, or others have spent it, it takes a second time, and counts
        // on nothing.
        let mut decision = self.take_more(leases, &mut holder, policy, cost, true).await?;
        if decision.is_none() {
            decision = self.take_more(leases, &mut holder, policy, cost, false).await?;
        }
        let decision = decision.ok_or_else(gone)?;
        self.note_denial(holder.place.who.as_ref(), &decision, asking);
        Ok(decision)
    }

    /// Takes what is missing for `cost`, and more, and decides on it. Returns nothing if that is too little
    /// now, and the server has more.
    async fn take_more(
        &self,
        leases: &Leases,
        holder: &mut Holder,
        policy: &Policy,
        cost: Cost,
        counts_held: bool,
    ) -> Result<Option<Decision>, StoreError> {
        let now = self.inner.watch.now();
        if holder.place.with_lease(|lease| open(&mut lease.terms, policy, now).is_none()) {
            self.empty(holder).await;
        }
        let (held, quarter) = holder.place.with_lease(|lease| match &lease.terms {
            Some(terms) => {
                let held = if counts_held { terms.left } else { 0 };
                (held, terms.answer.least_left(policy) / 4)
            }
            None => (0, u64::MAX),
        });
        let size = (2 * holder.taking.size.max(1)).min(leases.most).min(quarter.max(1));
        let missing = size.max(cost.units().saturating_sub(held));
        // Leases are no larger.
        let missing = u16::try_from(missing).unwrap_or(MOST_UNITS).min(MOST_UNITS);

        let sent = self.inner.watch.now();
        let (answer, decided) = self.take(leases, &holder.place.who, policy, missing).await?;
        let taken = u64::from(answer.passing());
        let heard = self.inner.watch.now();
        let nearest = decided.limits().filter(|limit| limit.is_active());
        let nearest = nearest.map(|limit| limit.reset_after()).min().unwrap_or_default();
        let until = lasts_until(sent, u64::try_from(nearest.as_micros()).unwrap_or(u64::MAX));
        let is_last = taken < missing.into();
        let (policy, charged) = (policy.clone(), decided.at());
        let taken = Terms { policy, answer, charged, heard, until, left: taken, is_last };
        holder.taking.size = taken.left;
        let (decision, over) = holder.place.with_lease(|lease| lease.add(taken, cost));
        if let Some(over) = over {
            self.give_back(holder.place.who.as_ref(), &over).await;
        }
        self.end_in_time(leases, holder);
        Ok(decision)
    }

    /// Takes up to `units` on the server: as many checks of one unit, the first of which pass. Returns how
    /// many do as well, and the decision on the last.
    async fn take(
        &self,
        leases: &Leases,
        who: &Who,
        policy: &Policy,
        units: u16,
    ) -> Result<(Answer, Decision), StoreError> {
        let (mode, cost) = (Mode::Check, Cost::ONE);
        // In a call with others, if anybody is under way.
        let _lone = match &self.inner.combiner {
            Some(combiner) => {
                match self.join(combiner, who.as_ref(), policy, Question::Lease(units), None) {
                    Joined::Waiting(told) => {
                        let part = combine::wait_for_part(told).await?;
                        let last = part.decision();
                        return Ok((part.into_answer(), last));
                    }
                    Joined::Alone(lone) => Some(lone),
                }
            }
            None => None,
        };
        let command = self.inner.commands.check(&[who.as_ref()], policy, cost, units)?;
        let reply = tokio::time::timeout(leases.patience, self.send(command)).await;
        let reply = reply.unwrap_or_else(|_| Err(StoreError::new(FailureKind::TimedOut)))?;
        let asked = Asked { policy, mode, cost };
        let answer = reply::read_one(&reply, units, asked)?;
        self.note_healed(answer.healed);
        let last = answer.decision(units - 1, asked);
        Ok((answer, last))
    }

    /// Sees to it that what is not spent is given back when the lease ends.
    fn end_in_time(&self, leases: &Leases, holder: &mut Holder) {
        let Some(until) = holder.until() else { return };
        if holder.taking.ending.as_ref().is_none_or(|ending| ending.wakes > until) {
            let (inner, who) = (Arc::downgrade(&self.inner), holder.place.who.clone());
            let micros = until.saturating_sub(self.inner.watch.now());
            let task = leases.runtime.spawn(end(inner, who, micros));
            holder.taking.ending = Some(Ending { wakes: until, task: task.abort_handle() });
        }
    }

    /// Gives back what is held.
    async fn empty(&self, holder: &Holder) {
        let terms = holder.place.with_lease(|lease| lease.terms.take());
        if let Some(terms) = terms {
            self.give_back(holder.place.who.as_ref(), &terms).await;
        }
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

/// Gives back what is not spent of a lease that ends in so many microseconds, or later if more has been
/// taken by then.
async fn end(inner: Weak<Inner>, who: Who, mut micros: u64) {
    loop {
        pause(Duration::from_micros(micros)).await;
        let Some(inner) = inner.upgrade() else { return };
        let store = RedisStore { inner };
        let place = store.inner.leases.as_ref().and_then(|leases| leases.table.find(who.clone()));
        let Some(place) = place else { return };
        let mut holder = place.turn().await;
        let now = store.inner.watch.now();
        match (holder.until(), &mut holder.taking.ending) {
            (Some(until), Some(ending)) if now < until => {
                (micros, ending.wakes) = (until - now, until);
            }
            _ => {
                store.empty(&holder).await;
                // Stops this task, which has nothing left to do.
                holder.taking.ending = None;
                return;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::fingerprint::Fingerprinter;
    use crate::store::{Charge, Namespace, Reset, Store};
    use crate::{Limit, Subject};

    #[tokio::test]
    async fn all_who_wait_meet_in_the_same_place_and_the_last_forgets_it() {
        let leases = Leases::new(4, Duration::from_secs(1));
        let fingerprinter = Fingerprinter::random();
        let who = |name: &str| {
            let (namespace, subject) = (Namespace::default(), Subject::user(name));
            let fingerprint = fingerprinter.fingerprint(&namespace, &subject);
            Who { namespace, subject, fingerprint }
        };
        let enter = |name, most| leases.table.enter(who(name), most);
        let first = enter("alice", 1).unwrap().turn().await;
        let waiting = enter("alice", 1).unwrap();
        assert!(enter("bob", 1).is_none(), "there is no room");
        drop(first);
        let known = |who: WhoRef<'_>| leases.table.lock().get(&who).map(|lease| lease.places);
        assert_eq!(known(waiting.who.as_ref()), Some(1), "somebody waits");
        // Who gives up waiting leaves nothing behind.
        let turn = waiting.turn().await;
        let gives_up = tokio::spawn(enter("alice", 1).unwrap().turn());
        tokio::task::yield_now().await;
        drop(turn);
        gives_up.abort();
        drop(gives_up.await);
        assert_eq!(leases.table.lock().len(), 0);
        drop(leases.give_up(who("bob")).await);
        assert_eq!(leases.table.lock().len(), 0, "nothing was held");
    }

    #[tokio::test]
    async fn subjects_of_which_nothing_is_held_take_no_place() {
        // Nobody listens there.
        let patience = Duration::from_millis(1);
        let store = RedisStore::builder("redis://127.0.0.1:1/").lease(4).connection_wait(patience);
        let store = store.connect().await.unwrap();
        let policy = Policy::new([Limit::per_hour(10)]).unwrap();
        let (namespace, policy) = (&Namespace::default(), &policy);
        for n in 0..20 {
            let subject = &Subject::user(&n.to_string());
            let cost = Cost::new(1 + n % 6);
            let mode = Mode::Check;
            store.decide(Charge { namespace, subject, policy, mode, cost }).await.unwrap_err();
            store.reset(Reset { namespace, subject, policy, limit: None }).await.unwrap_err();
        }
        assert_eq!(store.inner.leases.as_ref().unwrap().table.lock().len(), 0);
    }
}
