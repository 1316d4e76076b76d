//! Leases: units that a node has taken ahead, to be spent without asking the server.
//!
//! * **The bound holds** for any number of nodes: what is spent has been charged before, in every window
//!   of the policy, and is spent before the first of those windows ends. A node that dies and a reply
//!   that is lost leave units unspent, and never spend any twice. `DESIGN.md` has the proof, and what a
//!   clock that jumps may add: one lease for each node.
//! * **Units that are not spent go back**: when the first window ends, after an idle time, at the end of
//!   the lease's life, and when the store is closed. Until then other nodes may be denied what a node
//!   holds: at most one lease for each node.
//! * **A denied request charges nothing**: the script takes units only if they are enough for the request.
//! * **Leases of many subjects are taken in one call**, if they are of one size under one policy.
//! * **A lease starts small**: it is twice as large as the one before, up to the setting, and never more
//!   than a quarter of what the server had left.
//! * Fixed windows that begin with the first request are leased. Other limits, and everything but
//!   checks, go to the server.

mod returning;
mod slot;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slot::{Returned, Terms, open};
pub(crate) use table::Holder;
use table::Table;
use tokio::runtime::Handle;

use crate::decision::Decision;
use crate::maybe_ready::MaybeReady;
use crate::model::Mode;
use crate::model::StoreError;
use crate::model::{Cost, FailureKind};
use crate::policy::Policy;
use crate::store::StoreFuture;
use crate::store::redis::RedisStore;
use crate::store::redis::batching::{self, Joined, Question};
use crate::store::redis::encoding::reply::{Answer, Asked};
use crate::store::redis::encoding::reply_reader;
use crate::store::redis::shortcuts::denial_cache::Asking;
use crate::store::redis::shortcuts::monotonic::lasts_until;
use crate::store::redis::subject_key::{Who, WhoRef};

/// The largest lease: what the number of calls in one script call can say.
const MOST_UNITS: u16 = u16::MAX - 1;

/// The most subjects that hold leases.
const MOST: usize = 16_384;

/// The settings of leases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseSettings {
    /// The most units of one lease.
    pub(crate) units: u64,
    /// The time without a spent unit after which the units go back.
    pub(crate) idle: Duration,
    /// The longest that a lease lasts.
    pub(crate) lifetime: Duration,
}

pub(crate) struct Leases {
    table: Arc<Table>,
    /// The units of one lease at most.
    most: u64,
    /// The idle time and the lifetime, in µs.
    idle: u64,
    lifetime: u64,
    patience: Duration,
    is_closed: AtomicBool,
    runtime: Handle,
}

impl Leases {
    pub(crate) fn new(settings: LeaseSettings, patience: Duration) -> Self {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Self {
            table: Arc::default(),
            most: settings.units.min(MOST_UNITS.into()),
            idle: micros(settings.idle),
            lifetime: micros(settings.lifetime),
            patience,
            is_closed: AtomicBool::new(false),
            runtime: Handle::current(),
        }
    }

    /// Spends `cost` of what is held of a subject, if that is enough.
    #[inline(always)]
    pub(crate) fn spend(
        &self,
        who: WhoRef<'_>,
        policy: &Policy,
        cost: Cost,
        now: u64,
    ) -> Option<Decision> {
        self.table.lock().get_mut(&who)?.spend(policy, cost, now)
    }

    /// Drops the held units of a subject, and keeps other tasks from spending or taking any while the result
    /// lives. The table always has room for this.
    pub(crate) async fn give_up(&self, who: Who) -> Option<Holder> {
        let holder = self.table.enter(who, usize::MAX)?.turn().await;
        holder.place.with_lease(|lease| lease.terms = None);
        Some(holder)
    }

    /// Stops taking units. A task checks this with a place in the table: either it takes none, or it has its
    /// place before `close` reads the table.
    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }
}

/// The result of a call to the server.
struct Taken {
    /// `None` if the held units no longer suffice, and the server has more.
    decision: Option<Decision>,
    units: u64,
}

impl RedisStore {
    /// Checks `cost`, which is more than what is held, and takes more ahead.
    pub(crate) fn check_leased(
        &self,
        leases: &Leases,
        who: WhoRef<'_>,
        policy: &Policy,
        cost: Cost,
        asking: Option<Asking>,
    ) -> StoreFuture<Decision> {
        let is_too_dear = cost.units() > leases.most && leases.table.lock().get(&who).is_none();
        if is_too_dear || leases.is_closed() {
            return self.check(who, policy, cost, asking);
        }
        let (this, who, policy) = (self.clone(), who.to_owned(), policy.clone());
        MaybeReady::later(async move { this.wait_for_turn(who, policy, cost, asking).await })
    }

    async fn wait_for_turn(
        self,
        who: Who,
        policy: Policy,
        cost: Cost,
        mut asking: Option<Asking>,
    ) -> Result<Decision, StoreError> {
        let Some(leases) = &self.inner.leases else { return Err(gone()) };
        let place = leases.table.enter(who.clone(), MOST);
        let place = place.or_else(|| leases.table.enter(who.clone(), self.make_room(leases)));
        let Some(place) = place else {
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
        let is_beyond = holder.place.with_lease(|lease| lease.is_beyond(&policy, cost, now));
        if is_beyond || leases.is_closed() {
            drop(holder);
            return self.check(who.as_ref(), &policy, cost, asking).await;
        }
        // In a task of its own, so that a cancelled request does not lose the units.
        let store = self.clone();
        if cost.units() > leases.most {
            let emptied = async move { store.empty(&holder).await };
            // Units that could not be given back stay charged.
            let _ = leases.runtime.spawn(emptied).await.map_err(|_| gone())?;
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
        // If the held units have ended meanwhile, or other requests have spent them, it takes a second time,
        // for the whole cost.
        let mut taken = self.take_more(leases, &mut holder, policy, cost, true).await?;
        if taken.decision.is_none() {
            let units = taken.units;
            taken = self.take_more(leases, &mut holder, policy, cost, false).await?;
            taken.units += units;
        }
        let decision = taken.decision.ok_or_else(gone)?;
        if !decision.is_allowed()
            && let Some(returned) = holder.place.with_lease(|lease| lease.take_back(taken.units))
        {
            // The units were taken for a request that is denied. If giving back fails, they stay held.
            let _ = self.give_back(holder.place.who.as_ref(), returned).await;
        }
        self.note_denial(holder.place.who.as_ref(), &decision, asking);
        Ok(decision)
    }

    /// Takes the units that are missing for `cost`, and more, and decides.
    async fn take_more(
        &self,
        leases: &Leases,
        holder: &mut Holder,
        policy: &Policy,
        cost: Cost,
        counts_held: bool,
    ) -> Result<Taken, StoreError> {
        let now = self.inner.watch.now();
        if holder.place.with_lease(|lease| open(&mut lease.terms, policy, now).is_none()) {
            // Units that could not be given back stay charged.
            let _ = self.empty(holder).await;
        }
        let (held, rest) = holder.place.with_lease(|lease| match &lease.terms {
            Some(terms) => (if counts_held { terms.left } else { 0 }, terms.rest),
            None => (0, u64::MAX),
        });
        let size = (2 * holder.taking.size.max(1)).min(leases.most).min((rest / 4).max(1));
        // Leases are no larger than `MOST_UNITS`, and the cost is no more than a lease.
        let units = |units: u64| u16::try_from(units).unwrap_or(MOST_UNITS).min(MOST_UNITS);
        let least = units(cost.units().saturating_sub(held).max(1));
        let asked = units(size).max(least);

        let sent = self.inner.watch.now();
        let (answer, decided) = self.take(leases, &holder.place.who, policy, asked, least).await?;
        let (taken, rest) = (u64::from(answer.passing()), answer.least_left(policy));
        let heard = self.inner.watch.now();
        let nearest = decided.limits().filter(|limit| limit.is_active());
        let nearest = nearest.map(|limit| limit.reset_after()).min().unwrap_or_default();
        let micros = u64::try_from(nearest.as_micros()).unwrap_or(u64::MAX);
        let until = lasts_until(sent, micros.min(leases.lifetime));
        let (policy, charged) = (policy.clone(), decided.at());
        let terms =
            Terms { policy, answer, charged, heard, until, touched: heard, left: taken, rest };
        if taken > 0 || rest == 0 {
            holder.taking.size = taken;
        }
        let is_short = taken < asked.into();
        let (decision, over) = holder.place.with_lease(|lease| lease.add(terms, cost, is_short));
        if let Some(over) = over {
            // Units that could not be given back stay charged.
            let _ = self.give_back(holder.place.who.as_ref(), Returned::from(over)).await;
        }
        Ok(Taken { decision, units: taken })
    }

    /// Takes up to `units` on the server, or none if fewer than `least` are left. Each unit is a check, the
    /// first of which pass. Returns how many pass as well, and the decision on the last.
    async fn take(
        &self,
        leases: &Leases,
        who: &Who,
        policy: &Policy,
        units: u16,
        least: u16,
    ) -> Result<(Answer, Decision), StoreError> {
        let (mode, cost) = (Mode::Check, Cost::ONE);
        // Joins a batch if a call is in flight.
        let _lone = match &self.inner.combiner {
            Some(combiner) => {
                let question = Question::Lease { units, least };
                match self.join(combiner, who.as_ref(), policy, question, None) {
                    Joined::Waiting(told) => {
                        let part = batching::wait_for_part(told).await?;
                        let last = part.decision();
                        return Ok((part.into_answer(), last));
                    }
                    Joined::Alone(lone) => Some(lone),
                }
            }
            None => None,
        };
        let command = self.inner.commands.check(&[who.as_ref()], policy, cost, units, least)?;
        let reply = tokio::time::timeout(leases.patience, self.send(command)).await;
        let reply = reply.unwrap_or_else(|_| Err(StoreError::new(FailureKind::TimedOut)))?;
        let asked = Asked { policy, mode, cost };
        let answer = reply_reader::read_one(&reply, units, asked)?;
        self.note_healed(answer.healed);
        let last = answer.decision(units - 1, asked);
        Ok((answer, last))
    }
}

/// The runtime that the store lives in has ended.
fn gone() -> StoreError {
    StoreError::new(FailureKind::Unavailable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Limit, Subject};
    use crate::store::fingerprint::Fingerprinter;
    use crate::store::{DecideRequest, Namespace, Part, Reset, Store};

    fn leases() -> Leases {
        let (idle, lifetime) = (Duration::from_secs(10), Duration::from_secs(60));
        Leases::new(LeaseSettings { units: 4, idle, lifetime }, Duration::from_secs(1))
    }

    #[tokio::test]
    async fn all_who_wait_meet_in_the_same_place_and_the_last_forgets_it() {
        let leases = leases();
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
            store
                .decide(DecideRequest::new(namespace, &[Part::new(subject, policy, cost)], mode))
                .await
                .unwrap_err();
            store.reset(Reset { namespace, subject, policy, limit: None }).await.unwrap_err();
        }
        assert_eq!(store.inner.leases.as_ref().unwrap().table.lock().len(), 0);
    }
}
