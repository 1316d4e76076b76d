//! The denial cache: a subject that is denied until a time is not asked for again before it.
//!
//! * **No false denial**: the server was asked no earlier than the reply says, so its clock has gone at
//!   most as far since then as ours has since we sent. Other instances only use up more meanwhile, and
//!   no limit that is remembered here lets go before the time that it told. `DESIGN.md` has the proof.
//!   Limits of concurrency let go earlier, and are not remembered.
//! * **What lowers a count is heeded**: a reset or a refund through this store at once, one by another
//!   instance after [`LONGEST`] at the latest. Another policy is another question.
//! * **Denials hold during an overload**: while the server cannot be asked again, a denial holds for the
//!   whole wait that the server returned.
//! * **Bounded**: [`MOST`] subjects. Requests of other subjects go to the server, or are rejected in an
//!   overload.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::decision::{Decision, RetryAfter};
use crate::model::Cost;
use crate::policy::Policy;
use crate::store::redis::shortcuts::monotonic::lasts_until;
use crate::store::redis::subject_key::{ByWho, Who, WhoRef};

/// The longest that a denial is remembered.
const LONGEST: Duration = Duration::from_secs(1);

/// Denials that are remembered at most.
const MOST: usize = 16_384;

const SHARDS: usize = 64;

/// Who is known to be denied.
pub(crate) struct Denials {
    shards: Box<[Shard]>,
}

struct Shard {
    // Raised when something is forgotten: what was asked before is not remembered after.
    forgotten: AtomicU64,
    denied: Mutex<ByWho<Denied>>,
}

struct Denied {
    decision: Decision,
    /// When the reply arrived.
    heard: u64,
    /// When the server is to be asked again.
    until: u64,
    /// The end of the wait that the server returned.
    promised: u64,
}

/// What is known of the subjects of a shard, which nobody changes meanwhile.
pub(crate) struct Known<'a> {
    shard: &'a Shard,
    denied: MutexGuard<'a, ByWho<Denied>>,
    now: u64,
}

impl Known<'_> {
    /// The denial of `cost`, and how many microseconds ago it was.
    #[inline]
    pub(crate) fn denial(
        &self,
        who: WhoRef<'_>,
        policy: &Policy,
        cost: Cost,
    ) -> Option<(&Decision, u64)> {
        let denied = self.denied.get(&who).filter(|denied| self.now < denied.until)?;
        denied.of(policy, cost, self.now)
    }

    /// Returns a denial whose wait has not ended, even if the server should be asked again.
    pub(crate) fn promised(
        &self,
        who: WhoRef<'_>,
        policy: &Policy,
        cost: Cost,
    ) -> Option<(&Decision, u64)> {
        let denied = self.denied.get(&who).filter(|denied| self.now < denied.promised)?;
        denied.of(policy, cost, self.now)
    }

    /// By what the answer is remembered of who asks now.
    pub(crate) fn asking(&self, who: WhoRef<'_>) -> Asking {
        let forgotten = self.shard.forgotten.load(Ordering::Acquire);
        Asking { forgotten, sent: self.now, is_known: self.denied.contains_key(&who) }
    }
}

/// Taken when a question sets out; by it the answer is remembered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    forgotten: u64,
    sent: u64,
    /// Whether a denial is remembered, which the answer may invalidate.
    pub(crate) is_known: bool,
}

impl Denied {
    /// Returns the denial and its age in microseconds, if it is of this policy and cost.
    fn of(&self, policy: &Policy, cost: Cost, now: u64) -> Option<(&Decision, u64)> {
        let Self { decision, heard, .. } = self;
        let is_it = decision.cost() == cost && decision.policy() == Some(policy);
        is_it.then(|| (decision, now.saturating_sub(*heard)))
    }
}

impl Denials {
    pub(crate) fn new() -> Self {
        let shard = || Shard { forgotten: AtomicU64::new(0), denied: Mutex::default() };
        let shards = std::iter::repeat_with(shard).take(SHARDS).collect();
        Self { shards }
    }

    /// What is known of a subject at `now`.
    #[inline]
    pub(crate) fn known(&self, who: WhoRef<'_>, now: u64) -> Known<'_> {
        let shard = self.shard(who);
        Known { shard, denied: shard.lock(), now }
    }

    /// The denial, if it is known; else what to remember the answer by.
    pub(crate) fn find(
        &self,
        who: WhoRef<'_>,
        policy: &Policy,
        cost: Cost,
        now: u64,
    ) -> Result<Decision, Asking> {
        let known = self.known(who, now);
        match known.denial(who, policy, cost) {
            Some((denial, micros)) => Ok(denial.at_later(micros)),
            None => Err(known.asking(who)),
        }
    }

    /// Remembers a denial.
    pub(crate) fn note(&self, who: WhoRef<'_>, decision: &Decision, asking: Asking, heard: u64) {
        let micros = |wait: Duration| u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        let (wait, promised) = match decision.retry_after() {
            RetryAfter::In(wait) => (wait.min(LONGEST), micros(wait)),
            RetryAfter::Never => (LONGEST, u64::MAX),
            RetryAfter::Now => return,
        };
        let until = lasts_until(asking.sent, micros(wait));
        let promised = lasts_until(asking.sent, promised);
        if heard >= until {
            return;
        }
        let shard = self.shard(who);
        let mut denied = shard.lock();
        if shard.forgotten.load(Ordering::Acquire) != asking.forgotten {
            return;
        }
        if denied.len() >= MOST / SHARDS && !denied.contains_key(&who) {
            // The oldest few: if they still hold, there are more denials than there is room for.
            for place in (0..denied.len().min(4)).rev() {
                if denied[place].until <= heard {
                    denied.swap_remove_index(place);
                }
            }
            if denied.len() >= MOST / SHARDS {
                let place = usize::try_from(heard).unwrap_or(0) % denied.len();
                denied.swap_remove_index(place);
            }
        }
        let decision = decision.clone();
        denied.insert(who.to_owned(), Denied { decision, heard, until, promised });
    }

    /// Forgets the denial of a subject that the server has allowed since.
    pub(crate) fn allowed(&self, who: WhoRef<'_>, asking: Asking) {
        let mut denied = self.shard(who).lock();
        if denied.get(&who).is_some_and(|denied| denied.heard <= asking.sent) {
            denied.swap_remove(&who);
        }
    }

    /// Forgets what is known of a subject, because its counts may be lower now.
    pub(crate) fn forget(&self, who: WhoRef<'_>) {
        let shard = self.shard(who);
        let mut denied = shard.lock();
        shard.forgotten.fetch_add(1, Ordering::AcqRel);
        denied.swap_remove(&who);
    }

    fn shard(&self, who: WhoRef<'_>) -> &Shard {
        &self.shards[who.fingerprint.spread(SHARDS)]
    }
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, ByWho<Denied>> {
        self.denied.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets when it is dropped: when what lowers a count has been done, or may have been.
pub(crate) struct Forgetting<'a> {
    pub(crate) denials: Option<&'a Denials>,
    pub(crate) who: Who,
}

impl Drop for Forgetting<'_> {
    fn drop(&mut self) {
        if let Some(denials) = self.denials {
            denials.forget(self.who.as_ref());
        }
    }
}
