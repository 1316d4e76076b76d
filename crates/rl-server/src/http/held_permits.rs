//! The permits that callers hold by their ids.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rl_core::{Part, Permit};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// The permits that callers of `/v1/acquire` hold. Clones share them.
///
/// A permit that is neither settled nor refunded expires. It is then settled with the cost that was
/// charged: the server cannot know which of the units were used. If too many permits are held, the
/// one that would expire first expires at once.
///
/// Before a server exits, it calls [`settle_all`](Self::settle_all), and then
/// [`RateLimiter::close`](rl_core::RateLimiter::close), which waits for the settlements.
#[derive(Clone)]
pub struct HeldPermits(Arc<PermitTable>);

/// A permit of a caller.
#[derive(Debug)]
pub(super) struct HeldPermit {
    permit: Permit,
    names_rules: bool,
}

struct PermitTable {
    max: usize,
    entries: Mutex<PermitEntries>,
    // Notified when another permit expires first, and when the table is dropped.
    changed: Arc<Notify>,
}

#[derive(Default)]
struct PermitEntries {
    by_id: HashMap<u128, (Expiry, HeldPermit)>,
    by_expiry: BTreeMap<Expiry, u128>,
    next_number: u64,
    has_task: bool,
}

/// The time at which a permit expires, and a number that keeps apart those of one time.
type Expiry = (Instant, u64);

impl HeldPermits {
    /// The number of permits that are held by default.
    pub const DEFAULT_MAX: usize = 100_000;

    /// Creates an empty table for at most `max` permits.
    #[must_use]
    pub fn new(max: usize) -> Self {
        let (entries, changed) = (Mutex::default(), Arc::default());
        Self(Arc::new(PermitTable { max, entries, changed }))
    }

    /// Settles all permits as they were charged.
    pub fn settle_all(&self) {
        let mut entries = self.0.lock();
        entries.by_expiry.clear();
        let all = std::mem::take(&mut entries.by_id);
        // A permit is settled when it is dropped, which must not happen under the lock.
        drop(entries);
        drop(all);
    }

    /// Returns the number of permits that are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().by_id.len()
    }

    /// Returns whether no permit is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Holds a permit for a time, and returns its id.
    ///
    /// # Panics
    ///
    /// Panics outside of a runtime of tokio, or if the operating system has no random bytes.
    pub(super) fn hold(&self, permit: HeldPermit, ttl: Duration) -> PermitId {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the operating system provides random bytes");
        let id = u128::from_be_bytes(bytes);
        let mut entries = self.0.lock();
        let evicted = if entries.by_id.len() >= self.0.max { entries.remove_first() } else { None };
        let expiry = (Instant::now() + ttl, entries.next_number);
        entries.next_number += 1;
        entries.by_expiry.insert(expiry, id);
        entries.by_id.insert(id, (expiry, permit));
        let is_first =
            entries.by_expiry.first_key_value().is_some_and(|(first, _)| *first == expiry);
        let starts_task = !std::mem::replace(&mut entries.has_task, true);
        drop(entries);
        drop(evicted);
        if starts_task {
            let (table, changed) = (Arc::downgrade(&self.0), Arc::clone(&self.0.changed));
            tokio::spawn(expire(table, changed));
        } else if is_first {
            self.0.changed.notify_one();
        }
        PermitId(id)
    }

    /// Removes the permit with this id, and returns it. Returns `None` if there is none, or if it
    /// has expired.
    pub(super) fn take(&self, id: PermitId) -> Option<HeldPermit> {
        let mut entries = self.0.lock();
        let (expiry, permit) = entries.by_id.remove(&id.0)?;
        entries.by_expiry.remove(&expiry);
        drop(entries);
        (expiry.0 > Instant::now()).then_some(permit)
    }
}

impl Default for HeldPermits {
    fn default() -> Self {
        Self::new(Self::DEFAULT_MAX)
    }
}

impl fmt::Debug for HeldPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldPermits").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl HeldPermit {
    /// Creates the permit of a request. `names_rules` says that the request selects rules by name.
    pub(super) const fn new(permit: Permit, names_rules: bool) -> Self {
        Self { permit, names_rules }
    }

    /// Sets the final cost. Rules with a cost of their own keep it, unless the request has selected
    /// them by name.
    pub(super) fn set_cost(&self, cost: u64) {
        if self.names_rules {
            self.set_cost_of_all(cost);
        } else {
            self.permit.set_cost(cost);
        }
    }

    /// Sets the final cost under all rules.
    pub(super) fn set_cost_of_all(&self, cost: u64) {
        (0..Part::MAX).for_each(|part| self.permit.set_part_cost(part, cost));
    }

    /// Returns the permit.
    pub(super) fn into_permit(self) -> Permit {
        self.permit
    }
}

/// The id of a held permit: 128 random bits. A caller that knows the id may settle the permit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PermitId(u128);

impl PermitId {
    /// Parses 32 hexadecimal digits in lower case.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let id = Self(u128::from_str_radix(text, 16).ok()?);
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl PermitTable {
    fn lock(&self) -> MutexGuard<'_, PermitEntries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the permits that have expired. Returns the time at which the next one expires.
    fn remove_expired(&self) -> Option<Instant> {
        let now = Instant::now();
        loop {
            let mut entries = self.lock();
            let ((first, _), _) = entries.by_expiry.first_key_value()?;
            if *first > now {
                return Some(*first);
            }
            let expired = entries.remove_first();
            drop(entries);
            drop(expired);
        }
    }
}

impl PermitEntries {
    fn remove_first(&mut self) -> Option<HeldPermit> {
        let (_, id) = self.by_expiry.pop_first()?;
        self.by_id.remove(&id).map(|(_, permit)| permit)
    }
}

impl Drop for PermitTable {
    fn drop(&mut self) {
        // The task finds that the table is gone, and ends.
        self.changed.notify_one();
    }
}

/// Removes permits when they expire, as long as the table exists.
async fn expire(table: Weak<PermitTable>, changed: Arc<Notify>) {
    while let Some(next) = table.upgrade().map(|table| table.remove_expired()) {
        match next {
            None => changed.notified().await,
            Some(at) => tokio::select! {
                () = sleep_until(at) => {}
                () = changed.notified() => {}
            },
        }
    }
}
