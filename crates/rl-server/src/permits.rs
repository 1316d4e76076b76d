//! Permits that callers name by an id.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rl_core::{Part, Permit};
use rl_serve::{PeerShares, Share};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// The longest time for which a permit is held. Adding it to the present time cannot overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Permits that a later call settles, each under an id and for a limited time.
///
/// A caller that knows the id of a permit may settle it. An id has 128 random bits, so it cannot be
/// guessed. [`Unsettled`] says how a permit ends that no call settles in this time.
///
/// The permits are in the memory of this process. Another instance does not know their ids, and if
/// the process dies, the units stay charged until their windows end. With
/// [`reservation_expires_after`](rl_core::RateLimiterBuilder::reservation_expires_after), Redis
/// refunds them earlier.
///
/// Callers share the table as [`PeerShares`] describes: none holds more permits than its share, and a
/// permit is never ended to make room for another one.
///
/// Clones share the permits. When the last one is dropped, all permits end as if they had expired.
#[derive(Clone)]
pub struct PermitTable {
    table: Arc<Table>,
    shares: PeerShares,
}

/// How a permit ends that no call has settled in its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsettled {
    /// The charge stays, because the units may have been used.
    StaysCharged,
    /// The units are refunded, because the caller charges them again if they were used.
    Refunded,
}

/// A permit, and the rules whose cost its caller sets.
#[derive(Debug)]
pub(crate) struct HeldPermit {
    permit: Permit,
    sets_all: bool,
    _share: Share,
}

struct Table {
    entries: Mutex<Entries>,
    /// Wakes the task that ends permits, because the next expiry is earlier than before.
    expiry_changed: Arc<Notify>,
    unsettled: Unsettled,
}

#[derive(Default)]
struct Entries {
    permits: HashMap<u128, (HeldPermit, Instant)>,
    expiries: BTreeSet<(Instant, u128)>,
    /// Whether a task waits for the next permit to expire.
    is_watched: bool,
}

impl PermitTable {
    /// The capacity of the default table, whose permits stay charged.
    pub const DEFAULT_CAPACITY: usize = 100_000;

    /// Creates a table for at most `capacity` permits.
    #[must_use]
    pub fn new(capacity: usize, unsettled: Unsettled) -> Self {
        let (entries, expiry_changed) = (Mutex::default(), Arc::default());
        let name = match unsettled {
            Unsettled::StaysCharged => "permits",
            Unsettled::Refunded => "reservations",
        };
        let shares = PeerShares::new(name, capacity);
        Self { table: Arc::new(Table { entries, expiry_changed, unsettled }), shares }
    }

    /// Takes the place of one permit, unless the caller holds its share. It is taken before the
    /// decision, so that a caller without a place charges nothing.
    #[must_use]
    pub(crate) fn place(&self, caller: Option<IpAddr>) -> Option<Share> {
        self.shares.take(caller, 1)
    }

    /// Returns the shares of the callers.
    pub(crate) const fn shares(&self) -> &PeerShares {
        &self.shares
    }

    /// Inserts a permit for `time`, at most a year, and returns its id.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime with a timer, and if the system has no random numbers.
    #[must_use]
    pub(crate) fn insert(&self, permit: HeldPermit, time: Duration) -> String {
        let table = &self.table;
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the system has random numbers");
        let (id, expiry) = (u128::from_be_bytes(bytes), Instant::now() + time.min(LONGEST));
        let mut entries = table.entries();
        entries.permits.insert(id, (permit, expiry));
        entries.expiries.insert((expiry, id));
        let is_first = entries.expiries.first() == Some(&(expiry, id));
        let is_watched = std::mem::replace(&mut entries.is_watched, true);
        drop(entries);
        if !is_watched {
            tokio::spawn(watch(Arc::downgrade(table), Arc::clone(&table.expiry_changed)));
        } else if is_first {
            table.expiry_changed.notify_one();
        }
        format!("{id:032x}")
    }

    /// Removes the permit with this id, and returns it unless it has expired.
    #[must_use]
    pub(crate) fn take(&self, id: &str) -> Option<HeldPermit> {
        let number = u128::from_str_radix(id, 16).ok()?;
        if format!("{number:032x}") != id {
            return None;
        }
        let mut entries = self.table.entries();
        let (permit, expiry) = entries.permits.remove(&number)?;
        entries.expiries.remove(&(expiry, number));
        drop(entries);
        if expiry <= Instant::now() {
            self.table.end(permit);
            return None;
        }
        Some(permit)
    }

    /// Ends all permits, as if they had expired.
    ///
    /// Before a process exits, it calls this, and then
    /// [`RateLimiter::close`](rl_core::RateLimiter::close), which waits for the settlements.
    pub fn end_all(&self) {
        let mut entries = self.table.entries();
        entries.expiries.clear();
        let all = std::mem::take(&mut entries.permits);
        drop(entries);
        all.into_values().for_each(|(permit, _)| self.table.end(permit));
    }

    /// Returns the number of permits in the table.
    #[must_use]
    pub fn count(&self) -> usize {
        self.table.entries().permits.len()
    }
}

impl Default for PermitTable {
    fn default() -> Self {
        Self::new(Self::DEFAULT_CAPACITY, Unsettled::StaysCharged)
    }
}

impl HeldPermit {
    /// Creates the permit of a request. With `sets_all`, [`with_cost`](Self::with_cost) also applies
    /// to rules with a cost of their own, because the caller has named the rules.
    pub(crate) const fn new(permit: Permit, sets_all: bool, place: Share) -> Self {
        Self { permit, sets_all, _share: place }
    }

    /// Sets the final cost, and returns the permit.
    pub(crate) fn with_cost(self, cost: u64) -> Permit {
        if self.sets_all {
            return self.with_cost_of_all(cost);
        }
        self.permit.set_cost(cost);
        self.permit
    }

    /// Sets the final cost under all rules, and returns the permit.
    pub(crate) fn with_cost_of_all(self, cost: u64) -> Permit {
        (0..Part::MAX).for_each(|part| self.permit.set_part_cost(part, cost));
        self.permit
    }
}

impl Table {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a permit that no caller has settled.
    fn end(&self, permit: HeldPermit) {
        match self.unsettled {
            Unsettled::StaysCharged => drop(permit),
            Unsettled::Refunded => drop(permit.with_cost_of_all(0)),
        }
    }

    /// Ends the permits that have expired, and returns the time of the next expiry.
    fn expire(&self, now: Instant) -> Option<Instant> {
        loop {
            let mut entries = self.entries();
            let next = entries.expiries.first().map(|(expiry, _)| *expiry);
            if next.is_none_or(|expiry| expiry > now) {
                entries.is_watched = next.is_some();
                return next;
            }
            let expired = entries.pop_first();
            // A permit is settled when it ends, which must not happen under the lock.
            drop(entries);
            expired.into_iter().for_each(|permit| self.end(permit));
        }
    }
}

impl Entries {
    /// Removes the permit that expires first.
    fn pop_first(&mut self) -> Option<HeldPermit> {
        let (_, id) = self.expiries.pop_first()?;
        self.permits.remove(&id).map(|(permit, _)| permit)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let permits = std::mem::take(&mut self.entries().permits);
        permits.into_values().for_each(|(permit, _)| self.end(permit));
    }
}

/// Ends the permits that expire, until the table is empty or dropped.
async fn watch(table: Weak<Table>, expiry_changed: Arc<Notify>) {
    loop {
        // The table is not held while the task waits, so that it can be dropped.
        let next = table.upgrade().and_then(|table| table.expire(Instant::now()));
        let Some(next) = next else { return };
        tokio::select! {
            () = sleep_until(next) => {}
            () = expiry_changed.notified() => {}
        }
    }
}

impl fmt::Debug for PermitTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitTable")
            .field("permits", &self.count())
            .field("shares", &self.shares)
            .field("unsettled", &self.table.unsettled)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use rl_core::{Limit, RateLimiter, Subject};
    use tokio::time::timeout;

    use super::*;

    const CAPACITY: usize = 4;
    const SECOND: Duration = Duration::from_secs(1);

    fn limited() -> (RateLimiter, PermitTable) {
        let limiter = RateLimiter::builder().limit(Limit::per_day(100)).build().unwrap();
        (limiter, PermitTable::new(CAPACITY, Unsettled::Refunded))
    }

    async fn acquired((limiter, table): &(RateLimiter, PermitTable), cost: u64) -> HeldPermit {
        let place = table.place(None).expect("a caller holds less than its share");
        HeldPermit::new(limiter.acquire(&Subject::global(), cost).await, true, place)
    }

    /// Moves the paused clock on, and runs the tasks that are due by then.
    async fn pass(time: Duration) {
        let _ = timeout(time, pending::<()>()).await;
    }

    async fn used((limiter, _): &(RateLimiter, PermitTable)) -> u64 {
        let usage = limiter.usage(&Subject::global()).await.unwrap();
        usage.limits().next().unwrap().used()
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_is_taken_once() {
        let both = limited();
        let table = &both.1;
        let permit = acquired(&both, 40).await;
        let id = table.insert(permit, SECOND);
        assert_eq!((id.len(), table.count()), (32, 1));
        let permit = table.take(&id).expect("it is held");
        permit.with_cost(25).settle().await.unwrap();
        assert!(table.take(&id).is_none());
        assert!(table.take("").is_none() && table.take("no id").is_none());
        assert_eq!(used(&both).await, 25);
    }

    #[tokio::test(start_paused = true)]
    async fn permits_that_are_not_taken_in_their_time_are_refunded() {
        let both = limited();
        let table = &both.1;
        let long = table.insert(acquired(&both, 40).await, 9 * SECOND);
        let short = table.insert(acquired(&both, 20).await, SECOND);
        assert_eq!(used(&both).await, 60);
        pass(2 * SECOND).await;
        assert_eq!((used(&both).await, table.count()), (40, 1), "the earlier one has expired");
        assert!(table.take(&short).is_none());
        pass(8 * SECOND).await;
        assert_eq!((used(&both).await, table.count()), (0, 0));
        assert!(table.take(&long).is_none());
        // The task has ended with the last permit, and begins again with the next one.
        let _ = table.insert(acquired(&both, 5).await, SECOND);
        pass(2 * SECOND).await;
        assert_eq!(used(&both).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_is_not_taken_at_its_expiry_before_the_task_runs() {
        let both = limited();
        let table = &both.1;
        let id = table.insert(acquired(&both, 5).await, SECOND);
        // Advancing the clock does not run other tasks.
        tokio::time::advance(SECOND).await;
        assert!(table.take(&id).is_none());
        assert_eq!(used(&both).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_table_ends_no_permit_and_a_dropped_one_refunds_all() {
        let both = limited();
        let (limiter, table) = &both;
        let address = |last| Some(IpAddr::from([192, 0, 2, last]));
        let mut ids = Vec::new();
        for (last, expected) in [(1, true), (1, true), (1, false), (2, true), (2, false)] {
            let place = table.place(address(last));
            assert_eq!(place.is_some(), expected, "{last}");
            let Some(place) = place else { continue };
            let permit = limiter.acquire(&Subject::global(), 10).await;
            ids.push(table.insert(HeldPermit::new(permit, true, place), SECOND));
        }
        assert_eq!((used(&both).await, table.shares().refused()), (30, 2));
        // A permit that is settled makes room.
        drop(table.take(&ids[0]));
        assert!(table.place(address(1)).is_some());
        let (limiter, table) = both;
        drop(table);
        assert_eq!(used(&(limiter, limited().1)).await, 10);
    }
}
