//! Permits that clients name by an id.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rl_core::Permit;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// The longest time of a permit, which is short enough to be added to any time.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Permits of requests that end in a later call, each under an id and for a limited time.
///
/// A permit that is not taken in its time is refunded, as if its request had cost nothing. The same
/// holds for all permits when the table is dropped. The ids cannot be guessed.
///
/// The permits are in the memory of this process. Another instance does not know their ids, and if
/// the process dies, the units stay charged until their windows end. With
/// [`reservation_expires_after`](rl_core::RateLimiterBuilder::reservation_expires_after), Redis
/// refunds them earlier.
///
/// Clones share the permits.
#[derive(Clone)]
pub struct PermitTable {
    table: Arc<Table>,
}

struct Table {
    entries: Mutex<Entries>,
    /// Wakes the task that refunds permits, because another permit is the next to expire.
    is_earlier: Arc<Notify>,
    capacity: usize,
}

#[derive(Default)]
struct Entries {
    permits: HashMap<u128, (Permit, Instant)>,
    expiries: BTreeSet<(Instant, u128)>,
    /// Whether a task waits for the next permit to expire.
    is_watched: bool,
}

impl PermitTable {
    /// Creates a table for at most `capacity` permits.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let (entries, is_earlier) = (Mutex::default(), Arc::default());
        Self { table: Arc::new(Table { entries, is_earlier, capacity }) }
    }

    /// Inserts a permit for `time`, at most a year, and returns its id. If the table is full, refunds the permit
    /// and returns `None`.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime with a timer, and if the system has no random numbers.
    #[must_use]
    pub fn insert(&self, permit: Permit, time: Duration) -> Option<String> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the system has random numbers");
        let (id, expiry) = (u128::from_le_bytes(bytes), Instant::now() + time.min(LONGEST));
        let mut entries = self.table.entries();
        if entries.permits.len() >= self.table.capacity {
            drop(entries);
            refund(permit);
            return None;
        }
        entries.permits.insert(id, (permit, expiry));
        entries.expiries.insert((expiry, id));
        let is_first = entries.expiries.first() == Some(&(expiry, id));
        let is_watched = std::mem::replace(&mut entries.is_watched, true);
        drop(entries);
        if !is_watched {
            let watch = watch(Arc::downgrade(&self.table), Arc::clone(&self.table.is_earlier));
            tokio::spawn(watch);
        } else if is_first {
            self.table.is_earlier.notify_one();
        }
        Some(format!("{id:032x}"))
    }

    /// Removes the permit with this id, and returns it unless it has expired.
    #[must_use]
    pub fn take(&self, id: &str) -> Option<Permit> {
        let id = u128::from_str_radix(id, 16).ok()?;
        let mut entries = self.table.entries();
        let (permit, expiry) = entries.permits.remove(&id)?;
        entries.expiries.remove(&(expiry, id));
        drop(entries);
        if expiry <= Instant::now() {
            refund(permit);
            return None;
        }
        Some(permit)
    }

    /// Returns the number of permits in the table.
    #[must_use]
    pub fn count(&self) -> usize {
        self.table.entries().permits.len()
    }
}

impl Table {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refunds the permits that have expired, and returns the time of the next expiry.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut entries = self.entries();
        let mut expired = Vec::new();
        let next = loop {
            match entries.expiries.first() {
                None => break None,
                Some((expiry, _)) if *expiry > now => break Some(*expiry),
                Some(_) => {
                    let first = entries.expiries.pop_first();
                    let entry = first.and_then(|(_, id)| entries.permits.remove(&id));
                    expired.extend(entry.map(|(permit, _)| permit));
                }
            }
        };
        entries.is_watched = next.is_some();
        drop(entries);
        expired.into_iter().for_each(refund);
        next
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let entries = self.entries.get_mut().unwrap_or_else(PoisonError::into_inner);
        entries.permits.drain().for_each(|(_, (permit, _))| refund(permit));
    }
}

/// Sets the cost under each rule of the request to `cost`.
pub(crate) fn set_cost(permit: &Permit, cost: u64) {
    // `Permit::set_cost` would leave rules with a cost of their own as they are.
    for part in 0..permit.decision().parts().count() {
        permit.set_part_cost(part, cost);
    }
}

fn refund(permit: Permit) {
    set_cost(&permit, 0);
    drop(permit);
}

/// Refunds the permits that expire, until the table is empty or dropped.
async fn watch(table: Weak<Table>, is_earlier: Arc<Notify>) {
    loop {
        // The table is not held while the task waits, so that it can be dropped.
        let next = table.upgrade().and_then(|table| table.expire(Instant::now()));
        let Some(next) = next else { return };
        tokio::select! {
            () = sleep_until(next) => {}
            () = is_earlier.notified() => {}
        }
    }
}

impl fmt::Debug for PermitTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitTable")
            .field("permits", &self.count())
            .field("capacity", &self.table.capacity)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use rl_core::{Limit, RateLimiter, Subject};
    use tokio::time::timeout;

    use super::*;

    const CAPACITY: usize = 2;
    const SECOND: Duration = Duration::from_secs(1);

    fn limiter() -> (RateLimiter, PermitTable) {
        let limiter = RateLimiter::builder().limit(Limit::per_day(100)).build().unwrap();
        (limiter, PermitTable::new(CAPACITY))
    }

    /// Moves the paused clock on, and runs the tasks that are due by then.
    async fn pass(time: Duration) {
        let _ = timeout(time, pending::<()>()).await;
    }

    async fn used(limiter: &RateLimiter) -> u64 {
        let usage = limiter.usage(&Subject::global()).await.unwrap();
        usage.limits().next().unwrap().used()
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_is_taken_once() {
        let (limiter, table) = limiter();
        let permit = limiter.acquire(&Subject::global(), 40).await;
        let id = table.insert(permit, SECOND).unwrap();
        assert_eq!((id.len(), table.count()), (32, 1));
        let permit = table.take(&id).expect("it is held");
        set_cost(&permit, 25);
        permit.settle().await.unwrap();
        assert!(table.take(&id).is_none());
        assert!(table.take("").is_none() && table.take("no id").is_none());
        assert_eq!(used(&limiter).await, 25);
    }

    #[tokio::test(start_paused = true)]
    async fn permits_that_are_not_taken_in_their_time_are_refunded() {
        let (limiter, table) = limiter();
        let long = table.insert(limiter.acquire(&Subject::global(), 40).await, 9 * SECOND);
        let short = table.insert(limiter.acquire(&Subject::global(), 20).await, SECOND);
        assert_eq!(used(&limiter).await, 60);
        pass(2 * SECOND).await;
        assert_eq!((used(&limiter).await, table.count()), (40, 1), "the earlier one has expired");
        assert!(table.take(&short.unwrap()).is_none());
        pass(8 * SECOND).await;
        assert_eq!((used(&limiter).await, table.count()), (0, 0));
        assert!(table.take(&long.unwrap()).is_none());
        // The task has ended with the last permit, and begins again with the next one.
        let next = table.insert(limiter.acquire(&Subject::global(), 5).await, SECOND);
        assert!(next.is_some());
        pass(2 * SECOND).await;
        assert_eq!(used(&limiter).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_is_not_taken_at_its_expiry_before_the_task_runs() {
        let (limiter, table) = limiter();
        let id = table.insert(limiter.acquire(&Subject::global(), 5).await, SECOND).unwrap();
        // Advancing the clock does not run other tasks.
        tokio::time::advance(SECOND).await;
        assert!(table.take(&id).is_none());
        assert_eq!(used(&limiter).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_table_refunds_the_permit_and_a_dropped_one_refunds_all() {
        let (limiter, table) = limiter();
        for expected in [true, true, false] {
            let permit = limiter.acquire(&Subject::global(), 10).await;
            assert_eq!(table.insert(permit, SECOND).is_some(), expected);
        }
        assert_eq!(used(&limiter).await, 20);
        drop(table);
        assert_eq!(used(&limiter).await, 0);
    }
}
