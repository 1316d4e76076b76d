//! The order in which the slots of a request are called.
//!
//! The slot that is most likely to deny the request is called first, because a denial by the first
//! slot leaves nothing to give back. It is the slot with the scarcest part:
//!
//! 1. **As last seen**: the part that had the smallest share of a limit remaining when this process
//!    last saw its counters. A part that this process has not seen counts as unused.
//! 2. **By rate**: of equal shares, the part with the fewest units per second. For example, the
//!    part of an API key precedes the part of the whole fleet. Until a charge is given back, it can
//!    deny other requests. A charge of the key can deny only requests with this key, while a charge
//!    of the fleet can deny every request.
//!
//! If all parts were last seen with more than half of their limits remaining, all slots are called
//! at once.
//!
//! The order affects only the number of calls and of charges that are given back, never a decision.
//! The table may therefore be small, and lose entries.

use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::{SmallVec, smallvec};

use crate::decision::Decision;
use crate::policy::Policy;
use crate::store::redis::layer::RequestPart;
use crate::store::redis::subject_key::SubjectKey;

/// The number of entries, of 8 bytes each.
const ENTRIES: usize = 8_192;

/// The bits of an entry that contain the share; the others identify the subject.
const SHARE: u64 = 0xffff;

/// The share for a part that this process has not seen: the whole limit remains.
const UNUSED: u64 = SHARE;

/// The parts in one slot, as indices into the parts of the request.
pub(crate) type Slot = SmallVec<[usize; 4]>;

/// The positions of the slots that are called at once.
pub(super) type Stage = SmallVec<[usize; 4]>;

/// The stages of a request, in their order.
pub(super) type Stages = SmallVec<[Stage; 2]>;

/// The shares of limits that remained when this process last saw the counters of subjects.
pub(super) struct LastSeen {
    /// For each subject that was seen, 48 bits of its key and the share that remained. Another
    /// subject with the same index overwrites the entry.
    entries: Box<[AtomicU64]>,
}

impl LastSeen {
    pub(super) fn new() -> Self {
        Self { entries: std::iter::repeat_with(AtomicU64::default).take(ENTRIES).collect() }
    }

    /// Records the share of the scarcest limit that remains after `decision`.
    pub(super) fn record(&self, subject: SubjectKey, decision: &Decision) {
        let share = |remaining: u64, max: u64| {
            let share = u128::from(remaining) * u128::from(SHARE) / u128::from(max.max(1));
            u64::try_from(share).unwrap_or(SHARE).min(SHARE)
        };
        let limits = decision.enforced().map(|limit| share(limit.remaining(), limit.max()));
        if let Some(scarcest) = limits.min() {
            self.entry(subject).store(subject.bits() & !SHARE | scarcest, Ordering::Relaxed);
        }
    }

    /// Returns the share of the scarcest limit that remained when the subject was last seen, or
    /// `None` if the table has no entry of the subject.
    fn share(&self, subject: SubjectKey) -> Option<u64> {
        let entry = self.entry(subject).load(Ordering::Relaxed);
        let is_of_subject = entry != 0 && (entry ^ subject.bits()) & !SHARE == 0;
        is_of_subject.then_some(entry & SHARE)
    }

    fn entry(&self, subject: SubjectKey) -> &AtomicU64 {
        &self.entries[subject.shard(ENTRIES)]
    }

    /// Returns the stages in which the slots are called.
    pub(super) fn stages(&self, parts: &[RequestPart], slots: &[Slot]) -> Stages {
        let all = 0..slots.len();
        let enforced = |part: &&RequestPart| !part.is_shadow;
        let shares = parts.iter().filter(enforced).map(|part| self.share(part.subject.key));
        if shares.into_iter().all(|share| share.is_some_and(|share| share > SHARE / 2)) {
            return smallvec![all.collect()];
        }
        let scarcity = |slot: &usize| {
            let parts = slots[*slot].iter().map(|&index| &parts[index]).filter(enforced);
            let scarcity = parts
                .map(|part| (self.share(part.subject.key).unwrap_or(UNUSED), rate(&part.policy)));
            // A slot whose parts are all in shadow never denies the request, so it counts as the
            // least scarce.
            scarcity.min().unwrap_or((u64::MAX, u128::MAX))
        };
        let first = all.clone().min_by_key(scarcity).unwrap_or_default();
        smallvec![smallvec![first], all.filter(|slot| *slot != first).collect()]
    }
}

/// Returns the smallest rate that an enforced limit of the policy allows in the long run, in units
/// per 10⁹ s. Returns `u128::MAX` if no limit is enforced.
fn rate(policy: &Policy) -> u128 {
    const SCALE: u128 = 1_000_000_000_000_000;
    let limits = policy.limits().iter().map(|limit| limit.limit());
    let enforced = limits.filter(|limit| !limit.is_shadow());
    let rates = enforced.map(|limit| {
        u128::from(limit.max()) * SCALE / u128::from(limit.period().as_micros().max(1))
    });
    rates.min().unwrap_or(u128::MAX)
}
